"""Parent side of a measuring process: start it, stop it between its blocks, end it."""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tasks.measure.latency.ratio import Samples
from validators.child_environment import HOOKS, child_environment
from validators.errors import CandidateRefused, InfrastructureError
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays
from validators.targets import facts_of_provider

if TYPE_CHECKING:
    from validators.job.job_measurement import Measurement

WORKER = Path(__file__).with_name("worker.py")
# Timeout for an answer of a worker, in seconds beyond the duration of the block.
PATIENCE_SECONDS = 300.0
# One request at a time; several at once; one at a time with the user's pre- and postprocessing and copies.
Kind = Literal["latency", "throughput", "end_to_end"]


@dataclass(frozen=True)
class Contestant:
    """A model file with its session settings."""

    model: Path
    settings: SessionSettings


def save_requests(path: Path, requests: Sequence[Arrays]) -> Path:
    """Write requests of equal shapes to a file for a `Worker`, stacked along a new axis 0; return the path."""
    stacked = {name: np.stack([one[name] for one in requests]) for name in requests[0]}
    np.savez(path, **stacked)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
    return path


@dataclass(frozen=True)
class Block:
    """Samples of one block of requests.

    `samples` are in milliseconds, float64 `(n,)`: the time of each request or, for throughput, from the start of the block
    until each request was done.
    """

    kind: Kind
    samples: Samples
    clients: int = 1

    @property
    def total_ms(self) -> float:
        """Time of all requests of the block."""
        return float(self.samples[-1] if self.kind == "throughput" else self.samples.sum())

    @cached_property
    def value_ms(self) -> float:
        """Figure by which the sides are compared: the median or, for throughput, the block's time per request.

        >>> Block("throughput", np.array([2.0, 3.0, 6.0])).value_ms
        2.0
        """
        return float(self.total_ms / len(self.samples) if self.kind == "throughput" else np.median(self.samples))


class Worker:
    """A measuring process that runs only during its blocks and is stopped between them.

    `inputs` is a file of `save_requests`; latency is measured with at most the first `bound_requests` of them. `measurement`
    gives the user's functions for the end-to-end time, which are looked up in the folder `code` first, and the number of
    throughput clients. `cpus` are the processors that it may use; empty for all.
    """

    def __init__(
        self,
        contestant: Contestant,
        inputs: Path,
        measurement: Measurement | None = None,
        code: Path = Path(),
        cpus: Sequence[int] = (),
    ) -> None:
        self._name = contestant.model.name
        self._clients = measurement.clients if measurement else 0
        config = _config(contestant, inputs, measurement, code) | {"cpus": list(cpus)}
        # A file: nobody reads stderr meanwhile, so a pipe could fill up and block the process.
        self._said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - closed on exit
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            # Numpy's OpenMP and BLAS pools would compete with the session's threads.
            env=child_environment(*HOOKS) | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.pid = self._process.pid
        self.cpus = tuple(cpus)
        self.figures: dict[str, float] = {}
        self.bound_requests = 1
        self.nice = 0
        try:
            ready = self._answer(PATIENCE_SECONDS)
            if ready["providers"][0] != contestant.settings.provider:
                raise CandidateRefused(
                    kind="unsupported",
                    found=f"providers {ready['providers']}",
                    expected=contestant.settings.provider,
                    fix="install the provider's libraries",
                )
            self.bound_requests = int(ready["bound_requests"])
            self.nice = int(ready["nice"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._process.send_signal(signal.SIGSTOP)

    def block(self, seconds: float, count: int, kind: Kind = "latency", mix: int | None = None) -> Block:
        """Make requests for at least `seconds`, and at least `count`, in whole rounds of the first `mix` (None: all).

        Raises:
            CandidateRefused: the runtime fails on the model.
            InfrastructureError: the process died or did not answer in time.
        """
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        command = {"kind": kind, "seconds": seconds, "count": count, "clients": self._clients, "mix": mix}
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process died; `_answer` raises with the reason
        answer = self._answer(seconds + PATIENCE_SECONDS)
        self._process.send_signal(signal.SIGSTOP)
        samples = np.asarray(answer["ns"], dtype=np.float64) / 1e6
        return Block(kind, samples, self._clients if kind == "throughput" else 1)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def _answer(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_seconds):
                raise InfrastructureError(
                    found=f"no answer from the measuring process of {self._name} in {timeout_seconds:.0f} s",
                    expected="an answer after each block",
                    fix="check the machine's load, and run again",
                )
        line = self._process.stdout.readline()
        if line:
            message: dict[str, Any] = json.loads(line)
            if "refused" in message:
                raise CandidateRefused(**message["refused"])
            self.figures |= message["figures"]
            return message
        code = self._process.wait()
        self._said.seek(0)
        said = self._said.read().strip().splitlines()
        if code > 0:
            raise CandidateRefused(
                kind="invalid",
                found=f"the runtime fails on {self._name}: {said[-1][:300] if said else f'exit code {code}'}",
                expected="a model that loads and runs",
                fix="use another precision or granularity",
            )
        raise InfrastructureError(
            found=f"signal {-code} ended the measuring process of {self._name}",
            expected="an answer after each block",
            fix="check the free memory, and run again",
        )


def _config(contestant: Contestant, inputs: Path, measurement: Measurement | None, code: Path) -> dict[str, Any]:
    """Return the configuration of the process, as JSON values."""
    settings = contestant.settings
    return {
        "model": str(contestant.model),
        "inputs": str(inputs),
        **asdict(settings),
        "on_gpu": settings.on_gpu,
        "loader": facts_of_provider(settings.provider).loader,
        "libraries": [str(library.path) for library in settings.libraries],
        "preprocess": measurement.preprocess if measurement else None,
        "postprocess": measurement.postprocess if measurement else None,
        "code": str(code),
    }
