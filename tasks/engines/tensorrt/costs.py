"""Costs of models by the engines that TensorRT builds from them: microseconds on a GPU, else counts of layers.

Quantization adds layers: those that only quantize, and those that hold a bias and an activation which the float engine computes
inside the product. A layer without products is added if no such layer of the float engine names one of its nodes. With
TensorRT-RTX 1.7.1, an added layer follows almost every convolution in INT8; quantization after a layer norm is fused with it.

Without a GPU no layer has a time, and a product in low precision may be worth its added layer. There only products that have
pairs and yet run in float are counted as slow: they gain nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from tasks.engines.tensorrt.build import build_engine
from tasks.engines.tensorrt.coverage import kernel_of_layer, kernels_of_nodes
from tasks.engines.tensorrt.layers import parse_layers_json, with_times
from tasks.engines.tensorrt.runner import inspect_engine, request_ms
from tasks.runtimes.kernels import ROUNDS, Costs
from validators.errors import CandidateRefused
from validators.records.engines import BuildSettings, BuiltEngine, EngineLayer
from validators.records.measurements import UNNAMED
from validators.records.run import Gpu
from validators.samples.datasets import Arrays

PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})


@dataclass
class EngineCosts:
    """Measures forms of the model `in_float` by their engines, of which each is built once, into a folder beside its file.

    With `gpu`, the engine of the only entry of `builds` runs `batch` there. Without, there is one entry for each compute
    capability, and the layers that the builder reports are counted. `timing_caches`: see `build_engine`.
    """

    builds: Sequence[BuildSettings]
    gpu: Gpu | None
    batch: Arrays
    in_float: Path
    timing_caches: Path | None = None
    _built: dict[Path, list[BuiltEngine]] = field(default_factory=dict)

    def __call__(self, models: Sequence[Path]) -> list[Costs]:
        """Return the costs of each model.

        Raises:
            CandidateRefused: TensorRT does not build or run an engine, or computes each product with pairs in float.
        """
        return self._timed(models) if self.gpu else self._counted(models)

    def _engines(self, model: Path) -> list[BuiltEngine]:
        if model not in self._built:
            folders = [model.parent / f"{model.stem}-engine{index}" for index in range(len(self.builds))]
            self._built[model] = [
                build_engine(model, build, folder, gpu=self.gpu, timing_caches=self.timing_caches)
                for build, folder in zip(self.builds, folders, strict=True)
            ]
        return self._built[model]

    def _added(self, model: Path) -> list[tuple[EngineLayer, ...]]:
        pairs = zip(self._engines(model), self._engines(self.in_float), strict=True)
        return [added_layers(engine.layers, in_float.layers) for engine, in_float in pairs]

    def _counted(self, models: Sequence[Path]) -> list[Costs]:
        gains = [[_low_products(engine.layers) for engine in self._engines(model)] for model in models]
        # A product that the first model computes in low precision is a loss where another one does not.
        lost = [any(first - here for first, here in zip(gains[0], found, strict=True)) for found in gains]
        return [self._count(model, math.inf if loses else 0.0) for model, loses in zip(models, lost, strict=True)]

    def _count(self, model: Path, penalty: float) -> Costs:
        graph, engines = onnx.load(model, load_external_data=False).graph, self._engines(model)
        paired = _with_pairs(graph)
        wasted = [paired & _float_products(engine.layers) for engine in engines]
        if paired and all(found == paired for found in wasted):
            raise CandidateRefused(
                kind="unsupported",
                found=f"float kernels for each of {len(paired)} products with pairs, by the layers of the engine",
                expected="a product that TensorRT computes in low precision",
                fix="take fp16@tensorrt, or another precision",
            )
        # One file serves all compute capabilities: what one of them computes in low precision is not slow.
        slow = frozenset.intersection(*wasted)
        by_node = {node.name: float(node.name in slow) for node in graph.node if node.op_type in PRODUCTS}
        return Costs(by_node, sum(map(len, [*self._added(model), *wasted])) + penalty, timed=False)

    def _timed(self, models: Sequence[Path]) -> list[Costs]:
        found: list[list[Costs]] = [[] for _ in models]
        for _ in range(ROUNDS):
            for costs, model in zip(found, models, strict=True):
                costs.append(self._time(model))
        return [_shortest(costs) for costs in found]

    def _time(self, model: Path) -> Costs:
        (engine,), (in_float,) = self._engines(model), self._engines(self.in_float)
        told, milliseconds = inspect_engine(engine.path, self.batch)
        layers = with_times(parse_layers_json(told), milliseconds)
        graph = onnx.load(model, load_external_data=False).graph
        return Costs(product_times(graph, layers, in_float.layers), request_ms(engine.path, self.batch) * 1e3)


def added_layers(layers: Iterable[EngineLayer], in_float: Iterable[EngineLayer]) -> tuple[EngineLayer, ...]:
    """Return the layers that quantization added to those of the float engine.

    >>> def layer(kind, *nodes): return EngineLayer(kind, kind, (), (), (), "", nodes)
    >>> quantized = [layer("gemm", "a", "a_dequantize"), layer("kgen", "norm", "a_quantize"), layer("kgen", "a", "b_quantize")]
    >>> [one.nodes for one in added_layers(quantized, [layer("gemm", "a"), layer("kgen", "norm")])]
    [('a', 'b_quantize')]
    """
    apart = {name for layer in in_float if kernel_of_layer(layer) is None for name in layer.nodes}
    return tuple(
        layer for layer in layers if layer.nodes and kernel_of_layer(layer) is None and apart.isdisjoint(layer.nodes)
    )


def product_times(
    graph: onnx.GraphProto, layers: Sequence[EngineLayer], in_float: Iterable[EngineLayer]
) -> dict[str, float]:
    """Return the microseconds of each product of a graph: those of its layers and of added layers, divided where shared.

    An added layer belongs to the products that it names, and to those that read what its pairs convert.
    """
    served = _products_of_pairs(graph)
    products = {node.name for node in graph.node if node.op_type in PRODUCTS}
    times: dict[str, float] = {}
    for layer in layers:
        if kernel_of_layer(layer):
            _divide(times, layer, products.intersection(layer.nodes))
    for layer in added_layers(layers, in_float):
        found = products.intersection(layer.nodes).union(*(served.get(name, ()) for name in layer.nodes))
        _divide(times, layer, found & times.keys())
    return times


def _divide(times: dict[str, float], layer: EngineLayer, names: Collection[str]) -> None:
    for name in names:
        times[name] = times.get(name, 0.0) + (layer.microseconds or 0.0) / len(names)


def _low_products(layers: Iterable[EngineLayer]) -> frozenset[str]:
    return frozenset(name for name, kernel in kernels_of_nodes(layers).items() if kernel.is_low_precision)


def _float_products(layers: Iterable[EngineLayer]) -> frozenset[str]:
    """Return the products that are known to run in float: those in a kernel of unknown types may be integers."""
    kernels = kernels_of_nodes(layers)
    return frozenset(name for name, found in kernels.items() if not found.is_low_precision and found.name != UNNAMED)


def _with_pairs(graph: onnx.GraphProto) -> frozenset[str]:
    ends = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    return frozenset(node.name for node in graph.node if node.op_type in PRODUCTS and ends.issuperset(node.input[:2]))


def _products_of_pairs(graph: onnx.GraphProto) -> dict[str, frozenset[str]]:
    """Return the products that read the tensor of a QuantizeLinear or DequantizeLinear, through others of them, by its name."""
    served: dict[str, frozenset[str]] = {}
    behind: dict[str, frozenset[str]] = {}
    for node in reversed(graph.node):
        if node.op_type in PAIR:
            served[node.name] = behind.get(node.output[0], frozenset())
        reached = frozenset({node.name}) if node.op_type in PRODUCTS else served.get(node.name, frozenset())
        for name in node.input[: 1 if node.op_type in PAIR else 2]:
            behind[name] = behind.get(name, frozenset()) | reached
    return served


def _shortest(rounds: Sequence[Costs]) -> Costs:
    first = rounds[0]
    by_node = {name: min(costs.by_node[name] for costs in rounds) for name in first.by_node}
    return Costs(by_node, min(costs.total for costs in rounds))
