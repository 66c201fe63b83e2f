"""A loaded model that answers requests, whatever runs it: what measures accuracy, sanity and latency sees no more than this."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.ort import describe_inputs, describe_outputs, failures_refused, open_session, run_outputs
from validators.datasets import Arrays, TensorSpec
from validators.records import SessionSettings

if TYPE_CHECKING:
    import onnxruntime as ort


class Runner(Protocol):
    """A model in memory, on the device that it runs on."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and shapes of the inputs."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The same of the outputs, in the model's order."""

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """The named outputs for arrays in host memory, with the copies to the device and back.

        Raises:
            CandidateRefused: `invalid`: the runtime fails while it runs.
        """

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """A request for `batch` whose inputs and outputs lie on the device: each call returns once it is done, no copies."""


class SessionRunner:
    """A session of ONNX Runtime on the processor, whose memory is the device's."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self.inputs = describe_inputs(session)
        self.outputs = describe_outputs(session)

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """See `Runner.run`."""
        return run_outputs(self._session, batch, list(outputs))

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """See `Runner.bound`."""
        names = [spec.name for spec in self.outputs]

        def request() -> None:
            self._session.run(names, batch)

        return request


def run_all(runner: Runner, batches: Iterable[Arrays], output: str) -> NDArray[Any]:
    """The concatenation along axis 0 of one output over all batches.

    Raises:
        CandidateRefused: `invalid`: the runtime fails while it runs, or batches give outputs of different shapes.
    """
    with failures_refused():
        return np.concatenate([runner.run(batch, [output])[0] for batch in batches])


@contextmanager
def open_runner(model: Path, settings: SessionSettings) -> Iterator[Runner]:
    """The model under these settings, released at the end of the block.

    Raises:
        CandidateRefused: the runtime does not load it (`invalid`), or something else would run it (`unsupported`).
    """
    with open_session(model, settings) as session:
        yield SessionRunner(session)
