"""Builds by TensorRT-RTX ahead of time, in a process of its own: what its parser says, and the layers that its builder made.

`python real_builds.py MODEL.onnx...` prints one JSON object a line. One logger serves a whole process, so that all models of a
test module go through one.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Sizes that stand in for the unknown ones of an input: least, best, most.
PROFILE = (1, 8, 16)
TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[(.*?)\],.*?Datatype: (.*?),")
# Kinds of layers that multiply by a kernel of one type; Myelin calls convolutions correlations. What it fuses with the
# dequantizing of a factor is a `runtime_fusion`, which reads integers and multiplies floats.
PRODUCTS = frozenset({"gemm", "correlation"})
LOW = frozenset({"Int8", "FP8", "Int4"})


@dataclass(frozen=True)
class BuiltLayer:
    """A line of the `Layers:` text: data types as TensorRT writes them (`Int8`, `Half`, `Float`, `FP8`, `Int4`)."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    tactic: str
    nodes: tuple[str, ...]
    constant_shapes: tuple[list[int], ...]


@dataclass(frozen=True)
class Built:
    """What came of one model: errors of the parser and of the builder, warnings, layers; an engine or not."""

    errors: tuple[str, ...]
    warnings: tuple[str, ...]
    layers: tuple[BuiltLayer, ...]
    engine: bool

    def of(self, node: str) -> list[BuiltLayer]:
        """The layers that an ONNX node went into."""
        found = [layer for layer in self.layers if node in layer.nodes]
        assert found, f"{node}: no layer among {[(layer.kind, layer.nodes) for layer in self.layers]}"
        return found

    def multiplies_integers(self, node: str) -> bool:
        """Whether an ONNX node became a kernel whose two factors both have few bits."""
        return any(
            layer.kind in PRODUCTS and sum(kind in LOW for kind in (*layer.inputs, *layer.constants)) == 2
            for layer in self.of(node)
        )

    def reads(self, node: str, kind: str) -> bool:
        """Whether a layer of an ONNX node reads this type."""
        return any(kind in (*layer.inputs, *layer.constants) for layer in self.of(node))

    @property
    def types(self) -> set[str]:
        """All types that any layer reads or writes."""
        return {kind for layer in self.layers for kind in (*layer.inputs, *layer.constants, *layer.outputs)}

    @property
    def constant_shapes(self) -> list[list[int]]:
        """The shapes of all constants that layers read."""
        return [shape for layer in self.layers for shape in layer.constant_shapes]


def build(*paths: Path) -> list[Built]:
    """Build each model for compute capability 8.9."""
    command = [sys.executable, __file__, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [_read(json.loads(line)) for line in done.stdout.splitlines()]


def read_layers(text: str) -> tuple[BuiltLayer, ...]:
    """The layers of the message of TensorRT-RTX 1.7.1 that begins with `Layers:`."""
    return tuple(_layer(line) for line in text.splitlines() if line.startswith("Name: "))


def _layer(line: str) -> BuiltLayer:
    # Jumps and waits have fields of their own before the last.
    head, kind, inputs, constants, outputs, tactic, metadata = re.fullmatch(
        r"Name: (.*?), LayerType: (\w+), Inputs: \[(.*?)\], Constants: \[(.*?)\], Outputs: \[(.*?)\]"
        r", TacticName: (.*?), StreamId: .*?Metadata: (.*)",
        line,
    ).groups()  # type: ignore[union-attr]  # no match fails the test
    types = [tuple(kind for _, _, kind in TENSOR.findall(part)) for part in (inputs, constants, outputs)]
    shapes = tuple([int(size) for size in sizes.split(",") if size] for _, sizes, _ in TENSOR.findall(constants))
    return BuiltLayer(head, kind, *types, tactic, tuple(re.findall(r"\[ONNX Layer: (.*?)\]", metadata)), shapes)


def _read(document: dict[str, Any]) -> Built:
    layers = next((text for _, text in document["messages"] if text.startswith("Layers:")), "")
    logged = {
        level: tuple(text for found, text in document["messages"] if found in level)
        for level in (("ERROR", "INTERNAL_ERROR"), ("WARNING",))
    }
    errors = (*document["parser"], *logged["ERROR", "INTERNAL_ERROR"])
    return Built(errors, logged["WARNING",], read_layers(layers), document["engine"])


def _build_here(paths: Sequence[str]) -> None:
    import tensorrt_rtx as trt

    # The library writes some errors to standard output, past its logger.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    class Logger(trt.ILogger):  # type: ignore[misc]  # a class of a module known at run time
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.messages: list[tuple[str, str]] = []

        def log(self, severity: Any, message: str) -> None:
            self.messages.append((severity.name, message))

    logger = Logger()
    for path in paths:
        logger.messages.clear()
        builder = trt.Builder(logger)
        network = builder.create_network(0)
        parser = trt.OnnxParser(network, logger)
        engine = None
        if parser.parse_from_file(path):
            engine = builder.build_serialized_network(network, _settings(trt, builder, network))
        found = [parser.get_error(index) for index in range(parser.num_errors)]
        document = {
            "parser": [f"{error.node_name()} [{error.node_operator()}]: {error.desc()}" for error in found],
            "messages": logger.messages,
            "engine": engine is not None,
        }
        print(json.dumps(document), file=answers, flush=True)


def _settings(trt: Any, builder: Any, network: Any) -> Any:
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    shapes = {
        network.get_input(index).name: list(network.get_input(index).shape) for index in range(network.num_inputs)
    }
    for name, shape in shapes.items():
        profile.set_shape(name, *([size if dim < 0 else dim for dim in shape] for size in PROFILE))
    if any(-1 in shape for shape in shapes.values()):
        config.add_optimization_profile(profile)
    return config


if __name__ == "__main__":
    _build_here(sys.argv[1:])
