"""Clipping ranges of a quantized model's activations, read from the scales and zero points in its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

from tasks.ptq.eight_bit.affine import E4M3_MAX
from tasks.ptq.graph.edits import initializers, operator_of
from validators.graph.stored import load_model, to_array

E4M3_LIMITS = (-E4M3_MAX, E4M3_MAX)


def read_fixed_ranges(model: Path) -> dict[str, tuple[float, float]]:
    """Return the clipping range (least, greatest) of each activation with a constant scale, by tensor name.

    ONNX defines QuantizeLinear as q = saturate(round(x / scale) + zero_point). Values are therefore not clipped from
    (q_min - zero_point) * scale - scale / 2 to (q_max - zero_point) * scale + scale / 2.
    """
    if model.suffix != ".onnx":
        return {}  # compiled
    graph = load_model(model).graph
    constants = initializers(graph)
    found = {}
    for node in graph.node:
        if operator_of(node) != "QuantizeLinear" or node.input[0] in constants or node.input[1] not in constants:
            continue
        scale = to_array(constants[node.input[1]]).astype(np.float64)
        zero = constants.get(node.input[2]) if len(node.input) > 2 else None
        if scale.size != 1:
            continue  # per channel: no kernel supports that for activations
        kind = zero.data_type if zero is not None else TensorProto.UINT8
        least, most = _limits(kind)
        offset = 0.0 if zero is None or kind == TensorProto.FLOAT8E4M3FN else float(to_array(zero).reshape(-1)[0])
        step = float(scale.reshape(-1)[0])
        half = 0.0 if kind == TensorProto.FLOAT8E4M3FN else 0.5
        found[node.input[0]] = ((least - offset - half) * step, (most - offset + half) * step)
    return found


def _limits(kind: int) -> tuple[float, float]:
    """Return the least and greatest number of a quantized type."""
    if kind == TensorProto.FLOAT8E4M3FN:
        return E4M3_LIMITS
    limits = np.iinfo(helper.tensor_dtype_to_np_dtype(kind))
    return float(limits.min), float(limits.max)
