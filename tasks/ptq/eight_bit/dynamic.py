"""Dynamic INT8 quantization: INT8 weights; the scale and zero point of activations are computed per request.

The pass writes ONNX Runtime's own operators (com.microsoft, ContribOperators.md). The runtime fuses the standard operators
to the same ones when it loads a file:

MatMul, Gemm        DynamicQuantizeMatMul; MatMulIntegerToFloat where several products read the same activation, which
                    DynamicQuantizeLinear then quantizes once. A constant added to each row becomes their bias.
Attention (fused)   QAttention
LSTM                DynamicQuantizeLSTM
GRU                 DynamicQuantizeMatMul, of all inputs at once and of the state in a Scan (`gru.py`), from 256 units on
Gather of a table   GatherBlockQuantized: an embedding, quantized in blocks of a row. It saves size only; nothing is
                    computed in INT8.

Bodies of If, Loop and Scan are quantized likewise, but for tables. With `rest`, only they and the recurrent layers are, in a
file with Q/DQ pairs: there are no calibrated ranges in a body, and no pairs for recurrent layers.

Convolutions stay in float: ConvInteger takes several times as long as Conv (`benchmarks/README.md`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from tasks.ptq.eight_bit.gru import quantized_gru, why_no_gru
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import KEPT, GraphView
from tasks.ptq.eight_bit.qdq import QdqReport
from tasks.ptq.eight_bit.tied import TABLE_BLOCKS, look_up, store_table
from tasks.ptq.graph.edits import (
    MICROSOFT,
    Names,
    attribute,
    custom_operators,
    import_runtime_operators,
    operator_of,
    set_nodes,
)
from validators.errors import CandidateRefused
from validators.graph.stored import load_model, save_model, spilling, to_array
from validators.untrusted.external_data import bodies_of

ATTENTION = f"{MICROSOFT}:Attention"
# Layers that no pairs of Q/DQ quantize, and tables, of which pairs would leave floats in memory.
REST = frozenset({"LSTM", "GRU", "Gather"})
# Attributes of Attention that QAttention supports.
ATTENTION_ATTRIBUTES = {"num_heads", "unidirectional", "scale", "mask_filter_value"}


@dataclass
class _DynamicPass:
    """State of one pass: the new nodes in order, and the quantized weights and activations that nodes share."""

    view: GraphView
    settings: Int8Weights
    readers_in_int8: dict[str, int]
    names: Names
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[tuple[str, bool], tuple[str, str, str]] = field(default_factory=dict)
    activations: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    folded: set[str] = field(default_factory=set)

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add a constant to the graph; return its name."""
        return self.names.store(self.view.graph, name, array)


@spilling()
def quantize_dynamic(
    float_model: Path,
    variant: Path,
    *,
    weights: Int8Weights,
    keep_float: Collection[str] = (),
    rest: bool = False,
) -> QdqReport:
    """Write a dynamically quantized variant of a float model with named nodes.

    Weights are symmetric INT8. The nodes in `keep_float` are unchanged. A variant in the folder of a model with external
    weights shares the unchanged weights. `rest` takes a file with Q/DQ pairs, and quantizes what pairs cannot; the variant is
    not written if there is nothing of it.

    Raises:
        CandidateRefused: `unsupported`: the model has no node that can be quantized dynamically (not with `rest`).
    """
    proto = load_model(float_model)
    names = Names(proto.graph)
    report = _quantize_graph(proto.graph, {}, weights, keep_float, names, REST if rest else None)
    if not report.quantized:
        if rest:
            return report
        raise _nothing(report.left)
    import_runtime_operators(proto)
    save_model(proto, variant, shares=variant.parent == float_model.parent)
    return report


def _quantize_graph(
    graph: onnx.GraphProto,
    outer: Mapping[str, onnx.TensorProto],
    weights: Int8Weights,
    keep_float: Collection[str],
    names: Names,
    kinds: Collection[str] | None,
) -> QdqReport:
    """Quantize a graph and the bodies in it. `outer` are the constants of the graphs around; `kinds` limits the operators."""
    view = GraphView(graph)
    own = frozenset(view.constants)
    computed = {*view.producer, *(value.name for value in graph.input)}
    view.constants = {name: value for name, value in outer.items() if name not in computed} | view.constants
    # The runtime's form of a table reads it from the graph that holds the look-up.
    tables = {node.name for node in graph.node if node.op_type == "Gather" and node.input[0] not in own}
    quantized: list[str] = []
    left: dict[str, str] = {}
    for node in graph.node:
        for body in bodies_of(node):
            inner = _quantize_graph(body, view.constants, weights, keep_float, names, None)
            quantized += inner.quantized
            left |= inner.left
    nodes = [node for node in graph.node if kinds is None or operator_of(node) in kinds]
    left |= {node.name: why for node in nodes if node.name not in tables and (why := _why_left(view, node, keep_float))}
    chosen = [node for node in nodes if node.name not in {*left, *tables} and _has_form(view, node)]
    taken = {node.name for node in chosen}
    left |= {
        name: why for name, why in custom_operators(graph).items() if name not in {*taken, *left} and kinds is None
    }
    readers: dict[str, int] = {}
    for node in chosen:
        if operator_of(node) in ("MatMul", "Gemm", ATTENTION):
            readers[node.input[0]] = readers.get(node.input[0], 0) + 1
    work = _DynamicPass(view, weights, readers, names)
    for node in graph.node:
        if node.name in taken:
            work.nodes.extend(_MAKERS[operator_of(node)](work, node))
        elif node.name not in work.folded:
            work.nodes.append(node)
    set_nodes(graph, work.nodes)
    return QdqReport((*quantized, *(node.name for node in chosen)), left)


def _has_form(view: GraphView, node: onnx.NodeProto) -> bool:
    """Return whether a node has a quantized form. A Gather of indices or shapes has none."""
    return operator_of(node) in _MAKERS and (node.op_type != "Gather" or _is_matrix(view, node.input[0]))


def _why_left(view: GraphView, node: onnx.NodeProto, keep_float: Collection[str]) -> str | None:
    """Return why a node with weights stays in float; None for nodes that can be quantized and for all others."""
    if node.name in keep_float:
        return KEPT
    kind = operator_of(node)
    if kind in ("Conv", "ConvTranspose"):
        return "convolutions are slower with ranges at run time"
    if kind in ("MatMul", "Gemm"):
        return _why_no_product(view, node)
    if kind == ATTENTION:
        extra = any(node.input[4:]) or {item.name for item in node.attribute} - ATTENTION_ATTRIBUTES
        plain = not extra and node.input[2] and _is_matrix(view, node.input[1])
        return None if plain else "attention in a form that has no quantized one"
    if kind == "LSTM":
        weights = [view.constants.get(name) for name in node.input[1:3]]
        fixed = all(weight is not None and weight.data_type == onnx.TensorProto.FLOAT for weight in weights)
        plain = fixed and not any(node.input[7:]) and not attribute(node, "layout", 0)
        return None if plain else "an LSTM in a form that has no quantized one"
    if kind == "GRU":
        return why_no_gru(view, node)
    if kind == "RNN":
        return "an RNN has no integer kernel"
    if kind == "Gather":
        if not _is_matrix(view, node.input[0]):
            return None
        table = view.constants[node.input[0]]
        shared = len(view.readers[node.input[0]]) > 1 or attribute(node, "axis", 0) != 0
        return "a table that is read elsewhere, or by columns" if shared or _block_of(table.dims[1]) is None else None
    return None


def _why_no_product(view: GraphView, node: onnx.NodeProto) -> str | None:
    if not _is_matrix(view, node.input[1]):
        return "the weight is no constant matrix of float32"
    if node.input[0] in view.constants:
        return "the input is a constant"
    scaled = attribute(node, "alpha", 1.0) != 1.0 or attribute(node, "beta", 1.0) != 1.0
    return "a Gemm with alpha, beta or transA" if scaled or attribute(node, "transA", 0) else None


def _is_matrix(view: GraphView, name: str) -> bool:
    constant = view.constants.get(name)
    return constant is not None and len(constant.dims) == 2 and constant.data_type == onnx.TensorProto.FLOAT


def _block_of(columns: int) -> int | None:
    return next((size for size in TABLE_BLOCKS if columns % size == 0), None)


def _product(work: _DynamicPass, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the quantized form of a MatMul or Gemm, with the constant added to each row as its bias."""
    weight, scales, zeros = _weight(work, node.input[1], bool(attribute(node, "transB", 0)))
    output, bias, after = _bias(work, node)
    activation = node.input[0]
    if work.readers_in_int8[activation] == 1:
        inputs = [activation, weight, scales, zeros, bias]
        return [make_node("DynamicQuantizeMatMul", inputs, [output], name=node.name, domain=MICROSOFT), *after]
    made, (stored, scale, zero) = _activation(work, activation)
    inputs = [stored, weight, scale, scales, zero, zeros, bias]
    return [*made, make_node("MatMulIntegerToFloat", inputs, [output], name=node.name, domain=MICROSOFT), *after]


def _bias(work: _DynamicPass, node: onnx.NodeProto) -> tuple[str, str, list[onnx.NodeProto]]:
    """Return a product's output name, its bias (empty for none), and the nodes that must follow it."""
    view, output = work.view, node.output[0]
    width = view.constants[node.input[1]].dims[0 if attribute(node, "transB", 0) else 1]

    def is_row(name: str) -> bool:
        return name in view.constants and list(view.constants[name].dims) == [width]

    if len(node.input) > 2 and node.input[2]:
        if is_row(node.input[2]):
            return output, node.input[2], []
        product = work.names.new(f"{output}_product")
        name = work.names.new(f"{node.name}_Add")
        return product, "", [make_node("Add", [product, node.input[2]], [output], name=name)]
    if not view.is_read_by(output, 1):
        return output, "", []
    reader, place = view.readers[output][0]
    if operator_of(reader) != "Add" or not is_row(reader.input[1 - place]):
        return output, "", []
    work.folded.add(reader.name)
    return reader.output[0], reader.input[1 - place], []


def _attention(work: _DynamicPass, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    weight, scales, zeros = _weight(work, node.input[1], False)
    made, (stored, scale, zero) = _activation(work, node.input[0])
    mask = node.input[3] if len(node.input) > 3 else ""
    inputs = [stored, weight, node.input[2], scale, scales, mask, zero, zeros]
    quantized = make_node("QAttention", inputs, list(node.output), name=node.name, domain=MICROSOFT)
    quantized.attribute.extend(node.attribute)
    return [*made, quantized]


def _lstm(work: _DynamicPass, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the DynamicQuantizeLSTM of an LSTM.

    W `[directions, 4 hidden, inputs]` and R `[directions, 4 hidden, hidden]` are stored with the last two axes swapped.
    Scales are `[directions, 4 hidden]` or `[directions]`.
    """
    stored: list[str] = []
    parts: list[str] = []
    for name in node.input[1:3]:
        weight = to_array(work.view.constants[name])
        # The channel axis is that within one direction.
        codes, scales = map(np.stack, zip(*(work.settings.quantize(one, 0) for one in weight), strict=True))
        stored.append(work.constant(f"{name}_int8", np.ascontiguousarray(codes.transpose(0, 2, 1))))
        parts += [
            work.constant(f"{name}_scale", scales),
            work.constant(f"{name}_zero_point", np.zeros(scales.shape, np.int8)),
        ]
    rest = [*node.input[3:7], *[""] * 4][:4]  # bias, sequence lengths, initial states
    inputs = [node.input[0], *stored, *rest, "", *parts]
    quantized = make_node("DynamicQuantizeLSTM", inputs, list(node.output), name=node.name, domain=MICROSOFT)
    quantized.attribute.extend(item for item in node.attribute if item.name != "layout")
    return [quantized]


def _gru(work: _DynamicPass, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return quantized_gru(node, work.view, work.settings, work.names, work.constant)


def _table(work: _DynamicPass, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    constant = work.view.constants[node.input[0]]
    size = _block_of(constant.dims[1])
    assert size is not None  # `_why_left` leaves tables without a block size in float
    names = store_table(work.view.graph, node.input[0], work.names, bits=8, block_size=size)
    return [look_up(node, names, 8, size)]


def _weight(work: _DynamicPass, name: str, transposed: bool) -> tuple[str, str, str]:
    """Return the names of an INT8 matrix `[K, N]`, its scales and its zero points (all 0); stored once per matrix."""
    if (name, transposed) not in work.weights:
        matrix = to_array(work.view.constants[name])
        matrix = np.ascontiguousarray(matrix.T) if transposed else matrix
        codes, scales = work.settings.quantize(matrix, 1)
        work.weights[name, transposed] = (
            work.constant(f"{name}_int8", codes),
            work.constant(f"{name}_scale", scales),
            work.constant(f"{name}_zero_point", np.zeros(scales.shape, np.int8)),
        )
    return work.weights[name, transposed]


def _activation(work: _DynamicPass, name: str) -> tuple[list[onnx.NodeProto], tuple[str, str, str]]:
    """Return the names of an activation in UINT8, its scale and its zero point, after the nodes that compute them.

    The list of nodes is empty from the second call on.
    """
    if name in work.activations:
        return [], work.activations[name]
    outputs = [work.names.new(f"{name}_{part}") for part in ("uint8", "scale", "zero_point")]
    work.activations[name] = (outputs[0], outputs[1], outputs[2])
    node = make_node("DynamicQuantizeLinear", [name], outputs, name=work.names.new(f"{name}_DynamicQuantizeLinear"))
    return [node], work.activations[name]


def _nothing(left: dict[str, str]) -> CandidateRefused:
    but = "; ".join(f"{name}: {why}" for name, why in list(left.items())[:5])
    return CandidateRefused(
        kind="unsupported",
        found="nothing to quantize with ranges at run time" + (f" ({but})" if but else ""),
        expected="a MatMul, Gemm, LSTM, GRU, fused Attention or table with constant weights",
        fix="take a candidate of INT8 static",
    )


_MAKERS = {"MatMul": _product, "Gemm": _product, ATTENTION: _attention, "LSTM": _lstm, "GRU": _gru, "Gather": _table}
