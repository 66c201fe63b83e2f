"""Latency of a variant beside its baseline: two processes with one session each take turns, block by block.

Sessions that share a process spin against each other (wrong by a factor of eight, in both directions), so each has a
process of its own, and the process whose turn it is not is stopped by signal: it cannot compute.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.disturbance import OtherLoad
from tasks.measure.inventory import usable_cores
from tasks.runtimes.openvino import OPENVINO_PROVIDER, library_path, provider_options
from validators.datasets import Arrays
from validators.errors import CandidateRefused, InfrastructureError
from validators.job_measurement import Measurement
from validators.measurements import Estimate, Latency
from validators.records import SessionSettings

WORKER = Path(__file__).with_name("latency_worker.py")
# Longest silence of a worker, in seconds, beyond the block it was asked for.
PATIENCE_SECONDS = 300.0
# How often a pair of blocks is measured before a busy machine is given up.
TRIES = 3
Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Contestant:
    """A model file with the settings that it runs under."""

    model: Path
    settings: SessionSettings


@dataclass
class _Side:
    """What one contestant gave: milliseconds a block, load time and peak memory over all launches."""

    blocks: list[Samples] = field(default_factory=list)
    load_ms: list[float] = field(default_factory=list)
    peak_memory_mb: list[float] = field(default_factory=list)


def compare_latency(
    baseline: Contestant,
    variant: Contestant,
    batch: Arrays,
    measurement: Measurement,
    *,
    confidence: float,
    samples_path: Path,
) -> Latency:
    """Measure both on the same batch and return the variant's latency with its speedup over the baseline.

    `batch` holds one request's inputs, samples along axis 0. Raw samples go to `samples_path` (`.npz`: `baseline` and
    `variant` in milliseconds, `baseline_block` and `variant_block` with the index of each sample's block).

    Raises:
        CandidateRefused: `invalid` when a session does not load or run, `unsupported` when another provider would run it.
        InfrastructureError: a measuring process died or fell silent, or others kept the machine busy in three tries.
    """
    sides = (_Side(), _Side())
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        inputs = Path(folder, "batch.npz")
        np.savez(inputs, **batch)  # type: ignore[arg-type]  # numpy's stub takes any keyword for allow_pickle
        for launch in range(measurement.launches):
            with Worker(baseline, inputs) as first, Worker(variant, inputs) as second:
                workers = (first, second)
                for worker, side in zip(workers, sides, strict=True):
                    worker.block(measurement.warmup_seconds, 3)
                    side.load_ms.append(worker.load_ms)
                for block in range(measurement.blocks):
                    # The order alternates, so that a machine that slows down steadily favours neither.
                    order = (0, 1) if (launch + block) % 2 == 0 else (1, 0)
                    for side, samples in zip(sides, _quiet_pair(workers, order, measurement), strict=True):
                        side.blocks.append(samples)
                for worker, side in zip(workers, sides, strict=True):
                    side.peak_memory_mb.append(worker.peak_memory_mb)
    _save(samples_path, sides)
    return _summarise(sides, len(next(iter(batch.values()))), confidence, samples_path)


def _quiet_pair(
    workers: tuple[Worker, Worker], order: tuple[int, int], measurement: Measurement
) -> tuple[Samples, Samples]:
    """A block of each worker, in this order, during which nothing else computed; tried again when something did.

    A busy machine does not slow both sides alike: threads that wait for one another lose most, so that the ratio itself is
    wrong (2.4 in place of 1.6 was seen), and no average mends it.
    """
    limit = None if measurement.max_other_load is None else measurement.max_other_load * usable_cores()
    cores = 0.0
    for _ in range(TRIES):
        blocks: dict[int, Samples] = {}
        cores = 0.0
        for index in order:
            others = OtherLoad(workers[index].pid)
            blocks[index] = workers[index].block(measurement.block_seconds, measurement.block_count)
            cores = max(cores, others.cores())
        if limit is None or cores <= limit:
            return blocks[0], blocks[1]
    raise InfrastructureError(
        found=f"other processes kept {cores:.2f} cores busy while latency was measured, in {TRIES} tries",
        expected=f"at most {limit:.2f} cores (`measurement.max_other_load` of {usable_cores()})",
        fix="run again when the machine is quiet; what is measured is kept",
    )


def _summarise(sides: tuple[_Side, _Side], batch_size: int, confidence: float, samples_path: Path) -> Latency:
    base, variant = (np.concatenate(side.blocks) for side in sides)
    ratios = [float(np.median(a) / np.median(b)) for a, b in zip(sides[0].blocks, sides[1].blocks, strict=True)]
    return Latency(
        batch_size=batch_size,
        p50_ms=float(np.median(variant)),
        p95_ms=percentile(variant, 0.95),
        p99_ms=percentile(variant, 0.99),
        count=len(variant),
        baseline_p50_ms=float(np.median(base)),
        baseline_p95_ms=percentile(base, 0.95),
        baseline_p99_ms=percentile(base, 0.99),
        speedup=ratio_estimate(ratios, confidence),
        pairs=len(ratios),
        load_ms=float(np.median(sides[1].load_ms)),
        peak_memory_mb=max(sides[1].peak_memory_mb),
        baseline_load_ms=float(np.median(sides[0].load_ms)),
        baseline_peak_memory_mb=max(sides[0].peak_memory_mb),
        samples_path=samples_path,
    )


def ratio_estimate(ratios: Sequence[float], confidence: float) -> Estimate:
    """The geometric mean of paired ratios, with one-sided Student bounds of their logarithms on either side.

    `confidence` is one-sided: each of the bounds holds with it. Blocks of one launch share a process, so that the interval
    speaks of these launches; more launches make it speak of more.

    >>> ratio_estimate([2.0, 2.0, 2.0], 0.95)
    Estimate(value=2.0, low=2.0, high=2.0)
    """
    from scipy import stats

    logs = np.log(ratios)
    mean = float(logs.mean())
    half = float(stats.t.ppf(confidence, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    value, low, high = (round(math.exp(x), 12) for x in (mean, mean - half, mean + half))
    return Estimate(value, low, high)


def percentile(samples: Samples, quantile: float) -> float | None:
    """The quantile of pooled samples, or None where their count cannot support it.

    >>> percentile(np.arange(100.0), 0.99) is None
    True
    """
    return float(np.quantile(samples, quantile)) if len(samples) >= samples_needed(quantile) else None


def samples_needed(quantile: float, confidence: float = 0.99) -> int:
    """The smallest count that supports a percentile: with `confidence`, at least two samples lie beyond it.

    This is the early-stopping rule of MLPerf Inference (LoadGen) with one discarded sample.

    >>> samples_needed(0.99), samples_needed(0.999)
    (662, 6636)
    """
    from scipy import stats

    count = math.ceil(math.log(1 - confidence) / math.log(quantile))  # none beyond it: a lower limit to start from
    while stats.binom.cdf(1, count, 1 - quantile) > 1 - confidence:
        count += 1
    return count


def _save(path: Path, sides: tuple[_Side, _Side]) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    for name, side in zip(("baseline", "variant"), sides, strict=True):
        arrays[name] = np.concatenate(side.blocks)
        arrays[f"{name}_block"] = np.repeat(np.arange(len(side.blocks)), [len(block) for block in side.blocks])
    np.savez(path, **arrays)  # type: ignore[arg-type]  # see compare_latency


class Worker:
    """A measuring process: running during its blocks, stopped between them, ended at the end."""

    def __init__(self, contestant: Contestant, inputs: Path) -> None:
        settings = contestant.settings
        libraries = [str(library.path) for library in settings.libraries]
        config = {"model": str(contestant.model), "inputs": str(inputs), **asdict(settings), "libraries": libraries}
        if settings.provider == OPENVINO_PROVIDER:
            config["plugin"] = {"library": library_path(), "options": provider_options(settings.threads)}
        self._name = contestant.model.name
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER), json.dumps(config)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # OpenMP and BLAS pools of numpy would be threads beside the session's.
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.pid = self._process.pid
        self.peak_memory_mb = 0.0
        try:
            ready = self._answer(PATIENCE_SECONDS)
            if ready["providers"][0] != contestant.settings.provider:
                raise CandidateRefused(
                    kind="unsupported",
                    found=f"providers {ready['providers']}",
                    expected=contestant.settings.provider,
                    fix="install the provider's libraries",
                )
            self.load_ms = float(ready["load_ms"])
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._process.send_signal(signal.SIGSTOP)

    def block(self, seconds: float, count: int) -> Samples:
        """Requests for at least `seconds` and at least `count` of them; milliseconds each."""
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"seconds": seconds, "count": count}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # the process died; reading its answer says so, with the reason
        answer = self._answer(seconds + PATIENCE_SECONDS)
        self._process.send_signal(signal.SIGSTOP)
        self.peak_memory_mb = answer["peak_memory_kb"] * 1024 / 1e6
        return np.asarray(answer["ns"], dtype=np.float64) / 1e6

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def _answer(self, timeout_seconds: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_seconds):
                raise InfrastructureError(
                    found=f"no answer from the measuring process of {self._name} in {timeout_seconds:.0f} s",
                    expected="an answer after each block",
                    fix="look at the machine's load; run again",
                )
        line = self._process.stdout.readline()
        if line:
            message: dict[str, Any] = json.loads(line)
            return message
        assert self._process.stderr is not None
        code = self._process.wait()
        said = self._process.stderr.read().strip().splitlines()
        if code > 0:
            raise CandidateRefused(
                kind="invalid",
                found=f"the runtime fails on {self._name}: {said[-1][:300] if said else f'exit code {code}'}",
                expected="a model that loads and runs",
                fix="another precision or granularity",
            )
        raise InfrastructureError(
            found=f"the measuring process of {self._name} ended by signal {-code}",
            expected="an answer after each block",
            fix="check for lack of memory; run again",
        )
