"""Multiply-accumulates of the nodes that ran: shapes of activations from the profile, shapes of weights from the graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx

from tasks.runtimes.kernel_times import kernel_events
from validators.graph.source_graph import KNOWN_DOMAINS
from validators.untrusted.external_data import graphs_of

Shape = tuple[int, ...]
# (node, shapes of its inputs, shapes of all initializers, shape of its output) -> multiply-accumulates
MacRule = Callable[[onnx.NodeProto, list[Shape], dict[str, Shape], Shape], int]

# Domains of the runtime's own operators, including those that it rewrites to other layouts, but no registered libraries.
BLOCKED_DOMAIN = "com.microsoft.nchwc"
RUNTIME_DOMAINS = KNOWN_DOMAINS | {BLOCKED_DOMAIN, "com.ms.internal.nhwc"}


def count_macs(graph: onnx.GraphProto, events: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Yield the name, the profile's arguments and the multiply-accumulates of each run of a node that has any.

    `graph` is the graph that ran, `events` its profile. Custom operators are left out, since their multiply-accumulates are
    unknown.
    """
    graphs = list(graphs_of(graph))
    nodes = {node.name: node for part in graphs for node in part.node}
    weights = {tensor.name: tuple(tensor.dims) for part in graphs for tensor in part.initializer}
    # In an unoptimized graph, the output of a weight's DequantizeLinear counts as a weight.
    stored = [node for node in nodes.values() if node.op_type == "DequantizeLinear" and node.input[0] in weights]
    weights |= {node.output[0]: weights[node.input[0]] for node in stored}
    for name, _, args in kernel_events(events):
        if name in nodes and args["op_name"] in MAC_RULES and nodes[name].domain in RUNTIME_DOMAINS:
            yield name, args, _count(nodes[name], args, weights)


def _count(node: onnx.NodeProto, args: dict[str, Any], weights: dict[str, Shape]) -> int:
    """Return the MACs of one node: the product of the output's shape times the terms of the sum behind each element."""
    # The profile omits absent optional inputs and prepacked weights, so only its first entry has a known index. The shape of
    # a weight is looked up in the graph.
    inputs = _shapes(args["input_type_shape"])
    if node.input[0] in weights:
        inputs = [weights[node.input[0]], *inputs[1:]]
    outputs = _shapes(args["output_type_shape"])
    return MAC_RULES[node.op_type](node, inputs, weights, outputs[0]) if inputs and outputs else 0


def _shapes(entries: Sequence[dict[str, list[int]]]) -> list[Shape]:
    return [tuple(next(iter(entry.values()))) for entry in entries]


def _shape(node: onnx.NodeProto, index: int, inputs: list[Shape], weights: dict[str, Shape]) -> Shape:
    """Return the shape of an operand: that of the weight, or the profiled shape if the operand is computed."""
    return weights.get(node.input[index]) or inputs[index]


def _matmul(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return math.prod(output) * inputs[0][-2 if transposed else -1]


def _matmul_nbits(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    depth: int = next(attribute.i for attribute in node.attribute if attribute.name == "K")
    return math.prod(output) * depth


def _conv(weight_input: int) -> MacRule:
    def count(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
        return math.prod(output) * math.prod(_shape(node, weight_input, inputs, weights)[1:])

    return count


def _conv_transpose(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Count the MACs of ConvTranspose: each input element times the kernel of each output channel of its group."""
    return math.prod(inputs[0]) * math.prod(_shape(node, 1, inputs, weights)[1:])


def _attention(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Count the MACs of scores and context. ONNX Runtime's operator (com.microsoft) adds the input projection, B*S*D x 3H.

    The standard operator (opset 23) takes queries, keys and values of shape (B, heads, S, D) or (B, S, heads*D).
    """
    if node.domain != "com.microsoft":
        return _attention_of_three(node, inputs, weights, output)
    batch, length, depth = inputs[0]
    hidden = output[-1]
    return batch * length * depth * 3 * hidden + 2 * batch * length * length * hidden


def _attention_of_three(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Count the MACs of scores and context: queries and output, (B, S, D) or (B, heads, S, D), times the number of keys."""
    length = inputs[1][-2]
    return math.prod(inputs[0]) * length + math.prod(output) * length


def _recurrent(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Count the MACs of a recurrent layer: each row of each step times W and R, for every direction."""
    return math.prod(inputs[0][:2]) * sum(math.prod(_shape(node, index, inputs, weights)) for index in (1, 2))


def _einsum(node: onnx.NodeProto, inputs: list[Shape], weights: dict[str, Shape], output: Shape) -> int:
    """Count the MACs of an Einsum of two operands: the output's size times the sizes of the summed indices."""
    if len(node.input) != 2:
        return 0
    equation = next(attribute.s for attribute in node.attribute if attribute.name == "equation").decode()
    terms, _, result = equation.replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for index, term in enumerate(terms.split(",")):
        before, _, after = term.partition("...")
        shape = _shape(node, index, inputs, weights)
        sizes |= dict(zip(before, shape, strict=False))
        sizes |= dict(zip(reversed(after), reversed(shape), strict=False))
    # Without an arrow the result has the indices that occur in one term only.
    kept = result if "->" in equation else "".join(index for index in sizes if terms.count(index) == 1)
    return math.prod(output) * math.prod(size for index, size in sizes.items() if index not in kept)


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
    "Einsum": _einsum,
    "Attention": _attention,
    "QAttention": _attention,
    "MultiHeadAttention": _attention_of_three,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "DynamicQuantizeLSTM": _recurrent,
    # CUDA provider.
    "QOrderedMatMul": _matmul,
    "QOrderedAttention": _attention,
    "GemmFloat8": _matmul,
    "MatMulBlockQuantizedFp8Weight": _matmul,
}
