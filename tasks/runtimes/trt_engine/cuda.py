"""CUDA as far as an engine needs it: memory, a stream, events, a graph; and which GPU this is.

Every object frees what it holds when it is dropped, at the end of the process at the latest, or at once by `free()`.
"""

from __future__ import annotations

import importlib
import os
import weakref
from collections.abc import Callable
from ctypes import c_ubyte
from typing import Any

import numpy as np
from numpy.typing import NDArray

# driver_types.h, cudaStreamNonBlocking: a stream that does not wait for the default one.
_NON_BLOCKING = 1


class CudaError(RuntimeError):
    """A call of CUDA failed; `name` is the error's, such as "cudaErrorMemoryAllocation"."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


def load_cuda() -> Any:
    """The module of CUDA's runtime API.

    Raises:
        RuntimeError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise RuntimeError(f"found {error}; expected CUDA's bindings; install cuda-bindings>=13") from error


def checked(call: str, answer: tuple[Any, ...]) -> Any:
    """What a call of the bindings gave beside its error, which must be none: they give (error,) or (error, value).

    Raises:
        CudaError: there is an error.
    """
    error, *values = answer
    if error != 0:
        cudart = load_cuda()
        raise CudaError(call, cudart.cudaGetErrorName(error)[1].decode())
    return values[0] if values else None


def require_gpu() -> None:
    """Nothing, where CUDA has a GPU.

    Raises:
        RuntimeError: CUDA's bindings are not installed.
        CudaError: there is no driver, or no GPU.
    """
    checked("cudaGetDeviceCount", load_cuda().cudaGetDeviceCount())


class _Held:
    """Something of CUDA's that is freed once."""

    def __init__(self, handle: Any, function: Callable[[Any], object]) -> None:
        self.handle = handle
        # What it answers is let go: after a failed kernel every call fails, and the first error is the one to see.
        self._free = weakref.finalize(self, function, handle)

    def free(self) -> None:
        """Free it now; a second call does nothing."""
        self._free()


class DeviceMemory(_Held):
    """Memory of the GPU. `address` is never 0, as TensorRT asks of empty tensors too."""

    def __init__(self, size_bytes: int) -> None:
        cudart = load_cuda()
        self.size_bytes = size_bytes
        super().__init__(checked("cudaMalloc", cudart.cudaMalloc(max(1, size_bytes))), cudart.cudaFree)

    @property
    def address(self) -> int:
        """Where it begins, as the GPU sees it."""
        return int(self.handle)


class HostMemory(_Held):
    """Memory of the host that stays where it is, so that the GPU can copy from it while the processor does something else."""

    def __init__(self, size_bytes: int) -> None:
        cudart = load_cuda()
        self.size_bytes = size_bytes
        super().__init__(checked("cudaMallocHost", cudart.cudaMallocHost(max(1, size_bytes))), cudart.cudaFreeHost)

    @property
    def address(self) -> int:
        """Where it begins."""
        return int(self.handle)

    def view(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Its first bytes as an array, valid until it is freed."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        # Through bytes, since ctypes has no float16.
        raw = np.ctypeslib.as_array((c_ubyte * size).from_address(self.address)) if size else np.empty(0, np.uint8)
        return raw.view(dtype).reshape(shape)


class Event(_Held):
    """A point in the work of a stream."""

    def __init__(self) -> None:
        cudart = load_cuda()
        super().__init__(checked("cudaEventCreate", cudart.cudaEventCreate()), cudart.cudaEventDestroy)

    def milliseconds_since(self, start: Event) -> float:
        """The GPU's time from `start` to this event; both must have passed."""
        cudart = load_cuda()
        return float(checked("cudaEventElapsedTime", cudart.cudaEventElapsedTime(start.handle, self.handle)))


class Graph(_Held):
    """Recorded work that is launched as one."""


class Stream(_Held):
    """A queue of work for the GPU, done in order; nothing of it is sure to be done before `synchronize`."""

    def __init__(self) -> None:
        # Kept, since it is looked up between the kernels that are timed.
        self._cudart = cudart = load_cuda()
        created = checked("cudaStreamCreateWithFlags", cudart.cudaStreamCreateWithFlags(_NON_BLOCKING))
        super().__init__(created, cudart.cudaStreamDestroy)

    @property
    def address(self) -> int:
        """The handle as TensorRT takes it."""
        return int(self.handle)

    def upload(self, device: DeviceMemory, host: HostMemory, size_bytes: int) -> None:
        """Queue a copy to the GPU."""
        self._copy(device.address, host.address, size_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyHostToDevice)

    def download(self, host: HostMemory, device: DeviceMemory, size_bytes: int) -> None:
        """Queue a copy from the GPU."""
        self._copy(host.address, device.address, size_bytes, self._cudart.cudaMemcpyKind.cudaMemcpyDeviceToHost)

    def _copy(self, to: int, source: int, size_bytes: int, kind: Any) -> None:
        checked("cudaMemcpyAsync", self._cudart.cudaMemcpyAsync(to, source, size_bytes, kind, self.handle))

    def record(self, event: Event) -> None:
        """Queue an event."""
        checked("cudaEventRecord", self._cudart.cudaEventRecord(event.handle, self.handle))

    def launch(self, graph: Graph) -> None:
        """Queue a graph."""
        checked("cudaGraphLaunch", self._cudart.cudaGraphLaunch(graph.handle, self.handle))

    def synchronize(self) -> None:
        """Wait until all that was queued is done.

        Raises:
            CudaError: some of it failed.
        """
        checked("cudaStreamSynchronize", self._cudart.cudaStreamSynchronize(self.handle))

    def capture(self, work: Callable[[], None]) -> Graph:
        """What `work` queues on this stream, recorded and not done.

        Raises:
            CudaError: something in it cannot be recorded, or what `work` raises; the stream is as it was before.
        """
        cudart = self._cudart
        # Of this thread: another one may allocate meanwhile, which a global capture would forbid.
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked("cudaStreamBeginCapture", cudart.cudaStreamBeginCapture(self.handle, mode))
        try:
            work()
        finally:
            # Whatever came of it, or the stream would go on recording.
            ended = cudart.cudaStreamEndCapture(self.handle)
            recorded = None if ended[0] != 0 else _Held(ended[1], cudart.cudaGraphDestroy)
        graph = checked("cudaStreamEndCapture", ended)
        ready = checked("cudaGraphInstantiate", cudart.cudaGraphInstantiate(graph, 0))
        if recorded is not None:
            recorded.free()
        return Graph(ready, cudart.cudaGraphExecDestroy)


def gpu_here() -> dict[str, str] | None:
    """Name, uuid, compute capability ("9.0") and driver of the GPU that CUDA calls device 0, without taking it; None without.

    CUDA_VISIBLE_DEVICES is heeded.

    Raises:
        RuntimeError: NVML's bindings are not installed, or which GPU is device 0 cannot be told.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise RuntimeError(f"found {error}; expected NVML's bindings; install nvidia-ml-py>=13") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or no library of it
        return None
    try:
        handle = _first_device(nvml)
        if handle is None:
            return None
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return {
            "gpu": _text(nvml.nvmlDeviceGetName(handle)),
            "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
            "compute_capability": f"{major}.{minor}",
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
        }
    except nvml.NVMLError as error:
        raise RuntimeError(f"found {error}; expected a GPU that NVML describes; set CUDA_VISIBLE_DEVICES") from error
    finally:
        nvml.nvmlShutdown()


def _first_device(nvml: Any) -> Any:
    """NVML's handle of CUDA's device 0, or None.

    CUDA counts the fastest first unless CUDA_DEVICE_ORDER says otherwise, NVML by the bus: with GPUs of one name it is no
    matter, and with several names there is no telling.
    """
    count = nvml.nvmlDeviceGetCount()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    first = "0" if visible is None else visible.split(",")[0].strip()
    if first.startswith(("GPU-", "MIG-")):
        return nvml.nvmlDeviceGetHandleByUUID(first)
    if not first.isdecimal() or int(first) >= count:
        return None
    names = {_text(nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))) for index in range(count)}
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise RuntimeError(
            f"found {sorted(names)}; expected one kind of GPU, or CUDA_DEVICE_ORDER=PCI_BUS_ID; set that"
        )
    return nvml.nvmlDeviceGetHandleByIndex(int(first))


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
