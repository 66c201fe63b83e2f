"""Placement of Q/DQ pairs: the rules of each runtime, as tables, and the plan for a graph.

`ort-cpu`: ONNX Runtime replaces a node by an integer kernel when it finds DequantizeLinear on its inputs and, for most
kernels, QuantizeLinear on its output. The requirements of each kernel were read from sessions' optimized graphs of one node
each, version 1.31.1:

- Conv: integer input and weight, an INT32 bias with scale input scale * weight scale, **and** an integer output for every
  reader; else it stays in float. Gemm: the same, but the output may be float for all readers. MatMul: as Gemm, without bias.
- A product before Relu or Clip runs in integers only with an integer output after that activation.
- MatMul of rank 2 before a float Add becomes a float Gemm before integer kernels are matched. It must be rewritten to a Gemm
  with an INT32 bias (`fuse_bias`). At rank 3 the product stays an integer one.
- Weights per channel: axis 0 of Conv, the output axis of a rank-2 product. A batch of matrices runs per tensor only.
- Add, Mul, Concat, Sigmoid, ... (`KERNELS`): integer input and output, each with its own scale, so that residual additions
  and concatenations need no shared range.
- INT8 activations: nodes that share an input tensor stay in float on x86. There the runtime first converts INT8 to UINT8, and
  does so only for pairs with one reader. UINT8 has no such exception.
- MaxPool, Reshape, ... (`PASS_THROUGH`) only move numbers: the output has the scale and zero point of the input.
- Relu and Clip: saturation replaces them when the output range ends at their bounds, so they are removed.

`tensorrt`: symmetric INT8 or FP8 on both inputs of Conv, MatMul and Gemm, and nothing else (NVIDIA TensorRT documentation,
"Working with Quantized Types", explicit quantization). The rules below were read from the layers of engines that TensorRT-RTX
1.7.1 built ahead of time, for one pattern at a time and for an encoder and a CNN:

- Both inputs or none: with one float input the product runs in float. Weight scales are per output channel or per tensor.
  With scales along K, or per-channel scales on activations, the product silently runs in float.
- Zero points are 0; biases stay float (INT32 biases are refused). Convolutions of one and two axes, grouped or depthwise, Gemm
  with alpha, beta, transA or transB, and batches of matrices (per tensor) then run in integers.
- No Q/DQ on outputs: a Q between Conv and Relu adds a step, while a Q after both is fused with them.
- No range is shared: before a product, the kernel that quantizes a residual sum or concatenation computes it in float, from
  the float outputs of earlier products.

`openvino`: see `openvino_forms.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.graph.edits import (
    WEIGHT_INPUT,
    attribute,
    custom_operators,
    initializers,
    names_read,
    to_array,
)

QdqTarget = Literal["ort-cpu", "openvino", "tensorrt"]
FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16})

# Operators of ONNX Runtime's CPU provider with an integer kernel for any scales, and operators that only move numbers.
KERNELS = frozenset({"Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool"})
PASS_THROUGH = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Tile"}
    | {"DepthToSpace", "ReduceMax", "Split"}
)
FOLDED = frozenset({"Relu", "Clip"})
KEPT = "kept in float as asked"
# Operators that multiply and have no integer kernel for pairs, by the runtime's list of kernels.
NO_KERNEL = {
    "ConvTranspose": "ConvTranspose has no integer kernel",
    "Einsum": "Einsum has no integer kernel: write it as MatMul",
    "GRU": "GRU has no integer kernel",
    "LSTM": "LSTM has no integer kernel for calibrated ranges",
    "RNN": "RNN has no integer kernel",
}


@dataclass(frozen=True)
class Placement:
    """Plan of the nodes and tensors to quantize.

    `nodes` become integer kernels. `left` maps eligible nodes and custom operators that stay in float to the reason.
    `outputs` are quantized at their producer, for all readers; `inputs` only for the given readers (node name, input index).
    `shares` maps a tensor to the one whose scale and zero point it takes. `folded` names the Relu and Clip nodes to remove.
    """

    nodes: tuple[str, ...]
    left: dict[str, str]
    outputs: frozenset[str]
    inputs: dict[str, set[tuple[str, int]]]
    shares: dict[str, str]
    folded: frozenset[str]


@dataclass
class GraphView:
    """Producer and readers of each tensor; `pinned` tensors are graph outputs, or read by the body of an If or a Loop."""

    graph: onnx.GraphProto
    constants: dict[str, onnx.TensorProto] = field(init=False)
    producer: dict[str, onnx.NodeProto] = field(init=False)
    readers: dict[str, list[tuple[onnx.NodeProto, int]]] = field(init=False)
    pinned: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.constants = initializers(self.graph)
        self.producer, self.readers = {}, {}
        self.pinned = {value.name for value in self.graph.output}
        for node in self.graph.node:
            self.producer |= dict.fromkeys(filter(None, node.output), node)
            for index, name in enumerate(node.input):
                self.readers.setdefault(name, []).append((node, index))
            if any(body.node or body.output for item in node.attribute for body in [item.g, *item.graphs]):
                self.pinned.update(names_read(node))

    def activations(self, node: onnx.NodeProto) -> list[int]:
        """Return the indices of a node's inputs that would get a scale: the activations that the operator computes with."""
        if node.op_type in PASS_THROUGH:
            return [0]
        count = 2 if node.op_type in WEIGHT_INPUT else len(node.input)
        return [index for index, name in enumerate(node.input[:count]) if name and name not in self.constants]

    def activation_behind(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the Relu or Clip that is the only reader of a node's output, or None."""
        name = node.output[0]
        found = self.readers.get(name, [])
        if name in self.pinned or len(found) != 1 or found[0][0].op_type not in FOLDED or found[0][0].domain:
            return None
        return found[0][0]

    def folds(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the Relu or Clip after a node if saturation can replace it, else None.

        Its bounds must be constants and enclose zero, since every quantized range contains zero: values that a Clip keeps
        above 1e-3 could come out as 0.
        """
        activation = self.activation_behind(node)
        if activation is None or any(item and item not in self.constants for item in activation.input[1:]):
            return None
        low, high = self.bounds(activation.output[0])
        return activation if low <= 0 <= high else None

    def bounds(self, tensor: str) -> Range:
        """Return the bounds of a tensor that its producer guarantees for any input."""
        node = self.producer.get(tensor)
        match node.op_type if node is not None and not node.domain else "":
            case "Relu":
                return 0.0, math.inf
            case "Sigmoid" | "Softmax":
                return 0.0, 1.0
            case "Clip" if node is not None:
                ends = [self.constants.get(name) for name in [*node.input[1:3], "", ""][:2]]
                low, high = (float(to_array(end)) if end is not None else None for end in ends)
                return -math.inf if low is None else low, math.inf if high is None else high
        return -math.inf, math.inf


def place(
    graph: onnx.GraphProto,
    ranges: Mapping[str, Range],
    *,
    target: Literal["ort-cpu", "tensorrt"],
    every_operator: bool,
    keep_float: Collection[str] = (),
) -> Placement:
    """Return the plan for a float graph with unique node names. `ranges` maps activations to their clipping ranges.

    By default only Conv, MatMul and Gemm with constant weights are quantized. `every_operator` adds products of two
    activations and, for `ort-cpu`, the operators of `KERNELS` and `PASS_THROUGH` between integer kernels: all inputs are
    integers and some reader takes integers. Elsewhere a conversion would serve that node alone.
    """
    view = GraphView(graph)
    left = custom_operators(graph)
    left |= {node.name: NO_KERNEL[node.op_type] for node in graph.node if not node.domain and node.op_type in NO_KERNEL}
    products = []
    for node in [node for node in graph.node if node.op_type in WEIGHT_INPUT and node.name not in left]:
        reason = why_not(view, node, ranges, target, every_operator, keep_float)
        if reason:
            left[node.name] = reason
        else:
            products.append(node)
    if target == "tensorrt":
        return Placement(
            tuple(node.name for node in products), left, frozenset(), read_places(view, products, ()), {}, frozenset()
        )
    return _place_for_ort(view, products, left, ranges, every_operator, keep_float)


def why_not(
    view: GraphView,
    node: onnx.NodeProto,
    ranges: Mapping[str, Range],
    target: QdqTarget,
    every_operator: bool,
    keep_float: Collection[str],
) -> str:
    """Return why a Conv, MatMul or Gemm stays in float, or "" if it is quantized."""
    if node.name in keep_float:
        return KEPT
    weight = view.constants.get(node.input[1])
    if node.input[0] in view.constants:
        return "its first input is a constant: only a weight on the right has integer kernels"
    if weight is None and not (every_operator and node.op_type == "MatMul"):
        return "its second input is no constant"
    if weight is not None and (weight.data_type not in FLOATS or len(weight.dims) < 2):
        return f"its weight has type {onnx.TensorProto.DataType.Name(weight.data_type)} and {len(weight.dims)} axes"
    needed = [node.input[index] for index in view.activations(node)]
    if target == "ort-cpu":
        if len(node.input) > 2 and node.input[2] and not _is_bias(view, node):
            return "its bias is no constant of one number a channel"
        if node.op_type == "Conv":
            needed.append(_result(view, node, ranges, keep_float)[0])
    lacking = [name for name in needed if name not in ranges or not all(map(math.isfinite, ranges[name]))]
    return f"no calibrated range of {lacking[0]!r}" if lacking else ""


def _result(
    view: GraphView, node: onnx.NodeProto, ranges: Mapping[str, Range], keep_float: Collection[str]
) -> tuple[str, str]:
    """Return the output tensor of a node's integer kernel, and the name of the activation folded into it ("" for none)."""
    activation = view.folds(node)
    if activation is None or activation.name in keep_float or activation.output[0] not in ranges:
        return node.output[0], ""
    return activation.output[0], activation.name


def _is_bias(view: GraphView, node: onnx.NodeProto) -> bool:
    bias, weight = view.constants.get(node.input[2]), view.constants.get(node.input[1])
    if bias is None or weight is None:
        return False
    channels = weight.dims[0 if node.op_type == "Conv" or attribute(node, "transB", 0) else 1]
    return list(bias.dims) in ([channels], [1, channels])


def read_places(
    view: GraphView, nodes: Collection[onnx.NodeProto], outputs: Collection[str]
) -> dict[str, set[tuple[str, int]]]:
    """Return the (node name, input index) pairs of quantized nodes that read tensors not quantized at their producer."""
    places: dict[str, set[tuple[str, int]]] = {}
    for node in nodes:
        for index in view.activations(node):
            if node.input[index] not in outputs:
                places.setdefault(node.input[index], set()).add((node.name, index))
    return places


def _place_for_ort(
    view: GraphView,
    products: list[onnx.NodeProto],
    left: dict[str, str],
    ranges: Mapping[str, Range],
    every_operator: bool,
    keep_float: Collection[str],
) -> Placement:
    found = {node.name: _result(view, node, ranges, keep_float) for node in products}
    results = {name: tensor for name, (tensor, _) in found.items()}
    outputs = {results[node.name] for node in products if node.op_type == "Conv"}
    chain = _chain(view, outputs, products, ranges, keep_float) if every_operator else []
    for node in chain:
        outputs.update(filter(None, node.output))
    integer = {node.name for node in [*products, *chain]}
    for node in products:
        # A float output of a product costs nothing, with two exceptions. With float and integer readers the runtime picks no
        # integer kernel at all. After a Relu or Clip it needs an integer output behind that.
        readers = view.readers.get(results[node.name], [])
        in_float = view.activation_behind(node) if results[node.name] in ranges else None
        if (
            found[node.name][1]
            or in_float
            or any(reader.name in integer and index in view.activations(reader) for reader, index in readers)
        ):
            outputs.add(results[node.name])
    if every_operator:
        for node in view.graph.node:
            # Only float tensors have ranges; shape tensors pass through the same operators.
            if node.op_type in KERNELS | PASS_THROUGH and node.name not in integer and node.output[0] in ranges:
                left.setdefault(node.name, KEPT if node.name in keep_float else "not between integer kernels")
    return Placement(
        nodes=tuple(node.name for node in view.graph.node if node.name in integer),
        left=left,
        outputs=frozenset(outputs),
        inputs=read_places(view, products, outputs),
        shares={name: node.input[0] for node in chain if node.op_type in PASS_THROUGH for name in node.output if name},
        folded=frozenset(activation for tensor, activation in found.values() if activation and tensor in outputs),
    )


def _chain(
    view: GraphView,
    made: set[str],
    products: list[onnx.NodeProto],
    ranges: Mapping[str, Range],
    keep_float: Collection[str],
) -> list[onnx.NodeProto]:
    """Return the nodes of `KERNELS` and `PASS_THROUGH` that read integers only and have an integer reader."""
    integers = set(made)
    candidates = []
    for node in view.graph.node:
        passes = node.op_type in PASS_THROUGH
        if node.domain or node.name in keep_float or not (passes or node.op_type in KERNELS):
            continue
        if node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1]:
            continue  # its second output, the indices of the largest, is not a quantized tensor
        reads = [node.input[index] for index in view.activations(node)]
        if reads and all(name in integers for name in reads) and (passes or node.output[0] in ranges):
            candidates.append(node)
            integers.update(filter(None, node.output))
    wanted = {node.name for node in products}
    kept = []
    for node in reversed(candidates):
        readers = [pair for name in node.output for pair in view.readers.get(name, [])]
        if any(reader.name in wanted and index in view.activations(reader) for reader, index in readers):
            wanted.add(node.name)
            kept.append(node)
    return kept[::-1]
