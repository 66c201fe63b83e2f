"""Frozen records of TensorRT engines: build settings, manifest and layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class ShapeRange:
    """The range of shapes of one input that an engine accepts, and the shape that it is optimized for."""

    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """True if the range contains only one shape."""
        return self.minimum == self.maximum


@dataclass(frozen=True)
class BuildSettings:
    """Build settings of an engine: the optimization profile by input name, and the builder's options.

    `workspace_mb` limits the scratch memory of a layer on the device; None for all of it. `tf32` allows TF32 for float32
    products, TensorRT's default. `compute_capabilities`, such as "8.9", are the targets of an ahead-of-time build by
    `tensorrt_rtx`; empty for the GPU of this machine. `values` are ranges of the integers in inputs, by name, which TensorRT
    reads where they decide shapes.
    """

    profile: dict[str, ShapeRange] = field(default_factory=dict)
    workspace_mb: int | None = None
    tf32: bool = True
    compute_capabilities: tuple[str, ...] = ()
    values: dict[str, ShapeRange] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine: its kind, and the dtypes that it reads and writes ("int8", "fp8", "int4", "float16", ...).

    `inputs` and `outputs` are the dtypes of tensors, `constants` those of weights. `nodes` names the ONNX nodes fused into the
    layer. `microseconds` is its time in one request; None if the engine did not run.
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
    """The runtime and device of an engine: loaded elsewhere it would fail, or not be the approved engine.

    `gpu` and `driver` are None for an ahead-of-time build. Digests are sha256 of the portable ONNX file with its external data,
    of the engine and of the timing cache.
    """

    runtime: str
    runtime_version: str
    gpu: str | None
    compute_capability: str
    driver: str | None
    build: BuildSettings
    onnx_digest: str
    engine_digest: str
    timing_cache_digest: str | None = None


@dataclass(frozen=True)
class BuiltEngine:
    """A built engine: file, manifest, builder log, timing cache, and the layers that TensorRT reports."""

    path: Path
    manifest: EngineManifest
    log: Path
    timing_cache: Path | None = None
    layers: tuple[EngineLayer, ...] = ()
