"""A stand-in for TensorRT that computes with numpy on the memory of `fake_cuda`: see `test_engine_run.py`.

Its classes have no member that TensorRT's pinned bindings lack, and their methods the same arguments: `limited` compares
them with `tensorrt_api.json` when this file is loaded.
"""

from __future__ import annotations

import enum
import inspect
import json
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
from fake_cuda import Error, FakeCuda
from numpy.typing import NDArray

API = json.loads(Path(__file__).with_name("tensorrt_api.json").read_text(encoding="utf-8"))
DataType, TensorIOMode, TensorLocation, LayerInformationFormat = (
    enum.Enum(name, API["enums"][name])  # type: ignore[misc]  # names are known at run time
    for name in ("DataType", "TensorIOMode", "TensorLocation", "LayerInformationFormat")
)
NUMPY = {
    "FLOAT": "f4",
    "HALF": "f2",
    "INT8": "i1",
    "INT32": "i4",
    "INT64": "i8",
    "BOOL": "?",
    "UINT8": "u1",
    "FP8": "u1",
}
Arrays = dict[str, NDArray[Any]]
Kind = TypeVar("Kind", bound=type)
# The time of one run on the fake's clock.
RUN_MS = 2.5


def limited(found: Kind) -> Kind:
    """The class itself, once each public member is one of the real class's, with its arguments."""
    real = API["classes"][found.__name__]
    for name, member in vars(found).items():
        if name.startswith("_") and name != "__init__":
            continue
        if isinstance(member, property):
            assert name in real["properties"], f"{found.__name__}.{name}"
        elif name in real["methods"]:
            ours = list(inspect.signature(member).parameters)
            overloads = [text.rpartition(" -> ")[0].split(", ") for text in real["methods"][name]]
            # What has a default may be left out, and then cannot be given.
            needed = [[one for one in overload if not one.endswith("?")] for overload in overloads]
            assert ours in overloads + needed, f"{found.__name__}.{name}{ours}"
        else:
            assert name == "__init__", f"{found.__name__}.{name}"
    return found


@dataclass(frozen=True)
class Port:
    """An input with the shapes of its profile, or an output, whose shape is `of` the inputs' shapes and host inputs."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    minimum: tuple[int, ...] = ()
    maximum: tuple[int, ...] = ()
    of: Callable[[dict[str, tuple[int, ...]], Arrays], tuple[int, ...]] | None = None
    on_host: bool = False


@dataclass(frozen=True)
class Model:
    """What a plan stands for: `compute` gives outputs for inputs. `layers` are (name, ms) as a profiler hears them."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    compute: Callable[[Arrays], Arrays]
    capturable: bool = True
    layers: tuple[tuple[str, float], ...] = ()
    makes_contexts: bool = True

    def port(self, name: str) -> Port:
        return next(one for one in (*self.inputs, *self.outputs) if one.name == name)


@limited
class ILogger:
    def __init__(self) -> None:
        self._base_made = True

    def log(self, severity: Any, msg: str) -> None:
        raise NotImplementedError


@limited
class IProfiler:
    def __init__(self) -> None:
        self._base_made = True

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        raise NotImplementedError


class Severity(enum.Enum):
    ERROR = 1


@limited
class IExecutionContext:
    def __init__(self, model: Model, cuda: FakeCuda, logger: ILogger) -> None:
        self._model, self._cuda, self._logger = model, cuda, logger
        self._shapes = {port.name: port.shape for port in model.inputs if -1 not in port.shape}
        self._addresses: dict[str, int] = {}
        self._profiler: IProfiler | None = None
        self._fresh = True
        # Whatever is captured at one version is undefined at another.
        self._version = 0

    @property
    def profiler(self) -> IProfiler | None:
        return self._profiler

    @profiler.setter
    def profiler(self, value: IProfiler) -> None:
        assert value._base_made
        self._profiler = value

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        port = self._model.port(name)
        low, high = port.minimum or port.shape, port.maximum or port.shape
        if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
            self._logger.log(Severity.ERROR, f"{name}: out of the profile")
            return False
        self._shapes[name] = tuple(shape)
        self._fresh, self._version = True, self._version + 1
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._addresses[name] = memory
        self._version += 1
        return memory != 0

    def infer_shapes(self) -> list[str]:
        hidden = [port.name for port in self._model.inputs if port.on_host and port.name not in self._addresses]
        return hidden + [port.name for port in self._model.inputs if port.name not in self._shapes]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        port = self._model.port(name)
        if port.of is None:
            return self._shapes.get(name, port.shape)
        return port.of(self._shapes, {one.name: self._read(one) for one in self._model.inputs if one.on_host})

    def execute_async_v3(self, stream_handle: int) -> bool:
        queue = self._cuda.streams[stream_handle]
        if self.infer_shapes() or {one.name for one in (*self._model.inputs, *self._model.outputs)} - set(
            self._addresses
        ):
            self._logger.log(Severity.ERROR, "a tensor has no shape or address")
            return False
        if queue.recorded is not None and (self._fresh or not self._model.capturable):
            queue.invalid = True
            self._logger.log(Severity.ERROR, "operation not permitted when stream is capturing")
            return False
        self._fresh = False
        version, alive, cuda = self._version, weakref.ref(self), self._cuda

        def work() -> None:
            context = alive()
            if context is None or context._version != version:
                cuda.broken = Error.cudaErrorIllegalAddress
                return
            context._compute()

        queue.put(work)
        if self._profiler is not None:
            for one in queue.waiting:
                one()
            queue.waiting.clear()
            for name, ms in self._model.layers:
                self._profiler.report_layer_time(name, ms)
        return True

    def _memory(self, port: Port) -> NDArray[Any]:
        shape = self.get_tensor_shape(port.name)
        size = int(np.prod(shape, dtype=int)) * np.dtype(NUMPY[port.dtype]).itemsize
        raw = self._cuda.find(self._addresses[port.name], size, on_host=port.on_host)
        assert raw is not None, f"{port.name}: no such memory"
        return raw.view(NUMPY[port.dtype]).reshape(shape)

    def _read(self, port: Port) -> NDArray[Any]:
        return self._memory(port).copy()

    def _compute(self) -> None:
        answers = self._model.compute({port.name: self._read(port) for port in self._model.inputs})
        for port in self._model.outputs:
            self._memory(port)[...] = answers[port.name]
        self._cuda.clock += RUN_MS


@limited
class EngineInspector:
    def __init__(self, model: Model) -> None:
        self._model = model

    def get_engine_information(self, format: Any) -> str:  # noqa: A002 - the real name
        assert format is LayerInformationFormat.JSON
        return json.dumps({"Layers": [name for name, _ in self._model.layers]})


@limited
class ICudaEngine:
    def __init__(self, model: Model, cuda: FakeCuda, logger: ILogger, fake: FakeTensorRT) -> None:
        self._model, self._cuda, self._logger, self._fake = model, cuda, logger, fake
        self._ports = (*model.inputs, *model.outputs)

    @property
    def num_io_tensors(self) -> int:
        return len(self._ports)

    def get_tensor_name(self, index: int) -> str:
        return self._ports[index].name

    def get_tensor_mode(self, name: str) -> Any:
        is_input = name in [port.name for port in self._model.inputs]
        return TensorIOMode.INPUT if is_input else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return DataType[self._model.port(name).dtype]

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self._model.port(name).shape

    def get_tensor_location(self, name: str) -> Any:
        return TensorLocation.HOST if self._model.port(name).on_host else TensorLocation.DEVICE

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[tuple[int, ...]]:
        assert profile_index == 0
        port = self._model.port(name)
        return [port.minimum, port.maximum, port.maximum]

    def create_execution_context(self) -> IExecutionContext | None:
        if not self._model.makes_contexts:
            self._logger.log(Severity.ERROR, "no room for the context")
            return None
        context = IExecutionContext(self._model, self._cuda, self._logger)
        self._fake.contexts += 1
        weakref.finalize(context, self._fake.ended.append, "context")
        return context

    def create_engine_inspector(self) -> EngineInspector:
        return EngineInspector(self._model)


class FakeTensorRT:
    """The module's parts: `plans` that it can load, how many `contexts` were made, and what has `ended`, in order."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.plans: dict[bytes, Model] = {}
        self.ended: list[str] = []
        self.contexts = 0

    def module(self, name: str = "tensorrt") -> ModuleType:
        """To be imported under that name."""
        fake = self

        @limited
        class Runtime:
            def __init__(self, logger: ILogger) -> None:
                assert logger._base_made, "pybind11 wants the base made"
                self._logger = logger
                weakref.finalize(self, fake.ended.append, "runtime")

            def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
                model = fake.plans.get(serialized_engine)
                if model is None:
                    self._logger.log(Severity.ERROR, "the version tag does not match")
                    return None
                engine = ICudaEngine(model, fake.cuda, self._logger, fake)
                weakref.finalize(engine, fake.ended.append, "engine")
                return engine

        module = ModuleType(name)
        vars(module).update(
            __version__="11.4.0.106",
            ILogger=ILogger,
            IProfiler=IProfiler,
            Runtime=Runtime,
            DataType=DataType,
            TensorIOMode=TensorIOMode,
            TensorLocation=TensorLocation,
            LayerInformationFormat=LayerInformationFormat,
        )
        return module
