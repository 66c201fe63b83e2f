"""Which tensors of a graph are quantized for which runtime: the rules, as tables, and the plan that they give.

`ort-cpu`: ONNX Runtime replaces a node by an integer kernel when it finds DequantizeLinear on its inputs and, for most,
QuantizeLinear on its output. What each kernel asks for was read from the optimized graph of a session, version 1.31.1, with one
node a time:

- Conv: integer input and weight, an INT32 bias at input scale * weight scale, **and** an integer output that no float node
  reads past: else it stays in float. Gemm: the same, but the output may be float for all readers. MatMul: so too, no bias.
- A product with Relu or Clip behind it runs in integers only with an integer output behind that.
- MatMul of rank 2 with a float Add behind becomes a float Gemm before integer kernels are looked for: it has to be made a Gemm
  with an INT32 bias (`fuse_bias`). At rank 3 the product stays one of integers.
- Weights per channel: axis 0 of Conv, the output axis of a rank-2 product; a batch of matrices runs per tensor only.
- Add, Mul, Concat, Sigmoid, ... (`KERNELS`): integer input and output, each with a scale of its own, so that residual additions
  and concatenations need no range that is shared.
- INT8 activations: a tensor that several nodes read leaves them in float on x86, where the runtime turns INT8 into UINT8 first
  and only sees pairs with one reader. UINT8 has no such exception.
- MaxPool, Reshape, ... (`PASS_THROUGH`), which only move numbers: the output has the scale and zero point of the input.
- Relu and Clip: saturation does their work when the range of the output ends where they cut, so that they are left out.

`tensorrt`: symmetric INT8 or FP8 on both inputs of Conv, MatMul and Gemm, and nothing else (NVIDIA TensorRT documentation,
"Working with Quantized Types", explicit quantization). What its parser and its builder make of it was read from the layers of
engines that TensorRT-RTX 1.7.1 built ahead of time, of one pattern a time and of an encoder and a CNN:

- Both inputs or none: with a float one on either side the product runs in float. Weights have scales per output channel or one
  for all; along K, or on activations by channel, the product silently runs in float.
- Zero points are 0, biases stay float (INT32 ones are refused). Convolutions of one and two axes, grouped or depthwise, Gemm
  with alpha, beta, transA or transB, and batches of matrices (one scale for all) then run in integers.
- Nothing on outputs: Q between Conv and Relu adds a step, while one behind both is fused with them.
- No range is shared: before a product, the residual sum or the concatenation is computed in float by the kernel that quantizes
  its result, and reads what the products before it give in float.

`ort-openvino`: see `openvino_forms.py`.
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

QdqTarget = Literal["ort-cpu", "ort-openvino", "tensorrt"]
FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16})

# Operators of ONNX Runtime's CPU provider with an integer kernel of any scales, and those that move numbers unchanged.
KERNELS = frozenset({"Add", "Mul", "Concat", "Sigmoid", "LeakyRelu", "Softmax", "AveragePool", "GlobalAveragePool"})
PASS_THROUGH = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Gather", "Expand", "Tile"}
    | {"DepthToSpace", "ReduceMax", "Split"}
)
FOLDED = frozenset({"Relu", "Clip"})
KEPT = "kept in float as asked"


@dataclass(frozen=True)
class Placement:
    """What to quantize.

    `nodes` become integer kernels; `left` are the others that might have been, and custom operators, with the reason.
    `outputs` are quantized where they are made, for all readers, `inputs` only for the given places (node name, index of its
    input). `shares` gives the tensor whose scale and zero point another one takes; `folded` the activations left out.
    """

    nodes: tuple[str, ...]
    left: dict[str, str]
    outputs: frozenset[str]
    inputs: dict[str, set[tuple[str, int]]]
    shares: dict[str, str]
    folded: frozenset[str]


@dataclass
class GraphView:
    """Who makes and who reads each tensor; `pinned` tensors are outputs, or read by the body of an If or a Loop."""

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
        """Places of a node's inputs that a scale would be for: the tensors that an operator computes with."""
        if node.op_type in PASS_THROUGH:
            return [0]
        count = 2 if node.op_type in WEIGHT_INPUT else len(node.input)
        return [index for index, name in enumerate(node.input[:count]) if name and name not in self.constants]

    def activation_behind(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The Relu or Clip that alone reads a node's output."""
        name = node.output[0]
        found = self.readers.get(name, [])
        if name in self.pinned or len(found) != 1 or found[0][0].op_type not in FOLDED or found[0][0].domain:
            return None
        return found[0][0]

    def folds(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The activation behind a node, if saturation can do its work.

        Its bounds must be constants, and hold zero, since every integer type stands for zero too: what a Clip keeps above 1e-3
        would come out as 0.
        """
        activation = self.activation_behind(node)
        if activation is None or any(item and item not in self.constants for item in activation.input[1:]):
            return None
        low, high = self.bounds(activation.output[0])
        return activation if low <= 0 <= high else None

    def bounds(self, tensor: str) -> Range:
        """What the operator behind a tensor cannot leave, whatever it reads."""
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
    """The plan for a float graph whose nodes all have names of their own. `ranges` are those of activations by tensor.

    Narrow scope: Conv, MatMul and Gemm with constant weights. `every_operator` takes products of two activations too and, for
    `ort-cpu`, the operators of `KERNELS` and `PASS_THROUGH` between integer kernels: those whose inputs all come as integers
    and whose output something reads as integers. Elsewhere they would turn float into integers only for themselves.
    """
    view = GraphView(graph)
    left = custom_operators(graph)
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
    """Why a Conv, MatMul or Gemm stays in float; empty when it does not."""
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
    """The tensor that a kernel would give, and the activation that it would take in, if any."""
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
    """Where quantized nodes read tensors that are not quantized where they are made."""
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
        outputs.update(node.output)
    integer = {node.name for node in [*products, *chain]}
    for node in products:
        # A product gives float for nothing, unless it is read in integers as well (of both kinds of readers the runtime wants
        # no integer kernel at all), or a Relu or Clip comes before the float: there it looks for integers behind that.
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
            # Only floats have ranges: shapes pass through the same operators.
            if node.op_type in KERNELS | PASS_THROUGH and node.name not in integer and node.output[0] in ranges:
                left.setdefault(node.name, KEPT if node.name in keep_float else "not between integer kernels")
    return Placement(
        nodes=tuple(node.name for node in view.graph.node if node.name in integer),
        left=left,
        outputs=frozenset(outputs),
        inputs=read_places(view, products, outputs),
        shares={name: node.input[0] for node in chain if node.op_type in PASS_THROUGH for name in node.output},
        folded=frozenset(activation for tensor, activation in found.values() if activation and tensor in outputs),
    )


def _chain(
    view: GraphView,
    made: set[str],
    products: list[onnx.NodeProto],
    ranges: Mapping[str, Range],
    keep_float: Collection[str],
) -> list[onnx.NodeProto]:
    """The nodes of `KERNELS` and `PASS_THROUGH` that read integers only and have a reader of integers."""
    integers = set(made)
    candidates = []
    for node in view.graph.node:
        passes = node.op_type in PASS_THROUGH
        if node.domain or node.name in keep_float or not (passes or node.op_type in KERNELS):
            continue
        reads = [node.input[index] for index in view.activations(node)]
        if reads and all(name in integers for name in reads) and (passes or node.output[0] in ranges):
            candidates.append(node)
            integers.update(node.output)
    wanted = {node.name for node in products}
    kept = []
    for node in reversed(candidates):
        readers = [pair for name in node.output for pair in view.readers.get(name, [])]
        if any(reader.name in wanted and index in view.activations(reader) for reader, index in readers):
            wanted.add(node.name)
            kept.append(node)
    return kept[::-1]
