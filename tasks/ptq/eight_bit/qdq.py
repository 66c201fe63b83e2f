"""Static INT8 and FP8 quantization: QuantizeLinear and DequantizeLinear pairs where the target's kernels need them.

The rules of an engine (`placement.py`) decide the positions of the pairs, `affine.py` computes scales and zero points, and this
module rewrites the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import astuple, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import (
    E4M3,
    ActivationType,
    Affine,
    fit_e4m3,
    fit_e4m3_weight,
    fit_range,
    smallest_weight_scale,
    store_bias,
    store_e4m3,
)
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import GraphView, PairRules, Placement, PlacementTask
from tasks.ptq.eight_bit.qdq_checks import (
    check_variant,
    describe_tensors,
    refuse,
    refuse_model,
    weight_type,
)
from tasks.ptq.forms import Remember, make_now
from tasks.ptq.graph.edits import (
    WEIGHT_INPUT,
    Names,
    attribute,
    interface_of,
    name_nodes,
    output_channel_axis,
    set_nodes,
)
from validators.graph.stored import load_model, save_model, spilling, to_array

QuantizedType = Literal["uint8", "int8", "e4m3"]


@dataclass(frozen=True)
class QdqReport:
    """Names of the `quantized` nodes in graph order, and the reason why each of the `left` nodes stays in float."""

    quantized: tuple[str, ...]
    left: dict[str, str]


@spilling()
def quantize_qdq(
    model: Path,
    variant: Path,
    ranges: Mapping[str, Range] | None,
    *,
    rules: PairRules,
    every_operator: bool,
    activation: QuantizedType,
    weights: Int8Weights,
    keep_float: Collection[str] = (),
    grams: Callable[[Collection[str]], Mapping[str, Gram]] | None = None,
    remember: Remember = make_now,
) -> QdqReport:
    """Write a Q/DQ form of a float model by the rules of an engine.

    `ranges` maps activations to (low, high); with None, for engines with `rules.place_weights`, they stay in float and weights
    alone are stored in INT8. `keep_float` names nodes to leave unchanged. Weights are symmetric INT8; with `e4m3` weights and
    activations are FP8, with scales of amax / 448. `grams` returns the Gram matrices of what the quantized nodes read, by the
    names of the nodes, for methods of rounding that need them (`layers_to_learn`); `remember` keeps products' weights.

    Raises:
        CandidateRefused: `unsupported`: the model is quantized already, has no node to quantize, or the rules do not
            support such activations; `invalid`: `keep_float` has an unknown name, or the result is not a valid model with the
            same inputs and outputs.
    """
    proto = load_model(model)
    name_nodes(proto.graph)
    refuse_model(proto, rules, "int8" if activation == "e4m3" else activation, keep_float)
    interface = interface_of(proto.graph)
    types, ranks = describe_tensors(proto)
    if ranges is not None:
        rules.prepare(proto.graph, ranks, keep_float)
        plan = rules.place(PlacementTask(GraphView(proto.graph), ranges, every_operator, keep_float, weights.bits))
    else:
        assert rules.place_weights is not None
        plan = rules.place_weights(proto.graph, keep_float)
    if not plan.nodes:
        found = f"no node to quantize: {next(iter(plan.left.items()), 'no Conv, MatMul or Gemm')}"
        refuse("unsupported", found, "a weighted node with calibrated ranges", "check the export and the calibration")
    view = GraphView(proto.graph)
    seen = grams(plan.nodes) if grams else {}
    _Rewriter(view, plan, ranges or {}, rules, activation, weights, types, weight_type(view), seen, remember).rewrite()
    save_model(proto, variant, shares=variant.parent == model.parent)
    check_variant(variant, interface)
    return QdqReport(plan.nodes, plan.left)


@dataclass(frozen=True)
class _Stored:
    """A quantized constant, and the output name (`end`) of the DequantizeLinear that reads it."""

    values: NDArray[Any]
    scales: NDArray[Any]
    end: str


@dataclass
class _Rewriter:
    """Rewrite of one graph by the rules of an engine.

    `pairs` are inserted after the producer of their tensor, `first` before all nodes.
    """

    view: GraphView
    plan: Placement
    ranges: Mapping[str, Range]
    rules: PairRules
    activation: QuantizedType
    weights: Int8Weights
    types: Mapping[str, int]
    default_type: int
    grams: Mapping[str, Gram]
    remember: Remember
    affine: dict[str, Affine] = field(default_factory=dict)
    first: list[onnx.NodeProto] = field(default_factory=list)
    stored: dict[str, list[_Stored]] = field(default_factory=dict)
    pairs: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = Names(self.view.graph)

    def rewrite(self) -> None:
        graph = self.view.graph
        nodes = {node.name: node for node in graph.node}
        quantized = [nodes[name] for name in self.plan.nodes]
        # Weights first: they look up activations by the names of the float graph.
        for node in quantized:
            self._weigh(node)
        for tensor, places in self.plan.inputs.items():
            end = self._pair(tensor, self.names.new(f"{tensor}_dequantized"))
            for name, index in places:
                nodes[name].input[index] = end
        for tensor in sorted(self.plan.outputs):
            self._quantize_output(tensor)
        set_nodes(graph, self._ordered())

    def parameters(self, tensor: str) -> Affine:
        """Return the scale and zero point of an activation, or those of the tensor that it shares them with."""
        if tensor in self.plan.shares:
            return self.parameters(self.plan.shares[tensor])
        if tensor not in self.affine:
            low, high = self.ranges[tensor]
            least, most = self.view.bounds(tensor)
            low, high = (min(max(end, least), most) for end in (low, high))
            is_signed = self.rules.symmetric == "below zero" and low < 0
            kind: ActivationType = "int8" if is_signed else self.integer
            symmetric = is_signed or self.rules.symmetric == "always"
            self.affine[tensor] = fit_range(low, high, kind, symmetric=symmetric, dtype=self._float_of(tensor))
        return self.affine[tensor]

    @property
    def integer(self) -> ActivationType:
        """Integer type of activations."""
        return "uint8" if self.activation == "uint8" else "int8"

    def _float_of(self, tensor: str) -> np.dtype[Any]:
        return helper.tensor_dtype_to_np_dtype(self.types.get(tensor, self.default_type))

    def _weigh(self, node: onnx.NodeProto) -> None:
        """Quantize a node's weight and bias, its table, or the constant operands of an Add, Mul or Concat."""
        constants = [index for index, name in enumerate(node.input) if name in self.view.constants]
        if node.op_type in WEIGHT_INPUT and 1 in constants:
            self._store_weight_and_bias(node)
        elif node.op_type == "Gather":
            self._store_table(node)
        elif node.op_type in ("Add", "Mul", "Concat"):
            for index in constants:
                node.input[index] = self._store_operand(node.input[index])

    def _store_table(self, node: onnx.NodeProto) -> None:
        name = node.input[0]
        axis = 0 if self.weights.per_channel else None
        stored, scales = self.weights.quantize(to_array(self.view.constants[name]), axis)
        node.input[0] = self._dequantize(name, stored, scales, np.zeros(scales.shape, stored.dtype), axis)

    def _store_weight_and_bias(self, node: onnx.NodeProto) -> None:
        weight = self.view.constants[node.input[1]]
        values = to_array(weight)
        axis = self._channel_axis(node, weight)
        bias_name = node.input[2] if len(node.input) > 2 and self.rules.int32_bias else ""
        bias: NDArray[Any] | None = None
        smallest: NDArray[Any] = np.zeros(())
        if node.op_type == "Gemm" and self.rules.int32_bias:
            values = values * np.asarray(_take(node, "alpha"), values.dtype)
        if bias_name:
            bias = to_array(self.view.constants[bias_name]).reshape(-1)
            if node.op_type == "Gemm":
                bias = bias * np.asarray(_take(node, "beta"), bias.dtype)
            per_bias = smallest_weight_scale(bias, self.parameters(node.input[0]).scale)
            smallest = per_bias if axis is not None else np.asarray(per_bias.max())
        if self.activation == "e4m3":
            scales = fit_e4m3_weight(values, axis)
            stored = store_e4m3(values, scales, axis)
        else:
            gram = self.grams.get(node.name)
            quantize = partial(self.weights.quantize, values, axis, smallest=smallest, gram=gram)
            if gram is None or gram.cross is not None:
                # What a convolution reads in order depends on the layers that are rounded before it.
                stored, scales = quantize()
            else:
                told = *astuple(self.weights), self.rules.int32_bias, smallest.tolist()
                stored, scales = self.remember((node.name, *told), quantize)
        node.input[1] = self._dequantize(weight.name, stored, scales, np.zeros(scales.shape, stored.dtype), axis)
        if bias is not None:
            total = np.asarray(self.parameters(node.input[0]).scale * scales, scales.dtype)
            # One scale per channel, or a scalar.
            node.input[2] = self._dequantize(
                bias_name, store_bias(bias, total), total, None, 0 if total.shape else None
            )

    def _channel_axis(self, node: onnx.NodeProto, weight: onnx.TensorProto) -> int | None:
        stacked = node.op_type == "MatMul" and len(weight.dims) > 2
        return output_channel_axis(node, weight) if self.weights.per_channel and not stacked else None

    def _store_operand(self, name: str) -> str:
        """Quantize a constant operand like an activation, as the kernel requires, and return its dequantized name."""
        values = to_array(self.view.constants[name])
        fit = fit_range(float(values.min()), float(values.max()), self.integer, dtype=values.dtype)
        return self._dequantize(name, fit.store(values), fit.scale, np.array(fit.zero, fit.kind), None)

    def _dequantize(
        self, name: str, stored: NDArray[Any], scales: NDArray[Any], zero: NDArray[Any] | None, axis: int | None
    ) -> str:
        """Return the output name of the DequantizeLinear of a stored constant; equal stored constants share one."""
        forms = self.stored.setdefault(name, [])
        for form in forms:
            if np.array_equal(form.scales, scales) and np.array_equal(form.values, stored):
                return form.end
        label = f"{name}_{len(forms)}" if forms else name
        inputs = [self._constant(f"{label}_quantized", stored), self._constant(f"{label}_scale", scales)]
        if zero is not None:
            inputs.append(self._constant(f"{label}_zero_point", zero))
        options: dict[str, Any] = {} if axis is None else {"axis": axis}
        end, node = self.names.new(f"{label}_dequantized"), self.names.new(f"{label}_dequantize")
        self.first.append(helper.make_node("DequantizeLinear", inputs, [end], name=node, **options))
        forms.append(_Stored(stored, scales, end))
        return end

    def _constant(self, name: str, values: NDArray[Any]) -> str:
        return self.names.store(self.view.graph, name, values)

    def _pair(self, tensor: str, end: str) -> str:
        """Add the Q/DQ pair from an activation to the tensor `end`; return `end`."""
        scale_value, zero_value = self._scale_and_zero(tensor)
        scale = self._constant(f"{tensor}_scale", scale_value)
        zero = self._constant(f"{tensor}_zero_point", zero_value)
        middle = self.names.new(f"{tensor}_quantized")
        quantize, dequantize = (self.names.new(f"{tensor}_{verb}") for verb in ("quantize", "dequantize"))
        self.pairs[tensor] = [
            helper.make_node("QuantizeLinear", [tensor, scale, zero], [middle], name=quantize),
            helper.make_node("DequantizeLinear", [middle, scale, zero], [end], name=dequantize),
        ]
        return end

    def _scale_and_zero(self, tensor: str) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.activation == "e4m3":
            low, high = self.ranges[tensor]
            return fit_e4m3(max(-low, high), self._float_of(tensor)), np.zeros((), E4M3)
        fit = self.parameters(tensor)
        return fit.scale, np.array(fit.zero, fit.kind)

    def _quantize_output(self, tensor: str) -> None:
        """Quantize a tensor at its producer. A folded activation is removed, and its input's producer takes its output."""
        node = self.view.producer[tensor]
        if node.name in self.plan.folded:
            source = self.view.producer[node.input[0]]
            self.view.graph.node.remove(node)
            source.output[0] = tensor
            node = source
        if tensor in self.view.pinned:
            # Callers and subgraphs refer to the tensor by name, so the producer's output is renamed.
            made = self.names.new(f"{tensor}_float")
            node.output[list(node.output).index(tensor)] = made
            self._pair(tensor, tensor)
            self.pairs[made] = self.pairs.pop(tensor)
            self.pairs[made][0].input[0] = made
            return
        end = self._pair(tensor, self.names.new(f"{tensor}_dequantized"))
        for reader, index in self.view.readers.get(tensor, []):
            reader.input[index] = end

    def _ordered(self) -> list[onnx.NodeProto]:
        """Return all nodes, each pair after the producer of its tensor."""
        rest = dict(self.pairs)
        nodes = []
        for node in self.view.graph.node:
            nodes.append(node)
            for output in node.output:
                nodes.extend(rest.pop(output, []))
        return [*self.first, *(node for pair in rest.values() for node in pair), *nodes]


def _take(node: onnx.NodeProto, name: str) -> float:
    """Remove the factor alpha or beta from a Gemm and return it: integer kernels require 1."""
    value = float(attribute(node, name, 1.0))
    for item in [item for item in node.attribute if item.name == name]:
        node.attribute.remove(item)
    return value
