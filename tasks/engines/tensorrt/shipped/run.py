"""Execution of a serialized engine with `tensorrt` 11 or, on the GPUs that it supports, `tensorrt_rtx`."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from functools import cache
from statistics import median
from types import ModuleType
from typing import Any

from numpy.typing import NDArray

from .api import make_logger
from .cuda import Event, require_gpu
from .request import Request
from .tensors import Arrays, EngineError, describe

__all__ = ["EngineError", "EngineRunner", "Request"]

# Timed runs per layer; the median counts.
_PROFILED = 10


class EngineRunner:
    """An engine on the GPU. `inputs` and `outputs` are tuples of `Tensor` in the engine's order."""

    def __init__(self, plan: bytes, api: ModuleType) -> None:
        """Load a serialized engine.

        Raises:
            CudaError: there is no GPU.
            RuntimeError: CUDA's bindings are not installed.
            EngineError: TensorRT does not load it, or an input or output has a type that numpy lacks.
        """
        require_gpu()  # without a GPU, TensorRT ends the process
        self._api = api
        self._logger, self._said = _listen(api)
        self._lock = threading.Lock()
        self._requests: weakref.WeakSet[Request] = weakref.WeakSet()
        self._runtime = api.Runtime(self._logger)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise self._explain("TensorRT does not load the engine")
        self.inputs, self.outputs = describe(api, self._engine)
        # Created on first use: a context takes the scratch memory of the largest batch.
        self._copying: Request | None = None

    def run(self, batch: Arrays, outputs: Sequence[str] | None = None) -> list[NDArray[Any]]:
        """Return the named outputs, or all, for arrays in host memory, with copies to the GPU and back. Threads take turns.

        Raises:
            ValueError: the batch does not fit the engine, or the engine has no such output.
            EngineError: TensorRT fails, or the shape of an output depends on values.
            CudaError: a copy or a kernel fails.
        """
        names = [tensor.name for tensor in self.outputs]
        outputs = names if outputs is None else outputs
        if not set(outputs) <= set(names):
            raise ValueError(f"found outputs {list(outputs)}; expected some of {names}")
        with self._lock:
            if self._copying is None:
                self._copying = self._request()
            self._copying.load(batch)
            self._copying.enqueue()
            return self._copying.fetch(outputs)

    def bound(self, batch: Arrays) -> Request:
        """Return a request for `batch` with inputs and outputs on the GPU. Calling it runs it without copies and waits.

        It is a CUDA graph if the engine can be captured; see `why_not_captured`. Its memory is freed with it.

        Raises:
            ValueError: the batch does not fit the engine.
            EngineError: TensorRT fails, or the shape of an output depends on values.
            CudaError: a copy or a kernel fails.
        """
        request = self._request()
        request.load(batch)
        request.capture()
        return request

    def kernel_ms(self, request: Request, n: int) -> tuple[float, ...]:
        """Return the GPU time of each of `n` runs, in milliseconds, measured by events.

        The runs are queued back to back, so that the GPU does not wait for the processor. The first may differ.
        """
        marks = [(Event(), Event()) for _ in range(n)]
        for start, end in marks:
            request.stream.record(start)
            request.launch()
            request.stream.record(end)
        request.stream.synchronize()
        return tuple(end.milliseconds_since(start) for start, end in marks)

    def layer_times(self, batch: Arrays) -> dict[str, float]:
        """Return the time of each layer in one request for `batch`, in milliseconds: the median of several runs.

        Each layer is timed separately, so their sum exceeds the time of a request.
        """
        request = self._request()
        request.load(batch)
        request()
        runs = [request.profile() for _ in range(_PROFILED)]
        request.close()
        return {name: median(run.get(name, 0.0) for run in runs) for name in runs[0]}

    def layers_json(self) -> str:
        """Return the layers as JSON from TensorRT's inspector; kind, dtypes and tactic need an engine built with details."""
        inspector = self._engine.create_engine_inspector()
        text: str = inspector.get_engine_information(self._api.LayerInformationFormat.JSON)
        return text

    def close(self) -> None:
        """Free the requests with their contexts, then the engine, then the runtime."""
        for request in list(self._requests):
            request.close()
        self._engine = None
        self._runtime = None

    def _request(self) -> Request:
        request = Request(self._api, self._engine, self.inputs, self.outputs, self._explain)
        self._requests.add(request)
        return request

    def _explain(self, what: str) -> EngineError:
        said = list(self._said)
        self._said.clear()
        return EngineError(": ".join([what, *said]))


@cache
def _listen(api: ModuleType) -> tuple[Any, deque[str]]:
    """Return the logger that all runners share, since TensorRT keeps the first of a process, and its latest errors."""
    said: deque[str] = deque(maxlen=3)

    def hear(severity: str, text: str) -> None:
        if severity.endswith("ERROR"):
            said.append(text)

    return make_logger(api, hear), said
