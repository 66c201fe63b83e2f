"""Positive factors before QuantizeLinear, for OpenVINO.

OpenVINO merges a product with constants into the QuantizeLinear that reads it. Where a factor is negative, it then computes
another function, unless certain operators come before (`benchmarks/engine_disagreements.py` has the patterns).
"""

from __future__ import annotations

import numpy as np
import onnx

from tasks.ptq.eight_bit.placement import FLOATS, GraphView
from tasks.ptq.eight_bit.smooth import layers_by_input, matrix_of, multiply_rows, set_constant
from tasks.ptq.graph.edits import operator_of
from validators.graph.stored import to_array


def negative_factor(view: GraphView, node: onnx.NodeProto) -> int | None:
    """Return the index of the input with negative factors, if a node ends in a product with constants; else None.

    After a product the bias of a LayerNormalization is a sum, which OpenVINO does not merge.
    """
    names = list(node.input)
    places = {"Mul": (0, 1), "Div": (1,), "LayerNormalization": () if any(names[2:]) else (1,)}
    for place in places.get(operator_of(node), ()):
        constant = view.constants.get(names[place])
        if constant is not None and constant.data_type in FLOATS and (to_array(constant) < 0).any():
            return place
    return None


def has_negative_factors(view: GraphView, tensor: str) -> bool:
    """Return True if a tensor is a product with negative constants, or one with further constants of such a product."""
    while (maker := view.producer.get(tensor)) is not None:
        if negative_factor(view, maker) is not None:
            return True
        # OpenVINO merges neighbouring products with constants into one.
        factors = [name for name in maker.input if name in view.constants]
        others = [name for name in maker.input if name not in view.constants]
        is_divided = operator_of(maker) == "Div" and factors == list(maker.input[1:])
        if len(others) != 1 or not (is_divided or operator_of(maker) == "Mul"):
            return False
        tensor = others[0]
    return False


def make_factors_positive(graph: onnx.GraphProto, *_: object) -> int:
    """Move negative signs of factors into the weights of the products that read them, exactly; return how many were moved.

    A factor stays as it is if anything else reads its product, or if it is not one of the last axis alone.
    """
    moved, view = 0, GraphView(graph)
    for tensor, layers in layers_by_input(view).items():
        maker = view.producer.get(tensor)
        place = None if maker is None else negative_factor(view, maker)
        if maker is None or place is None or tensor in view.pinned:
            continue
        values, channels = to_array(view.constants[maker.input[place]]), len(matrix_of(view, layers[0]))
        is_last_axis = values.size in (1, channels) and values.size == (values.shape or (1,))[-1]
        if not is_last_axis or any(reader not in layers or index for reader, index in view.readers[tensor]):
            continue
        set_constant(graph, maker, place, np.abs(values), values.dtype)
        multiply_rows(view, layers, np.broadcast_to(np.where(values < 0, -1.0, 1.0).reshape(-1), channels))
        moved += 1
    return moved
