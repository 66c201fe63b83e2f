"""Engines as runners, opened on this machine's GPU or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from numpy.typing import NDArray

from tasks.engines.tensorrt.shipped.api import load_api
from tasks.engines.tensorrt.shipped.cuda import CudaError
from tasks.engines.tensorrt.shipped.run import EngineError, EngineRunner
from tasks.engines.tensorrt.shipped.tensors import Tensor
from tasks.runtimes.kernels import WARM_UP
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec
from validators.target_facts import TENSORRT

# Requests whose median counts, behind `WARM_UP`.
_TIMED = 30
# driver_types.h: the error for too little GPU memory.
_NO_MEMORY = "cudaErrorMemoryAllocation"
_NO_GPU = frozenset({"cudaErrorNoDevice", "cudaErrorInsufficientDriver"})


class LoadedEngine:
    """An engine that implements `tasks.runtimes.runner.Runner`."""

    def __init__(self, engine: EngineRunner) -> None:
        self._engine = engine
        self.inputs = tuple(_spec(tensor) for tensor in engine.inputs)
        self.outputs = tuple(_spec(tensor) for tensor in engine.outputs)

    def run(self, batch: Arrays, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Return the named outputs for arrays in host memory, with copies to the GPU and back.

        Raises:
            CandidateRefused: `invalid`: the batch does not fit the engine, or TensorRT fails; `infrastructure`: no memory.
        """
        with _refused():
            return self._engine.run(batch, outputs)

    def bound(self, batch: Arrays) -> Callable[[], None]:
        """Return a request whose inputs and outputs lie on the GPU, as a CUDA graph if the engine can be captured.

        Raises:
            CandidateRefused: see `run`.
        """
        with _refused():
            return self._engine.bound(batch)


@contextmanager
def open_model(plan: Path, settings: SessionSettings) -> Iterator[LoadedEngine]:
    """Load a serialized engine on this machine's GPU, freed at the end of the block.

    Raises:
        CandidateRefused: `unsupported`: the settings are not TensorRT's, or TensorRT or a GPU is missing; `invalid`: TensorRT
            does not load the engine; `infrastructure`: no memory.
    """
    if settings.provider != TENSORRT or settings.libraries:
        raise CandidateRefused(
            kind="unsupported",
            found=f"an engine for {settings.provider} with {len(settings.libraries)} operator libraries",
            expected=f"{TENSORRT} without operator libraries, which alone runs engines",
            fix="use the ONNX file with other runtimes",
        )
    with _open(plan) as engine:
        yield LoadedEngine(engine)


def inspect_engine(plan: Path, batch: Arrays) -> tuple[str, dict[str, float]]:
    """Return the inspector's JSON of an engine's layers, and the milliseconds of each layer in one request, by name.

    Raises:
        CandidateRefused: see `open_model` and `LoadedEngine.run`.
    """
    with _open(plan) as engine, _refused():
        return engine.layers_json(), engine.layer_times(batch)


def request_ms(plan: Path, batch: Arrays) -> float:
    """Return the GPU milliseconds of one request, the median of several; a CUDA graph if the engine can be captured.

    Raises:
        CandidateRefused: see `inspect_engine`.
    """
    with _open(plan) as engine, _refused():
        return median(engine.kernel_ms(engine.bound(batch), WARM_UP + _TIMED)[WARM_UP:])


@contextmanager
def _open(plan: Path) -> Iterator[EngineRunner]:
    with _refused():
        engine = EngineRunner(plan.read_bytes(), load_api())
    try:
        yield engine
    finally:
        engine.close()


@contextmanager
def _refused() -> Iterator[None]:
    """Convert exceptions of the package `trt_engine` to refusals."""
    try:
        yield
    except ImportError as error:
        raise CandidateRefused(
            kind="unsupported", found=str(error), expected="an installed TensorRT", fix="install the extra `tensorrt`"
        ) from error
    except ValueError as error:
        raise CandidateRefused(
            kind="invalid",
            found=str(error),
            expected="batches of sizes that the engine was built for",
            fix="add the sizes of the data and of `measurement` to `engines.axes` of the job",
        ) from error
    except CudaError as error:
        raise _of_cuda(error) from error
    except RuntimeError as error:
        raise CandidateRefused(
            kind="invalid" if isinstance(error, EngineError) else "unsupported",
            found=str(error),
            expected="an engine that runs on this machine",
            fix="read the build's log; an engine runs only on the GPU and the TensorRT version that it was built for",
        ) from error


def _of_cuda(error: CudaError) -> CandidateRefused:
    if error.name in _NO_GPU:
        return CandidateRefused(
            kind="unsupported",
            found=str(error),
            expected="an NVIDIA GPU with its driver",
            fix="run it on a machine with an NVIDIA GPU",
        )
    if error.name == _NO_MEMORY:
        return CandidateRefused(
            kind="infrastructure",
            found=str(error),
            expected="enough GPU memory for the engine and its batch",
            fix="stop other processes on the GPU, or build for smaller batches",
        )
    return CandidateRefused(
        kind="invalid",
        found=f"the GPU fails on the engine: {error}",
        expected="an engine that runs on every batch",
        fix="read the driver's log (dmesg); another precision may work",
    )


def _spec(tensor: Tensor) -> TensorSpec:
    return TensorSpec(tensor.name, tensor.dtype, tuple(None if axis < 0 else axis for axis in tensor.shape))
