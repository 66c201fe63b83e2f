"""The mean over the positions of a picture, written as the pooling that it is."""

from __future__ import annotations

import onnx

from tasks.ptq.graph import attribute, initializers, operator_of, to_array

FEATURE_AXES = 2  # batch and channels come before the positions


def pool_means(graph: onnx.GraphProto) -> int:
    """Make GlobalAveragePool of each ReduceMean over all positions of `[batch, channels, ...]`; return how many.

    Exporters write one for the other. The values are the same, but only the pooling has an integer kernel, and one that
    reads channels last as the integer convolutions before it write them: the mean cost a transposition and a
    DequantizeLinear of the whole tensor (a tenth of an EfficientNet-Lite0 at batch 16).
    """
    constants = initializers(graph)
    ranks = {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in (*graph.input, *graph.value_info)
        if info.type.tensor_type.HasField("shape")
    }
    made = 0
    for node in graph.node:
        if operator_of(node) == "ReduceMean" and _positions(node, constants, ranks.get(node.input[0])):
            node.op_type = "GlobalAveragePool"
            del node.input[1:], node.attribute[:]
            made += 1
    return made


def _positions(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], rank: int | None) -> bool:
    """Whether the node keeps its axes and reduces exactly those of positions."""
    if rank is None or rank <= FEATURE_AXES or not attribute(node, "keepdims", 1):
        return False
    if len(node.input) > 1:
        if node.input[1] not in constants:
            return False
        axes = to_array(constants[node.input[1]]).tolist()
    else:
        axes = attribute(node, "axes", [])
    return sorted(axis % rank for axis in axes) == list(range(FEATURE_AXES, rank))
