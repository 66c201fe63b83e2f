"""FP8 E4M3: weights and the inputs of MatMul, Gemm and Conv through Q/DQ pairs with scale = amax / 448."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tasks.ptq.affine import fit_e4m3
from tasks.ptq.graph import drop_unused_initializers, output_channel_axis, save_model, to_array, weighted_nodes
from tasks.ptq.range_methods import Range
from validators.errors import CandidateRefused
from validators.onnx_graph import opset_of
from validators.recipe import Candidate

# QuantizeLinear takes FP8 from this opset on.
LEAST_OPSET = 19

Scales = NDArray[np.float32]


def weight_scales(weight: NDArray[np.float32], channel_axis: int | None) -> Scales:
    """amax / 448 over the whole weight (shape `()`) or over each slice along `channel_axis` (shape `(channels,)`).

    A channel of zeros gets scale 1: a zero scale would make NaN of it.

    >>> weight_scales(np.array([[448.0, 1.0], [-896.0, 0.0]], np.float32), 0).tolist()
    [1.0, 2.0]
    """
    if channel_axis is None:
        amax = np.abs(weight).max()
    else:
        amax = np.abs(weight).max(axis=tuple(axis for axis in range(weight.ndim) if axis != channel_axis))
    return fit_e4m3(amax)


def quantize_fp8(prepared: Path, ranges: Mapping[str, Range], candidate: Candidate, variant: Path) -> dict[str, int]:
    """Write the Q/DQ model; activation scales come from their minmax `ranges`, per tensor.

    Raises:
        CandidateRefused: `unsupported`: no node of the model could be quantized, or its opset has no FP8.
    """
    model = onnx.load(prepared)
    if opset_of(model) < LEAST_OPSET:
        raise CandidateRefused(
            kind="unsupported",
            found=f"opset {opset_of(model)}",
            expected=f"opset {LEAST_OPSET} or above, the first with FP8 Q/DQ",
            fix="export the model with a newer opset",
        )
    graph = model.graph
    amax = {name: max(-low, high) for name, (low, high) in ranges.items()}
    pairs: dict[str, list[onnx.NodeProto]] = {}
    constants: dict[str, onnx.TensorProto] = {}
    quantized = 0
    for node, weight in weighted_nodes(graph):
        activation = node.input[0]
        if activation not in amax:
            continue
        axis = output_channel_axis(node, weight) if candidate.granularity == "pc" else None
        if weight.name not in pairs:
            pairs[weight.name] = _weight_pair(weight, axis, constants)
        if activation not in pairs:
            pairs[activation] = _activation_pair(activation, amax[activation], constants)
        node.input[0] = pairs[activation][-1].output[0]
        node.input[1] = pairs[weight.name][-1].output[0]
        quantized += 1
    if not quantized:
        raise CandidateRefused(
            kind="unsupported",
            found="no MatMul, Gemm or Conv with a constant weight and a calibrated input",
            expected="at least one",
            fix="check the export; weights must be constants",
        )
    graph.initializer.extend(constants.values())
    _insert(graph, pairs)
    drop_unused_initializers(graph)
    save_model(model, variant)
    return {"MatMul, Gemm and Conv in FP8 E4M3": quantized}


def _weight_pair(
    weight: onnx.TensorProto, axis: int | None, constants: dict[str, onnx.TensorProto]
) -> list[onnx.NodeProto]:
    """Store the weight as E4M3 and return the DequantizeLinear that gives it back as float."""
    values = to_array(weight).astype(np.float32)
    scales = weight_scales(values, axis)
    shape = [1] * values.ndim
    if axis is not None:
        shape[axis] = -1
    stored = (values / scales.reshape(shape)).astype(helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT8E4M3FN))
    names = [f"{weight.name}_fp8", f"{weight.name}_scale"]
    constants[names[0]] = helper.make_tensor(
        names[0], TensorProto.FLOAT8E4M3FN, weight.dims, stored.tobytes(), raw=True
    )
    constants[names[1]] = onnx.numpy_helper.from_array(scales, names[1])
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    name = f"{weight.name}_dequantize"
    return [helper.make_node("DequantizeLinear", names, [f"{weight.name}_dequantized"], name=name, **attributes)]


def _activation_pair(activation: str, amax: float, constants: dict[str, onnx.TensorProto]) -> list[onnx.NodeProto]:
    scale, zero = f"{activation}_scale", "fp8_zero_point"
    constants[scale] = onnx.numpy_helper.from_array(weight_scales(np.array([amax], np.float32), None), scale)
    constants[zero] = helper.make_tensor(zero, TensorProto.FLOAT8E4M3FN, [], b"\0", raw=True)
    middle, end = f"{activation}_fp8", f"{activation}_dequantized"
    return [
        helper.make_node(
            "QuantizeLinear", [activation, scale, zero], [middle], name=f"{activation}_quantize", saturate=1
        ),
        helper.make_node("DequantizeLinear", [middle, scale, zero], [end], name=f"{activation}_dequantize"),
    ]


def _insert(graph: onnx.GraphProto, pairs: dict[str, list[onnx.NodeProto]]) -> None:
    """Put each pair right behind the node that makes its tensor; those of inputs and constants come first."""
    rest = dict(pairs)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        nodes.append(node)
        for output in node.output:
            nodes.extend(rest.pop(output, []))
    first = [node for pair in rest.values() for node in pair]
    del graph.node[:]
    graph.node.extend(first + nodes)
