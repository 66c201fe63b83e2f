"""The frozen records of TensorRT engines: what they are built with, bound to, and made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Runtime = Literal["tensorrt", "tensorrt_rtx"]


@dataclass(frozen=True)
class ShapeRange:
    """The shapes of one input that an engine takes, and the one that it is fastest for."""

    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """Whether there is one shape alone."""
        return self.minimum == self.maximum


@dataclass(frozen=True)
class BuildSettings:
    """How an engine is built: the optimization profile by input name, and what the builder may use.

    `workspace_mb` is the scratch memory of a layer on the device, None for all there is. `tf32` lets float32 products be
    computed in TF32, as TensorRT does unless it is told otherwise. `compute_capabilities` such as "8.9" are those that
    `tensorrt_rtx` builds for ahead of time; empty for the GPU of this machine.
    """

    profile: dict[str, ShapeRange] = field(default_factory=dict)
    workspace_mb: int | None = None
    tf32: bool = True
    compute_capabilities: tuple[str, ...] = ()


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine: its kind, the dtypes ("int8", "fp8", "int4", "float16", "float32", ...) that it reads and writes.

    `inputs` and `outputs` are those of tensors, `constants` those of weights; `nodes` the names of the ONNX nodes that went
    into it. `microseconds` is its time in one request, None where nothing was run.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    nodes: tuple[str, ...]
    microseconds: float | None = None


@dataclass(frozen=True)
class EngineManifest:
    """What an engine is bound to: loaded anywhere else it would fail, or be another one than was approved.

    `gpu` and `driver` are None for one that was built ahead of time. Digests are sha256 of the portable ONNX file with its
    external data, of the engine and of the timing cache.
    """

    runtime: Runtime
    runtime_version: str
    gpu: str | None
    compute_capability: str
    driver: str | None
    build: BuildSettings
    onnx_digest: str
    engine_digest: str
    timing_cache_digest: str | None = None


@dataclass(frozen=True)
class Engine:
    """A built engine: the file, what it is bound to, the builder's log, the timing cache, and its layers as told."""

    path: Path
    manifest: EngineManifest
    log: Path
    timing_cache: Path | None = None
    layers: tuple[EngineLayer, ...] = ()
