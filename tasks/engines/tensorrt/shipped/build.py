"""Build of a serialized engine from an ONNX file.

Signatures are those of `tensorrt` 11.4 and `tensorrt_rtx` 1.7. They differ in one respect here: `tensorrt_rtx` can build for
named compute capabilities, without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from .api import load_api, make_logger, runtime_of

# (minimum, optimum, maximum) of one input.
Shapes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class NodeError:
    """Parser error of one node: its index in the file, name and operator, and the code and text of the error."""

    index: int
    name: str
    operator: str
    code: str
    text: str


@dataclass(frozen=True)
class Plan:
    """Result of a build: the serialized engine, or None with the reasons in `errors` (of the parser) and `messages`.

    `messages` are (severity, text) in order. `layers` is the inspector's JSON, None if the engine could not be inspected.
    """

    version: str
    engine: bytes | None
    timing_cache: bytes | None
    messages: tuple[tuple[str, str], ...]
    errors: tuple[NodeError, ...] = ()
    layers: str | None = None


def build_plan(
    onnx: str,
    *,
    profile: dict[str, Shapes],
    workspace_mb: int | None = None,
    tf32: bool = True,
    compute_capabilities: tuple[str, ...] = (),
    values: dict[str, Shapes] | None = None,
    timing_cache: bytes | None = None,
    on_message: Callable[[str, str], None] | None = None,
    parse_only: bool = False,
) -> Plan:
    """Parse a file with its external data, and build its engine for this machine's GPU or for compute capabilities.

    With `parse_only` there is no engine, and errors of the parser alone.

    `profile` gives the shape range of each input. `values` gives the range of the integers in an input, element by element,
    where these decide shapes (shape tensors). `timing_cache` is the content of an earlier timing cache. `on_message` receives
    every message immediately, so that the messages survive a crash of the builder.

    Raises:
        ImportError: TensorRT is missing; `compute_capabilities` such as "8.9" require `tensorrt_rtx`.
    """
    api = load_api("tensorrt_rtx" if compute_capabilities else None)
    messages: list[tuple[str, str]] = []

    def hear(severity: str, text: str) -> None:
        messages.append((severity, text))
        if on_message:
            on_message(severity, text)

    logger = make_logger(api, hear)
    engine, cache, layers = None, None, None
    errors: tuple[NodeError, ...] = ()
    try:
        builder = api.Builder(logger)
        network = builder.create_network(0)
        parser = api.OnnxParser(network, logger)
        if not parser.parse_from_file(onnx):
            errors = tuple(_node_error(parser.get_error(index)) for index in range(parser.num_errors))
        elif not parse_only:
            config = _configure(api, builder, workspace_mb, tf32, compute_capabilities)
            _add_profile(builder, network, config, profile, values or {})
            timed = _TimingCache(api, config, timing_cache)
            built = builder.build_serialized_network(network, config)
            engine, cache = (bytes(built), timed.serialized()) if built is not None else (None, None)
        if engine and not compute_capabilities:
            layers = _inspect(api, logger, engine)
    except (RuntimeError, ValueError, TypeError) as error:  # from pybind11, for null pointers and rejected arguments
        hear("ERROR", f"{type(error).__name__}: {error}")
    return Plan(api.__version__, engine, cache, tuple(messages), errors, layers)


def merge_timing_caches(first: bytes, second: bytes) -> bytes:
    """Merge two timing caches that `tensorrt` wrote on this GPU, keeping the entries of both.

    Raises:
        ImportError: TensorRT is missing.
        RuntimeError: TensorRT does not merge them.
    """
    api = load_api("tensorrt")
    said: list[str] = []
    logger = make_logger(api, lambda severity, text: said.append(f"{severity}: {text}"))
    config = api.Builder(logger).create_builder_config()
    cache, other = config.create_timing_cache(first), config.create_timing_cache(second)
    if cache is None or other is None or not cache.combine(other, False):
        raise RuntimeError("timing caches were not merged: " + " ".join(said))
    return bytes(cache.serialize())


def _configure(
    api: ModuleType,
    builder: Any,
    workspace_mb: int | None,
    tf32: bool,
    compute_capabilities: tuple[str, ...],
) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = api.ProfilingVerbosity.DETAILED
    if workspace_mb is not None:
        config.set_memory_pool_limit(api.MemoryPoolType.WORKSPACE, workspace_mb * 2**20)
    if not tf32:
        config.clear_flag(api.BuilderFlag.TF32)
    if compute_capabilities:
        config.num_compute_capabilities = len(compute_capabilities)
        for index, name in enumerate(compute_capabilities):
            config.set_compute_capability(getattr(api.ComputeCapability, f"SM{name.replace('.', '')}"), index)
    return config


def _add_profile(
    builder: Any, network: Any, config: Any, profile: dict[str, Shapes], values: dict[str, Shapes]
) -> None:
    """Add the optimization profile that dynamic shapes and shape tensors need; without either there is none."""
    inputs = [network.get_input(index) for index in range(network.num_inputs)]
    if not any(tensor.is_shape_tensor or -1 in tuple(tensor.shape) for tensor in inputs):
        return
    shapes = builder.create_optimization_profile()
    for tensor in inputs:
        if tensor.is_shape_tensor:
            if tensor.name in values:
                shapes.set_shape_input(tensor.name, *values[tensor.name])
        elif tensor.name in profile:
            shapes.set_shape(tensor.name, *profile[tensor.name])
    config.add_optimization_profile(shapes)


class _TimingCache:
    """Timing cache of the builder. `tensorrt_rtx` times nothing in a build, and since 1.2 its cache has no effect."""

    def __init__(self, api: ModuleType, config: Any, content: bytes | None) -> None:
        self._config = config if runtime_of(api) == "tensorrt" else None
        if self._config is not None:
            cache = self._config.create_timing_cache(content) if content else None
            # A cache of another device or version, or a truncated one, is replaced by an empty one.
            cache = cache or self._config.create_timing_cache(b"")
            self._config.set_timing_cache(cache, False)

    def serialized(self) -> bytes | None:
        cache = self._config.get_timing_cache() if self._config is not None else None
        return bytes(cache.serialize()) if cache is not None else None


def _inspect(api: ModuleType, logger: Any, engine: bytes) -> str | None:
    """Return the inspector's JSON of an engine for this machine's GPU; None if it does not load."""
    loaded = api.Runtime(logger).deserialize_cuda_engine(engine)
    if loaded is None:
        return None
    text: str = loaded.create_engine_inspector().get_engine_information(api.LayerInformationFormat.JSON)
    return text


def _node_error(error: Any) -> NodeError:
    return NodeError(error.node(), error.node_name(), error.node_operator(), error.code().name, error.desc())
