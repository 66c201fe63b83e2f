"""One batch on an engine: its execution context, its buffers, and its CUDA graph.

Each request has its own context: a graph becomes undefined once the context that it was captured from gets other shapes or
addresses (NVIDIA TensorRT documentation, "CUDA Graphs").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cuda import CudaError, DeviceMemory, Graph, HostMemory, Stream
from .tensors import Arrays, EngineError, Tensor, refuse_batch

# Makes an error from a description of the failure and TensorRT's latest messages.
Explain = Callable[[str], EngineError]


class Buffer:
    """Memory for one tensor, on the host and, unless the tensor is `on_host`, on the GPU; it grows and never shrinks."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.shape: tuple[int, ...] = ()
        self._host: HostMemory | None = None
        self._device: DeviceMemory | None = None

    def resize(self, shape: tuple[int, ...]) -> None:
        """Make room for this shape; the address may change.

        Raises:
            CudaError: out of memory.
        """
        self.shape = shape
        if self._host is None or self._host.size_bytes < self.size_bytes:
            self.free()
            host = HostMemory(self.size_bytes)
            # Set both or neither: the second allocation may fail.
            self._device = None if self.tensor.on_host else DeviceMemory(self.size_bytes)
            self._host = host

    @property
    def size_bytes(self) -> int:
        """Size of the tensor at its present shape."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.tensor.dtype).itemsize

    @property
    def address(self) -> int:
        """Address at which TensorRT reads or writes the tensor."""
        memory = self._device or self._host
        assert memory is not None
        return memory.address

    @property
    def array(self) -> NDArray[Any]:
        """View of the host memory as an array of the tensor's dtype and shape."""
        assert self._host is not None
        return self._host.view(self.tensor.dtype, self.shape)

    def upload(self, stream: Stream) -> None:
        """Queue the copy from the host to the GPU."""
        if self._device is not None and self._host is not None:
            stream.upload(self._device, self._host, self.size_bytes)

    def download(self, stream: Stream) -> None:
        """Queue the copy from the GPU to the host."""
        if self._device is not None and self._host is not None:
            stream.download(self._host, self._device, self.size_bytes)

    def free(self) -> None:
        """Free the memory on both sides."""
        for memory in (self._device, self._host):
            if memory is not None:
                memory.free()
        self._device = self._host = None


class Request:
    """A batch bound to a context; calling it runs the engine on the inputs on the GPU, and waits for the end.

    `why_not_captured` is None if the kernels are launched as one CUDA graph; else it is the reason why they are queued one by
    one.
    """

    def __init__(
        self,
        api: ModuleType,
        engine: Any,
        inputs: tuple[Tensor, ...],
        outputs: tuple[Tensor, ...],
        explain: Explain,
    ) -> None:
        """Create a request without a batch.

        Raises:
            CudaError: CUDA creates no stream.
            EngineError: TensorRT creates no execution context, for example for lack of memory.
        """
        self.stream = Stream()
        self.why_not_captured: str | None = "not asked for"
        self._api, self._inputs, self._outputs, self._explain = api, inputs, outputs, explain
        self._buffers = {tensor.name: Buffer(tensor) for tensor in (*inputs, *outputs)}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._graph: Graph | None = None
        self._profiler: Any = None
        self._context = engine.create_execution_context()
        if self._context is None:
            raise explain("TensorRT cannot create an execution context")

    def __call__(self) -> None:
        """Run the engine and wait.

        Raises:
            CudaError: a kernel fails.
            EngineError: TensorRT does not run it.
        """
        self.launch()
        self.stream.synchronize()

    def load(self, batch: Arrays) -> None:
        """Set the shapes of a batch, and queue its copy to the GPU. Earlier work must be done.

        Raises:
            ValueError: the batch does not fit the engine.
            EngineError: TensorRT refuses the shapes, or the shape of an output depends on values.
        """
        refuse_batch(self._inputs, batch)
        shapes = {tensor.name: batch[tensor.name].shape for tensor in self._inputs}
        known = shapes == self._shapes and not any(tensor.on_host for tensor in self._inputs)
        if not known:
            self._shapes = {}  # a failure from here on leaves a context whose shapes must all be set again
        for name, shape in shapes.items():
            self._buffers[name].resize(shape)
            self._buffers[name].array[...] = batch[name]
        if not known:
            self._specify(shapes)
        for tensor in self._inputs:
            self._buffers[tensor.name].upload(self.stream)

    def _specify(self, shapes: dict[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            if not self._context.set_input_shape(name, shape):
                raise self._explain(f"TensorRT rejects shape {shape} for {name}")
            self._give(name)
        lacking = self._context.infer_shapes()
        if lacking:
            raise self._explain(f"TensorRT cannot infer the shapes of {lacking}")
        for tensor in self._outputs:
            shape = tuple(self._context.get_tensor_shape(tensor.name))
            if min(shape, default=0) < 0:
                raise EngineError(
                    f"found output {tensor.name} of shape {shape}, which depends on the values of the inputs; expected one "
                    "that depends on their shapes alone; end the model before NonZero, NonMaxSuppression or the like"
                )
            self._buffers[tensor.name].resize(shape)
            self._give(tensor.name)
        self._shapes = shapes

    def _give(self, name: str) -> None:
        if not self._context.set_tensor_address(name, self._buffers[name].address):
            raise self._explain(f"TensorRT rejects the memory for {name}")

    def enqueue(self) -> None:
        """Queue the kernels one by one.

        Raises:
            EngineError: TensorRT refuses to run the engine.
        """
        if not self._context.execute_async_v3(self.stream.address):
            raise self._explain("TensorRT does not run the engine")

    def capture(self) -> None:
        """Record the kernels as a CUDA graph if possible; else set `why_not_captured`.

        Raises:
            EngineError, CudaError: the engine does not run at all.
        """
        # The first run after new shapes updates the context, which cannot be recorded.
        self.enqueue()
        self.stream.synchronize()
        try:
            self._graph = self.stream.capture(self.enqueue)
            self.why_not_captured = None
        except (CudaError, EngineError) as error:
            self.why_not_captured = str(error)
            self()

    def launch(self) -> None:
        """Queue the graph, or the kernels one by one."""
        if self._graph is not None:
            self.stream.launch(self._graph)
        else:
            self.enqueue()

    def fetch(self, outputs: Sequence[str]) -> list[NDArray[Any]]:
        """Wait for all queued work and return copies of the named outputs."""
        for name in outputs:
            self._buffers[name].download(self.stream)
        self.stream.synchronize()
        return [self._buffers[name].array.copy() for name in outputs]

    def profile(self) -> dict[str, float]:
        """Run once with each layer timed separately; return milliseconds by layer name, summed if a layer runs repeatedly."""
        times: dict[str, float] = {}
        self._profiler = _make_profiler(self._api, times)
        self._context.profiler = self._profiler
        self.enqueue()
        self.stream.synchronize()
        return times

    def close(self) -> None:
        """Free the graph, the context and the memory, in this order; a second call does nothing."""
        self._graph = self._context = self._profiler = None
        for buffer in self._buffers.values():
            buffer.free()
        self.stream.free()


def _make_profiler(api: ModuleType, times: dict[str, float]) -> Any:
    class Profiler(api.IProfiler):  # type: ignore[name-defined, misc]  # a class of a module known at run time
        def __init__(self) -> None:
            api.IProfiler.__init__(self)

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            times[layer_name] = times.get(layer_name, 0.0) + ms

    return Profiler()
