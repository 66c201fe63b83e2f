"""A stand-in for `tensorrt` 11, as far as a build needs it: what the library would do on a GPU, for the code around it.

A timing cache is JSON of what was timed. A build times the file's own name; the inspector tells of one layer.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

__version__ = "11.4.0.106"


class ILogger:
    pass


class ProfilingVerbosity:
    DETAILED = "detailed"


class MemoryPoolType:
    WORKSPACE = "workspace"


class BuilderFlag:
    TF32 = "tf32"


class LayerInformationFormat:
    JSON = "json"


class TimingCache:
    def __init__(self, content: bytes) -> None:
        self.timed: list[str] = json.loads(content or b"[]")

    def combine(self, other: TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.timed = sorted({*self.timed, *other.timed})
        return True

    def serialize(self) -> bytes:
        return json.dumps(self.timed).encode()


class Config:
    profiling_verbosity = ""

    def __init__(self) -> None:
        self.cache: TimingCache | None = None
        self.told: list[Any] = []

    def create_timing_cache(self, content: bytes) -> TimingCache | None:
        return None if content.startswith(b"garbage") else TimingCache(content)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        self.cache = cache
        return True

    def get_timing_cache(self) -> TimingCache:
        assert self.cache is not None
        return self.cache

    def set_memory_pool_limit(self, pool: str, size: int) -> None:
        self.told.append((pool, size))

    def clear_flag(self, flag: str) -> None:
        self.told.append(flag)

    def add_optimization_profile(self, profile: dict[str, Any]) -> int:
        self.told.append(profile)
        return 0


class Builder:
    def __init__(self, logger: Any) -> None:
        self.logger = logger

    def create_network(self, flags: int) -> SimpleNamespace:
        tensor = SimpleNamespace(name="x", shape=(-1, 32), is_shape_tensor=False)
        return SimpleNamespace(num_inputs=1, get_input=lambda index: tensor, file="")

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> Any:
        shapes: dict[str, Any] = {}
        return type("Profile", (dict,), {"set_shape": lambda self, name, *of: self.update({name: of})})(shapes)

    def build_serialized_network(self, network: SimpleNamespace, config: Config) -> bytes:
        self.logger.log(SimpleNamespace(name="INFO"), f"built with {json.dumps(config.told)}")
        cache = config.get_timing_cache()
        cache.timed = sorted({*cache.timed, network.file})
        return network.file.encode()


class OnnxParser:
    def __init__(self, network: SimpleNamespace, logger: Any) -> None:
        self.network = network

    def parse_from_file(self, model: str) -> bool:
        self.network.file = model.rpartition("/")[2]
        return True


class Runtime:
    def __init__(self, logger: Any) -> None:
        pass

    def deserialize_cuda_engine(self, engine: bytes) -> Any:
        layer = {"Name": engine.decode(), "LayerType": "gemm", "Metadata": "[ONNX Layer: o]"}
        tensors = {name: [{"Datatype": "Int8"}] for name in ("Inputs", "Constants", "Outputs")}
        text = json.dumps({"Layers": [layer | tensors]})
        inspector = SimpleNamespace(get_engine_information=lambda form: text)
        return SimpleNamespace(create_engine_inspector=lambda: inspector)
