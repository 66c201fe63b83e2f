"""A loaded model that answers requests: accuracy, sanity and latency are measured through this interface alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.decoder_session import decoder_specs
from tasks.runtimes.ort import describe_inputs, describe_outputs, failures_refused, open_session, run_outputs
from tasks.runtimes.ort_gpu import device_of
from validators.deadline import check_deadline
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec, part_of, rows_of
from validators.targets import facts_of_provider

if TYPE_CHECKING:
    import onnxruntime as ort


# Memory of tensors, in ONNX Runtime's terms: kind `cpu` or `cuda`, and device index.
Device = tuple[str, int]


class Runner(Protocol):
    """A model in memory, on the device that it runs on."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and shapes of the inputs."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Names, dtypes and shapes of the outputs, in the model's order."""

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Run the model on arrays in host memory and return the named outputs; copies to the device and back are included.

        Raises:
            CandidateRefused: `invalid`: the runtime fails while it runs.
        """

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """Return a request for `batch` with inputs and outputs on the device; each call blocks until done and copies nothing.

        Requests from one `bound` run one at a time; requests from several may run at once.

        Raises:
            CandidateRefused: `invalid`: the batch does not fit the model, or the device; also of each call.
        """


@dataclass(frozen=True)
class InRequests:
    """A runner that asks a model for at most `most` samples at a time: its answer to one depends on those beside it."""

    runner: Runner
    most: int

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """See `Runner.run`; also refused are outputs without samples along axis 0, or of another shape for another request."""
        n = rows_of(batch)
        requests = [part_of(batch, start, min(start + self.most, n)) for start in range(0, n, self.most)]
        found = [self.runner.run(request, outputs) for request in requests]
        try:
            return found[0] if len(found) == 1 else [np.concatenate(one) for one in zip(*found, strict=True)]
        except ValueError as error:
            raise CandidateRefused(
                kind="invalid",
                found=f"outputs of requests of {self.most}: {error}",
                expected="outputs of equal shape, with samples along axis 0",
                fix="pad the judged output to a fixed size in the graph, or name another `output`",
            ) from error


class ModelRunner:
    """A model of an engine's shipped module, with outputs by name; in a block of `failures`, its errors become refusals."""

    def __init__(
        self,
        model: Any,
        inputs: Iterable[TensorSpec],
        outputs: Iterable[TensorSpec],
        failures: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.model = model
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._failures = failures

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """See `Runner.run`."""
        check_deadline()
        names = [spec.name for spec in self.outputs]
        with self._failures():
            return list(self.model.run(batch, [names.index(name) for name in outputs]))

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """See `Runner.bound`."""
        with self._failures():
            request = self.model.bound(batch)

        def call() -> None:
            with self._failures():
                request()

        return call


class DecoderRunner(ModelRunner):
    """A loaded decoder, a `GenaiModel` or an `OpenVinoDecoder`: `run` scores windows, `bound` generates."""

    def __init__(self, model: Any, vocabulary: int, failures: Callable[[], AbstractContextManager[None]]) -> None:
        tokens, scores = decoder_specs(vocabulary)
        super().__init__(model, (tokens,), (scores,), failures)

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """See `Runner.run`."""
        check_deadline()
        with self._failures():
            scores = self.model.scores(batch[self.inputs[0].name])
        return [scores for _ in outputs]

    def generate(self, tokens: NDArray[Any], new_tokens: int, *, past_end: bool = True) -> NDArray[np.int32]:
        """See `tasks.measure.continuations.Generator.generate`."""
        check_deadline()
        with self._failures():
            return np.asarray(self.model.generate(tokens, new_tokens, past_end=past_end), np.int32)


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


class GpuSessionRunner(SessionRunner):
    """A session of ONNX Runtime on a GPU: `run` copies arrays there and back, `bound` binds them once."""

    def __init__(self, session: ort.InferenceSession, device: Device) -> None:
        super().__init__(session)
        self._device = device

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """See `Runner.bound`. Outputs are allocated on the device by the first call, and written there by all."""
        binding = bind(self._session, batch, self._device)

        def request() -> None:
            with failures_refused():
                self._session.run_with_iobinding(binding)
                binding.synchronize_outputs()

        return request


def bind(session: ort.InferenceSession, batch: Arrays, device: Device) -> ort.IOBinding:
    """Copy a batch to a device and bind it as the session's inputs, with its outputs on the same device.

    Raises:
        CandidateRefused: `invalid`: there is no room for the batch, an array does not fit the model, or holds strings.
    """
    import onnxruntime as ort

    with failures_refused():
        binding = session.io_binding()
        for name, array in batch.items():
            value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), *device)
            binding.bind_ortvalue_input(name, value)
        for spec in describe_outputs(session):
            binding.bind_output(spec.name, *device)
        binding.synchronize_inputs()
    return binding


@contextmanager
def open_runner(model: Path, settings: SessionSettings) -> Iterator[Runner]:
    """Open the model under these settings and release it at the end of the block; for TensorRT, `model` is the engine.

    Raises:
        CandidateRefused: the runtime does not load it (`invalid`), or something else would run it (`unsupported`).
    """
    session = facts_of_provider(settings.provider).session
    opened = import_module(session).open_model if session else _open_with_onnxruntime
    with opened(model, settings) as runner:
        yield runner


@contextmanager
def _open_with_onnxruntime(model: Path, settings: SessionSettings) -> Iterator[Runner]:
    with open_session(model, settings) as session:
        yield (GpuSessionRunner(session, ("cuda", device_of(settings))) if settings.on_gpu else SessionRunner(session))
