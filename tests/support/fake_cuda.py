"""A stand-in for CUDA's runtime bindings, strict where a GPU would be: see `test_engine_run.py`.

Work that is queued on a stream is done when something waits for it, and not before. Memory of the GPU has addresses that the
processor cannot read, and holds rubbish at first. What is freed twice, used after it was freed, or copied the wrong way is an
error, as it would be there. The functions have the arguments of the real ones; others are not there.
"""

# ruff: noqa: N801, N802, N803, N815 - the names are the bindings'
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Error(IntEnum):
    """Those of driver_types.h that are needed."""

    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureUnsupported = 900
    cudaErrorStreamCaptureInvalidated = 901


class cudaMemcpyKind(IntEnum):
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2


class cudaStreamCaptureMode(IntEnum):
    cudaStreamCaptureModeThreadLocal = 1


@dataclass
class Queue:
    """A stream: what is to be done, and what is recorded of it."""

    waiting: list[Callable[[], None]] = field(default_factory=list)
    recorded: list[Callable[[], None]] | None = None
    invalid: bool = False

    def put(self, work: Callable[[], None]) -> None:
        (self.waiting if self.recorded is None else self.recorded).append(work)


class FakeCuda:
    """A GPU with a clock of its own, in milliseconds; `fail` names functions whose next call gives that error."""

    def __init__(self) -> None:
        self.device: dict[int, NDArray[np.uint8]] = {}
        self.host: dict[int, NDArray[np.uint8]] = {}
        self.streams: dict[int, Queue] = {}
        self.events: dict[int, float | None] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.ready: dict[int, list[Callable[[], None]]] = {}
        self.fail: dict[str, Error] = {}
        self.calls: list[str] = []
        self.clock = 0.0
        self.broken = Error.cudaSuccess
        self._next = 0x7000_0000_0000

    def held(self) -> int:
        """How many things are not freed."""
        return sum(len(one) for one in (self.device, self.host, self.streams, self.events, self.graphs, self.ready))

    def module(self) -> ModuleType:
        """To be imported as `cuda.bindings.runtime`."""
        module = ModuleType("cuda.bindings.runtime")
        names = [name for name in dir(self) if name.startswith("cuda")]
        vars(module).update({name: self._counted(name) for name in names})
        vars(module).update(cudaMemcpyKind=cudaMemcpyKind, cudaStreamCaptureMode=cudaStreamCaptureMode)
        return module

    def _counted(self, name: str) -> Callable[..., Any]:
        function = getattr(self, name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            if name in self.fail:
                if name == "cudaStreamEndCapture":  # which ends it even so
                    self.streams[arguments[0]].recorded = None
                return (self.fail.pop(name), None)
            if self.broken and name != "cudaGetErrorName":
                return (self.broken, None)
            return function(*arguments)

        return call

    def _new(self, kept: dict[int, Any], value: Any) -> tuple[Error, int]:
        self._next += 0x1000
        kept[self._next] = value
        return Error.cudaSuccess, self._next

    @staticmethod
    def _drop(kept: dict[int, Any], handle: int) -> tuple[Error]:
        assert handle in kept, "freed twice, or never made"
        del kept[handle]
        return (Error.cudaSuccess,)

    def find(self, address: int, size: int, *, on_host: bool) -> NDArray[np.uint8] | None:
        """The memory that begins there, if it is large enough."""
        memory = (self.host if on_host else self.device).get(address)
        return memory[:size] if memory is not None and len(memory) >= size else None

    def cudaGetDeviceCount(self) -> Any:
        return Error.cudaSuccess, 1

    def cudaGetErrorName(self, error: Error) -> Any:
        return Error.cudaSuccess, Error(error).name.encode()

    def cudaMalloc(self, size: int) -> Any:
        assert size > 0, "the real one gives a null pointer"
        return self._new(self.device, np.full(size, 0xAB, np.uint8))

    def cudaFree(self, devPtr: int) -> Any:
        return self._drop(self.device, devPtr)

    def cudaMallocHost(self, size: int) -> Any:
        memory = np.full(size, 0xCD, np.uint8)
        self.host[memory.ctypes.data] = memory
        return Error.cudaSuccess, memory.ctypes.data

    def cudaFreeHost(self, ptr: int) -> Any:
        return self._drop(self.host, ptr)

    def cudaStreamCreateWithFlags(self, flags: int) -> Any:
        return self._new(self.streams, Queue())

    def cudaStreamDestroy(self, stream: int) -> Any:
        return self._drop(self.streams, stream)

    def cudaStreamSynchronize(self, stream: int) -> Any:
        queue = self.streams[stream]
        if queue.recorded is not None:
            queue.invalid = True
            return (Error.cudaErrorStreamCaptureUnsupported,)
        for work in queue.waiting:
            work()
        queue.waiting.clear()
        return (self.broken,)

    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: cudaMemcpyKind, stream: int) -> Any:
        up = kind == cudaMemcpyKind.cudaMemcpyHostToDevice

        def copy() -> None:
            to, source = self.find(dst, count, on_host=not up), self.find(src, count, on_host=up)
            if to is None or source is None:
                self.broken = Error.cudaErrorIllegalAddress
            else:
                to[:] = source
            self.clock += 1.0

        self.streams[stream].put(copy)
        return (Error.cudaSuccess,)

    def cudaEventCreate(self) -> Any:
        return self._new(self.events, None)

    def cudaEventDestroy(self, event: int) -> Any:
        return self._drop(self.events, event)

    def cudaEventRecord(self, event: int, stream: int) -> Any:
        self.streams[stream].put(lambda: self.events.update({event: self.clock}))
        return (Error.cudaSuccess,)

    def cudaEventElapsedTime(self, start: int, end: int) -> Any:
        first, last = self.events[start], self.events[end]
        if first is None or last is None:
            return Error.cudaErrorInvalidValue, None
        return Error.cudaSuccess, last - first

    def cudaStreamBeginCapture(self, stream: int, mode: cudaStreamCaptureMode) -> Any:
        self.streams[stream].recorded, self.streams[stream].invalid = [], False
        return (Error.cudaSuccess,)

    def cudaStreamEndCapture(self, stream: int) -> Any:
        queue = self.streams[stream]
        recorded, queue.recorded = queue.recorded, None
        assert recorded is not None
        if queue.invalid:
            return Error.cudaErrorStreamCaptureInvalidated, None
        return self._new(self.graphs, recorded)

    def cudaGraphInstantiate(self, graph: int, flags: int) -> Any:
        return self._new(self.ready, list(self.graphs[graph]))

    def cudaGraphDestroy(self, graph: int) -> Any:
        return self._drop(self.graphs, graph)

    def cudaGraphExecDestroy(self, graphExec: int) -> Any:
        return self._drop(self.ready, graphExec)

    def cudaGraphLaunch(self, graphExec: int, stream: int) -> Any:
        self.streams[stream].waiting += self.ready[graphExec]
        return (Error.cudaSuccess,)
