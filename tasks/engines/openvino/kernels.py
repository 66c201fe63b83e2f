"""OpenVINO's kernels by node of the model, read from the graph that it executes.

`CompiledModel.get_runtime_model()` describes each executed step (OpenVINO documentation, "Runtime info"; read from version
2026.4): `layerType` such as `FullyConnected`, `primitiveType` such as `brgemm_avx512_i8`, which ends with the type that it
computes in (I8 is UINT8 as well), `execTimeMcs`, the mean of all requests so far, and `originalLayersNames`, the nodes of the
file that it stands for. Steps that ran before the first request, on constants alone, say `not_executed`.

A product has the name of its node, with a suffix after a slash, or the name of an operator that was fused into it: attention
becomes one step with the names of its softmax and of one of its products.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from tasks.runtimes.kernels import Kernel

INTEGERS = frozenset({"i8", "u8", "i4", "u4", "nf4", "i2", "u2"})
HALVES = frozenset({"bf16", "f16"})
# Mark of a kernel that reads stored integers as its weights, and multiplies floats.
WEIGHTS_ALONE = ", weights in "
# Mark of such a kernel where the file asks for integers on both sides.
ALONE = " alone"
# Mark of a product without pairs in a step that is named by the integers of another.
IN_FLOAT = " of floats"
# Steps that multiply. `Subgraph` is compiled on the spot: attention, or element by element.
PRODUCTS = frozenset(
    {
        "FullyConnected",
        "MatMul",
        "Convolution",
        "Deconvolution",
        "ScaledDotProductAttention",
        "ScaledDotProductAttentionWithKVCache",
        "Subgraph",
        "GatherMatmul",
    }
    | {"LSTMCell", "LSTMSequence", "GRUCell", "GRUSequence", "RNNCell", "RNNSequence"}
)


# Steps of several products, named by the type of the first.
SEVERAL = ("Subgraph", "ScaledDotProductAttention")


@dataclass(frozen=True)
class ExecutedStep:
    """One executed step of a compiled model: its name, kernel, nodes of the file, and the microseconds of a request."""

    name: str
    kernel: Kernel
    kind: str
    nodes: tuple[str, ...]
    microseconds: float


def executed_steps(
    compiled: Any, request: Callable[[], object], *, requests: int, warm_up: int, blocks: int = 1
) -> tuple[ExecutedStep, ...]:
    """Return the executed steps of a model compiled with `PERF_COUNT`, with their times in a request.

    A time is the mean over a block of `requests` requests, and the shortest of the blocks.
    """
    totals: list[dict[str, float]] = []
    for block in range(blocks + 1):
        for _ in range(requests if block else warm_up):
            request()
        done = warm_up + block * requests
        # The counter is the mean of all requests so far, so that the first one, which is slow, would stay in it.
        graph = list(_executed(compiled.get_runtime_model()))
        totals.append({step.get_friendly_name(): done * float(_told(step, "execTimeMcs")) for step in graph})
    before = {name: [total.get(name, 0.0) for total in totals] for name in totals[-1]}
    times = {name: min(np.diff(total)) / requests for name, total in before.items()}
    # Counters are whole microseconds.
    return tuple(_describe(step, max(0.0, times[step.get_friendly_name()])) for step in graph)


def _executed(graph: Any) -> Iterator[Any]:
    for step in graph.get_ordered_ops():
        if _told(step, "execTimeMcs").isdigit():
            yield step


def _told(step: Any, key: str) -> str:
    info = step.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _describe(step: Any, microseconds: float) -> ExecutedStep:
    kind, how = _told(step, "layerType"), _told(step, "primitiveType")
    # `runtimePrecision` is that of the weights where these are stored in another type.
    precision = how.rpartition("_")[2].lower()
    weights = [port.get_element_type().to_string() for port in list(step.inputs())[1:2]]
    stored = next((one for one in weights if one in INTEGERS and precision not in INTEGERS), "")
    kernel = Kernel(
        f"{kind} {how}" + (f"{WEIGHTS_ALONE}{stored}" if stored else ""),
        is_low_precision=precision in INTEGERS or bool(stored),
        is_half=precision in HALVES and not stored,
    )
    nodes = tuple(filter(None, _told(step, "originalLayersNames").split(",")))
    return ExecutedStep(step.get_friendly_name(), kernel, kind, nodes, microseconds)


def as_asked(graph: onnx.GraphProto, kernels: Mapping[str, Kernel]) -> dict[str, Kernel]:
    """Return the kernels of products, with those as float that are of low precision by the name of their step alone.

    A step that reads integer weights multiplies floats where the file has pairs on both sides, for example with scales along
    the summed axis. And a step that computes attention is named by its first inputs: a product without pairs runs in float.
    """
    constants = {tensor.name for tensor in graph.initializer}
    stored: set[str] = set()
    pairs: set[str] = set()
    for node in graph.node:
        if node.op_type == "DequantizeLinear" and not node.domain:
            (stored if node.input[0] in constants else pairs).add(node.output[0])
    found = dict(kernels)
    for node in graph.node:
        kernel = found.get(node.name)
        if kernel is None or not kernel.is_low_precision:
            continue
        if WEIGHTS_ALONE in kernel.name:
            if node.input[0] in pairs:
                found[node.name] = replace(kernel, name=f"{kernel.name}{ALONE}", is_low_precision=False)
        elif kernel.name.startswith(SEVERAL) and not {*node.input[:2]} <= stored | pairs:
            found[node.name] = replace(kernel, name=f"{kernel.name}{IN_FLOAT}", is_low_precision=False)
    return found


def kernels_by_node(steps: Iterable[ExecutedStep], behind: Mapping[str, str]) -> dict[str, Kernel]:
    """Return the kernel of each product; `behind` maps the names of nodes to products.

    >>> kernel = Kernel("FullyConnected brgemm_avx512_i8", is_low_precision=True)
    >>> step = ExecutedStep("b", kernel, "FullyConnected", ("/product/WithoutBiases", "FakeQuantize_7"), 9.0)
    >>> kernels_by_node([step], {"/product": "/product"})["/product"].name
    'FullyConnected brgemm_avx512_i8'
    """
    found: dict[str, Kernel] = {}
    for step in steps:
        if step.kind not in PRODUCTS:
            continue
        nodes = {_node_of(name, behind) for name in (*step.nodes, step.name)} - {""}
        if step.kind.startswith(SEVERAL) and not any(behind[node] == node for node in nodes):
            continue  # element by element, or the attention of a decoder, after the product that makes its inputs
        for product in {behind[node] for node in nodes}:
            if product not in found or not step.kernel.is_low_precision:
                found[product] = step.kernel
    return found


def _node_of(name: str, nodes: Collection[str]) -> str:
    """Return the node of a step: its name without the suffixes added after slashes; "" if there is none."""
    while name and name not in nodes:
        name = name.rpartition("/")[0]
    return name


def product_times(steps: Iterable[ExecutedStep], behind: Mapping[str, str]) -> dict[str, float]:
    """Return the microseconds of each product, with those of the steps behind it; `behind` maps the names of nodes to products.

    A step of several products counts for each of them in equal parts.

    >>> kernel = Kernel("FullyConnected brgemm_avx512_i8", is_low_precision=True)
    >>> steps = [ExecutedStep("a", kernel, "FullyConnected", ("a",), 9.0), ExecutedStep("x", kernel, "Eltwise", ("gelu",), 1.0)]
    >>> product_times(steps, {"a": "a", "gelu": "a"})
    {'a': 10.0}
    """
    times: dict[str, float] = {}
    for step in steps:
        nodes = {_node_of(name, behind) for name in (*step.nodes, step.name)} - {""}
        products = {node for node in nodes if behind[node] == node} or {behind[node] for node in nodes}
        for product in products:
            times[product] = times.get(product, 0.0) + step.microseconds / len(products)
    return times


def products_behind(graph: onnx.GraphProto, products: Collection[str]) -> dict[str, str]:
    """Map each node to the only product of `products` that it is or depends on with no other product in between.

    Nodes with several such products, or none, are left out. Names of graph outputs are mapped too, since the steps that
    produce them take their names.
    """
    makers: dict[str, frozenset[str]] = {}
    behind = {}
    for node in graph.node:
        found = frozenset({node.name}) if node.name in products else frozenset()
        if not found:
            found = found.union(*(makers.get(name, frozenset()) for name in node.input))
        makers |= dict.fromkeys(node.output, found)
        if len(found) == 1:
            behind[node.name] = next(iter(found))
    made = {value.name: makers.get(value.name, frozenset()) for value in graph.output}
    return behind | {name: next(iter(found)) for name, found in made.items() if len(found) == 1}
