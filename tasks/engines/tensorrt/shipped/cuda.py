"""The part of CUDA that an engine needs: memory, a stream, events, a graph, and the identity of the GPU.

Every object frees its handle when it is garbage collected, at the end of the process at the latest, or at once by `free()`.
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
    """Failure of a CUDA call; `name` is the error's name, such as "cudaErrorMemoryAllocation"."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


def load_cuda() -> Any:
    """Return the Python bindings of CUDA's runtime API.

    Raises:
        RuntimeError: they are not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise RuntimeError(f"found {error}; expected CUDA's bindings; install cuda-bindings>=13") from error


def checked(call: str, answer: tuple[Any, ...]) -> Any:
    """Return the value of a bindings call, whose `answer` is (error,) or (error, value).

    Raises:
        CudaError: the call failed.
    """
    error, *values = answer
    if error != 0:
        cudart = load_cuda()
        raise CudaError(call, cudart.cudaGetErrorName(error)[1].decode())
    return values[0] if values else None


def require_gpu() -> None:
    """Raise if CUDA has no GPU.

    Raises:
        RuntimeError: CUDA's bindings are not installed.
        CudaError: there is no driver, or no GPU.
    """
    checked("cudaGetDeviceCount", load_cuda().cudaGetDeviceCount())


class _Held:
    """A CUDA handle that is freed once."""

    def __init__(self, handle: Any, function: Callable[[Any], object]) -> None:
        self.handle = handle
        # Errors of freeing are ignored: after a failed kernel every call fails, and only the first error matters.
        self._free = weakref.finalize(self, function, handle)

    def free(self) -> None:
        """Free the handle now; a second call does nothing."""
        self._free()


class _Addressed(_Held):
    """A handle that is an address."""

    @property
    def address(self) -> int:
        """Address of the first byte, or of the stream, for TensorRT."""
        return int(self.handle)


class DeviceMemory(_Addressed):
    """GPU memory. `address` is never 0, as TensorRT requires even for empty tensors."""

    def __init__(self, size_bytes: int) -> None:
        cudart = load_cuda()
        self.size_bytes = size_bytes
        super().__init__(checked("cudaMalloc", cudart.cudaMalloc(max(1, size_bytes))), cudart.cudaFree)


class HostMemory(_Addressed):
    """Pinned host memory, from which the GPU can copy while the processor does other work."""

    def __init__(self, size_bytes: int) -> None:
        cudart = load_cuda()
        self.size_bytes = size_bytes
        super().__init__(checked("cudaMallocHost", cudart.cudaMallocHost(max(1, size_bytes))), cudart.cudaFreeHost)

    def view(self, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Return the first bytes as an array of this dtype and shape, valid until the memory is freed."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        # Through bytes, since ctypes has no float16.
        raw = np.ctypeslib.as_array((c_ubyte * size).from_address(self.address)) if size else np.empty(0, np.uint8)
        return raw.view(dtype).reshape(shape)


class Event(_Held):
    """A marker in the work of a stream."""

    def __init__(self) -> None:
        cudart = load_cuda()
        super().__init__(checked("cudaEventCreate", cudart.cudaEventCreate()), cudart.cudaEventDestroy)

    def milliseconds_since(self, start: Event) -> float:
        """Return the GPU's time from `start` to this event, in milliseconds; both must have completed."""
        cudart = load_cuda()
        return float(checked("cudaEventElapsedTime", cudart.cudaEventElapsedTime(start.handle, self.handle)))


class Graph(_Held):
    """Recorded work that is launched at once."""


class Stream(_Addressed):
    """A queue of GPU work, executed in order; completion is only guaranteed after `synchronize`."""

    def __init__(self) -> None:
        # Kept as an attribute: it is used between timed kernels, where an import would cost time.
        self._cudart = cudart = load_cuda()
        created = checked("cudaStreamCreateWithFlags", cudart.cudaStreamCreateWithFlags(_NON_BLOCKING))
        super().__init__(created, cudart.cudaStreamDestroy)

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
        """Wait until all queued work is done.

        Raises:
            CudaError: queued work failed.
        """
        checked("cudaStreamSynchronize", self._cudart.cudaStreamSynchronize(self.handle))

    def capture(self, work: Callable[[], None]) -> Graph:
        """Record the work that `work` queues on this stream, without executing it.

        Any exception of `work` is raised again. After an error the stream is usable as before.

        Raises:
            CudaError: the work cannot be recorded.
        """
        cudart = self._cudart
        # Thread-local: a global capture would forbid other threads to allocate meanwhile.
        mode = cudart.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        checked("cudaStreamBeginCapture", cudart.cudaStreamBeginCapture(self.handle, mode))
        try:
            work()
        finally:
            # Always end the capture, or the stream would keep recording.
            ended = cudart.cudaStreamEndCapture(self.handle)
            recorded = None if ended[0] != 0 else _Held(ended[1], cudart.cudaGraphDestroy)
        graph = checked("cudaStreamEndCapture", ended)
        ready = checked("cudaGraphInstantiate", cudart.cudaGraphInstantiate(graph, 0))
        if recorded is not None:
            recorded.free()
        return Graph(ready, cudart.cudaGraphExecDestroy)


def gpu_here() -> dict[str, str] | None:
    """Return name, uuid, compute capability ("9.0") and driver of CUDA's device 0; None without a GPU.

    CUDA_VISIBLE_DEVICES is respected. No CUDA context is created.

    Raises:
        RuntimeError: NVML's bindings are not installed, or device 0 is ambiguous.
    """
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError as error:
        raise RuntimeError(f"found {error}; expected NVML's bindings; install nvidia-ml-py>=13") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, or its library is missing
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
    """Return NVML's handle of CUDA's device 0, or None.

    CUDA counts the fastest GPU first unless CUDA_DEVICE_ORDER says otherwise; NVML counts in bus order. The two agree for GPUs
    of one name; with several names the order is unknown.
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
