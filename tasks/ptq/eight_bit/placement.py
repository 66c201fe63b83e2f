"""Placement of Q/DQ pairs: the rules of an engine, the plan for a graph, and the rules of explicit quantization.

Explicit: symmetric INT8 or FP8 on both inputs of Conv, MatMul and Gemm, and nothing else (NVIDIA TensorRT documentation,
"Working with Quantized Types", explicit quantization). The rules below were read from the layers of engines that TensorRT-RTX
1.7.1 built ahead of time, for one pattern at a time and for an encoder and a CNN:

- Both inputs or none: with one float input the product runs in float. Weight scales are per output channel or per tensor.
  With scales along K, or per-channel scales on activations, the product silently runs in float.
- Zero points are 0; biases stay float (INT32 biases are refused). Convolutions of one and two axes, grouped or depthwise, Gemm
  with alpha, beta, transA or transB, and batches of matrices (per tensor) then run in integers.
- No Q/DQ on outputs: a Q between Conv and Relu adds a step, while a Q after both is fused with them.
- No range is shared: before a product, the kernel that quantizes a residual sum or concatenation computes it in float, from
  the float outputs of earlier products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.graph.edits import WEIGHT_INPUT, custom_operators, initializers, names_read
from validators.graph.stored import to_array
from validators.untrusted.external_data import bodies_of

FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16})
# Operators that only move numbers.
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
    outputs: frozenset[str] = frozenset()
    inputs: dict[str, set[tuple[str, int]]] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)
    folded: frozenset[str] = frozenset()


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
                if name:  # an input that is left out
                    self.readers.setdefault(name, []).append((node, index))
            if bodies_of(node):
                self.pinned.update(names_read(node))

    def is_read_by(self, tensor: str, count: int) -> bool:
        """Return whether so many inputs of nodes, and nothing else, read a tensor."""
        return tensor not in self.pinned and len(self.readers.get(tensor, [])) == count

    def activations(self, node: onnx.NodeProto) -> list[int]:
        """Return the indices of a node's inputs that would get a scale: the activations that the operator computes with."""
        if node.op_type in PASS_THROUGH:
            return [0]
        count = 2 if node.op_type in WEIGHT_INPUT else len(node.input)
        return [index for index, name in enumerate(node.input[:count]) if name and name not in self.constants]

    def activation_behind(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """Return the Relu or Clip that is the only reader of a node's output, or None."""
        if not self.is_read_by(node.output[0], 1):
            return None
        reader, _ = self.readers[node.output[0]][0]
        return reader if reader.op_type in FOLDED and not reader.domain else None

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


@dataclass(frozen=True)
class PlacementTask:
    """A float graph with unique node names, and what is asked of its plan.

    `ranges` maps activations to their clipping ranges. `every_operator` asks for products of two activations, and for what else
    the engine computes in integers. The nodes `keep_float` stay in float. Weights have `bits`.
    """

    view: GraphView
    ranges: Mapping[str, Range]
    every_operator: bool
    keep_float: Collection[str] = ()
    bits: WeightBits = 8

    def why_not(self, node: onnx.NodeProto) -> str:
        """Return why a Conv, MatMul or Gemm stays in float in any engine, or ""."""
        if node.name in self.keep_float:
            return KEPT
        constants = self.view.constants
        weight = constants.get(node.input[1])
        if node.input[0] in constants:
            return "its first input is a constant: only a weight on the right has integer kernels"
        if weight is None and not (self.every_operator and node.op_type == "MatMul"):
            return "its second input is no constant"
        if weight is not None and (weight.data_type not in FLOATS or len(weight.dims) < 2):
            return f"its weight has type {onnx.TensorProto.DataType.Name(weight.data_type)} and {len(weight.dims)} axes"
        return self.lacking_range([node.input[index] for index in self.view.activations(node)])

    def lacking_range(self, tensors: Collection[str]) -> str:
        """Return the reason that the first tensor without a finite range is, or ""."""
        lacking = [
            name for name in tensors if name not in self.ranges or not all(map(math.isfinite, self.ranges[name]))
        ]
        return f"no calibrated range of {lacking[0]!r}" if lacking else ""

    def plan(self, integer: Collection[str], left: dict[str, str], kinds: Collection[str]) -> Placement:
        """Return the plan with these nodes in integers, and the reason for each other node of `kinds`, if asked for.

        Only float tensors have ranges: shape tensors pass through the same operators.
        """
        nodes = self.view.graph.node
        for node in nodes if self.every_operator else ():
            if node.op_type in kinds and node.name not in integer and node.output[0] in self.ranges:
                left.setdefault(node.name, KEPT if node.name in self.keep_float else "not between integer kernels")
        return Placement(tuple(node.name for node in nodes if node.name in integer), left)


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


def split_products(
    view: GraphView, left: dict[str, str], why_float: Callable[[onnx.NodeProto], str]
) -> list[onnx.NodeProto]:
    """Return the Conv, MatMul and Gemm to quantize; add those for which `why_float` has a reason to `left`."""
    products = []
    for node in [node for node in view.graph.node if node.op_type in WEIGHT_INPUT and node.name not in left]:
        if reason := why_float(node):
            left[node.name] = reason
        else:
            products.append(node)
    return products


def left_by_operator(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the reason of each custom operator, and of each operator that multiplies and has no integer kernel for pairs."""
    kinds = {node.name: NO_KERNEL[node.op_type] for node in graph.node if not node.domain and node.op_type in NO_KERNEL}
    return custom_operators(graph) | kinds


def place_explicitly(task: PlacementTask) -> Placement:
    """Return the plan of explicit quantization: pairs on the inputs of products, whoever else reads them."""
    left = left_by_operator(task.view.graph)
    products = split_products(task.view, left, task.why_not)
    return Placement(tuple(node.name for node in products), left, inputs=read_places(task.view, products, ()))


@dataclass(frozen=True, kw_only=True)
class PairRules:
    """Rules of an engine for Q/DQ pairs, and for the numbers in them; the defaults are those of explicit quantization.

    `prepare` rewrites the float graph before `place`, given the ranks of its tensors and the nodes kept in float. Ranges are
    symmetric around zero "always", "never", or "below zero": where the activation has negative values; it is UINT8 elsewhere.
    `int32_bias`: a quantized bias of the products, without alpha and beta. `in_half`: float16 tensors may have pairs.
    `place_weights` is the plan for weights alone, if the engine finds ranges at run time by itself; else operators find them.
    `rest_at_run_time`: what has no pairs gets ranges at run time too. `untied`: a constant that an embedding and a product read
    is stored for each of them. `table_bits` are those of embeddings in blocks.
    """

    place: Callable[[PlacementTask], Placement] = place_explicitly
    prepare: Callable[[onnx.GraphProto, Mapping[str, int], Collection[str]], object] = lambda *_: None
    symmetric: Literal["always", "never", "below zero"] = "always"
    int32_bias: bool = False
    in_half: bool = False
    place_weights: Callable[[onnx.GraphProto, Collection[str]], Placement] | None = None
    rest_at_run_time: bool = False
    untied: bool = False
    table_bits: tuple[int, ...] = (8, 4)


EXPLICIT = PairRules()
IN_HALF = PairRules(in_half=True)
