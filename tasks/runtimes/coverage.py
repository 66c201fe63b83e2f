"""Which kernels really ran, and for how many multiply-accumulates each: read from the runtime, never from the file."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from tasks.runtimes.kernel_times import kernel_events, profile
from tasks.runtimes.openvino import OPENVINO_PROVIDER
from tasks.runtimes.openvino_kernels import Kernel, kernels_by_node, products_behind
from validators.datasets import Arrays
from validators.measurements import UNNAMED, Coverage
from validators.onnx_graph import KNOWN_DOMAINS
from validators.records import SessionSettings

Shape = tuple[int, ...]
# (node, shapes of its inputs, shapes of all initializers, shape of its output) -> multiply-accumulates
MacRule = Callable[[onnx.NodeProto, list[Shape], dict[str, Shape], Shape], int]

# Kernels of ONNX Runtime that multiply 8-bit or 4-bit operands (or 4-bit weights, in MatMulNBits). The names are those of
# the operators in the optimized graph, as its profile prints them.
LOW_PRECISION_KERNELS = frozenset(
    {
        "QLinearMatMul",
        "QLinearConv",
        "QGemm",
        "QAttention",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "ConvInteger",
        "MatMulNBits",
    }
)
# Of what is not an operator of a library that was registered: with those that the runtime lays out anew for its kernels.
RUNTIME_DOMAINS = KNOWN_DOMAINS | {"com.microsoft.nchwc", "com.ms.internal.nhwc"}


def measure_coverage(model: Path, settings: SessionSettings, batch: Arrays) -> Coverage:
    """Run one request under the profiler and count multiply-accumulates by kernel.

    Shapes of activations come from the profile, shapes of weights from the optimized graph that the session wrote. What a
    custom operator multiplies is not known, and not counted.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    if settings.provider == OPENVINO_PROVIDER:
        return _measure_openvino(model, settings, batch)
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder, "optimized.onnx")
        # It pads the channels of float convolutions to blocks of 8 or 16: the padding would be counted too.
        events = profile(model, settings, batch, optimized_model=optimized, without=("NchwcTransformer",))
        graph = onnx.load(optimized, load_external_data=False).graph
    return _sum_up(
        [(name, macs, Kernel(kernel, kernel in LOW_PRECISION_KERNELS)) for name, kernel, macs in _macs(graph, events)],
        events,
    )


def _measure_openvino(model: Path, settings: SessionSettings, batch: Arrays) -> Coverage:
    """Multiply-accumulates of the nodes as written, by the kernels that the provider names for them.

    Nodes that it left to the CPU provider are counted under the kernels of that one.
    """
    written = profile(model, replace(settings, provider="CPUExecutionProvider"), batch, as_written=True)
    graph = onnx.load(model, load_external_data=False).graph
    counted = [(name, macs) for name, _, macs in _macs(graph, written)]
    events = profile(model, settings, batch)
    kernels = kernels_by_node(events, products_behind(graph, {name for name, _ in counted}))
    for name, _, args in kernel_events(events):
        if args["provider"] != settings.provider:
            kernel = args["op_name"]
            kernels[name] = Kernel(kernel, kernel in LOW_PRECISION_KERNELS)
    unnamed = Kernel(UNNAMED, is_low_precision=False)
    return _sum_up([(name, macs, kernels.get(name, unnamed)) for name, macs in counted], events)


def _macs(graph: onnx.GraphProto, events: list[dict[str, Any]]) -> Iterator[tuple[str, str, int]]:
    """Name, kernel and multiply-accumulates of each node of a graph that has any, from the profile of one request."""
    graphs = list(_graphs(graph))
    nodes = {node.name: node for part in graphs for node in part.node}
    weights = {tensor.name: tuple(tensor.dims) for part in graphs for tensor in part.initializer}
    # Dequantized as written, weights are activations.
    stored = [node for node in nodes.values() if node.op_type == "DequantizeLinear" and node.input[0] in weights]
    weights |= {node.output[0]: weights[node.input[0]] for node in stored}
    for name, _, args in kernel_events(events):
        kernel = args["op_name"]
        if name in nodes and kernel in MAC_RULES and nodes[name].domain in RUNTIME_DOMAINS:
            yield name, kernel, _count_macs(nodes[name], args, weights)


def _sum_up(counted: list[tuple[str, int, Kernel]], events: list[dict[str, Any]]) -> Coverage:
    """The coverage of nodes with their multiply-accumulates and kernels; `events` tell which providers ran any node."""
    by_kernel: Counter[str] = Counter()
    in_float: Counter[str] = Counter()
    for name, macs, kernel in counted:
        by_kernel[kernel.name] += macs
        if not kernel.is_low_precision and kernel.name != UNNAMED:
            in_float[name] += macs
    return Coverage(
        macs_by_kernel=dict(by_kernel),
        low_precision=tuple(sorted({kernel.name for _, _, kernel in counted if kernel.is_low_precision})),
        float_nodes=tuple(name for name, macs in in_float.most_common() if macs),
        providers=tuple(sorted({args["provider"] for _, _, args in kernel_events(events)})),
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """The graph and all bodies of If, Loop and Scan in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g, *attribute.graphs]:
                yield from _graphs(body)


def _count_macs(node: onnx.NodeProto, args: dict[str, Any], weights: dict[str, Shape]) -> int:
    """MACs of one node: product of the output's shape times the length of the sum behind each element."""
    # The profile's list leaves out absent optional inputs and prepacked weights, so that only its first entry has a known
    # place; a weight's shape is looked up in the graph.
    inputs = _shapes(args["input_type_shape"])
    if node.input[0] in weights:
        inputs = [weights[node.input[0]], *inputs[1:]]
    outputs = _shapes(args["output_type_shape"])
    return MAC_RULES[node.op_type](node, inputs, weights, outputs[0]) if inputs and outputs else 0


def _shapes(entries: Sequence[dict[str, list[int]]]) -> list[Shape]:
    return [tuple(next(iter(entry.values()))) for entry in entries]


def _matmul(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(output) * inputs[0][-2 if transposed else -1]


def _matmul_nbits(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    depth: int = next(attribute.i for attribute in node.attribute if attribute.name == "K")
    return math.prod(output) * depth


def _conv(weight_input: int) -> MacRule:
    def count(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
        weight = weights.get(node.input[weight_input], ())
        return math.prod(output) * math.prod(weight[1:]) if weight else 0

    return count


def _conv_transpose(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Each element of the input meets the whole kernel of each output channel of its group."""
    weight = weights.get(node.input[1], ())
    return math.prod(inputs[0]) * math.prod(weight[1:]) if weight else 0


def _attention(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Scores and context. ONNX Runtime's own operator (com.microsoft) also has the input projection, B*S*D x 3H.

    The standard one (opset 23) takes queries, keys and values of shape (B, heads, S, D) or (B, S, heads*D).
    """
    if node.domain != "com.microsoft":
        length = inputs[1][-2]
        return math.prod(inputs[0]) * length + math.prod(output) * length
    batch, length, depth = inputs[0]
    hidden = output[-1]
    return batch * length * depth * 3 * hidden + 2 * batch * length * length * hidden


def _lstm(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Each row of each step meets W and R once, of every direction."""
    return math.prod(inputs[0][:2]) * sum(math.prod(weights.get(name, (0,))) for name in node.input[1:3])


MAC_RULES: dict[str, MacRule] = {
    "MatMul": _matmul,
    "Gemm": _matmul,
    "FusedMatMul": _matmul,
    "FusedGemm": _matmul,
    "MatMulInteger": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "DynamicQuantizeMatMul": _matmul,
    "QLinearMatMul": _matmul,
    "QGemm": _matmul,
    "MatMulNBits": _matmul_nbits,
    "Conv": _conv(1),
    "FusedConv": _conv(1),
    "NhwcFusedConv": _conv(1),
    "ConvInteger": _conv(1),
    "QLinearConv": _conv(3),
    "ConvTranspose": _conv_transpose,
    "Attention": _attention,
    "QAttention": _attention,
    "LSTM": _lstm,
    "DynamicQuantizeLSTM": _lstm,
}
