"""Rewrite of a mean over the positions of an image or a signal as GlobalAveragePool."""

from __future__ import annotations

import onnx

from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import attribute, operator_of
from validators.graph.stored import to_array

FEATURE_AXES = 2  # batch and channels come before the positions
# Operators that exist for channels-first tensors only, and operators that keep the layout of their input.
CHANNELS_FIRST = frozenset({"Conv", "ConvTranspose", "MaxPool", "AveragePool", "BatchNormalization"})
KEEPS_LAYOUT = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "PRelu",
        "Elu",
        "Clip",
        "Sigmoid",
        "HardSigmoid",
        "HardSwish",
        "Tanh",
        "Gelu",
        "Mish",
        "Swish",
    }
    | {"Softplus", "Erf", "Add", "Mul", "Div", "Concat", "Dropout", "Identity"}
)


def pool_means(graph: onnx.GraphProto) -> int:
    """Replace each ReduceMean over all positions of `[batch, channels, ...]` by GlobalAveragePool; return how many.

    Exporters write the mean for the pooling. The values are equal, but only the pooling has an integer kernel. It reads
    channels last, as integer convolutions write them. The mean takes a transposition and a DequantizeLinear of the whole
    tensor (a tenth of the time of an EfficientNet-Lite0 at batch 16).

    The axes alone do not distinguish a pooling from a norm: a LayerNorm also reduces the last axis of
    `[batch, tokens, width]`, and a GlobalAveragePool there keeps the runtime from fusing the norm. So the tensor must come
    from a channels-first operator, where alone the pooling pays, and no Sub may subtract the mean from the tensor.
    """
    view = GraphView(graph)
    ranks = {
        info.name: len(info.type.tensor_type.shape.dim)
        for info in (*graph.input, *graph.value_info)
        if info.type.tensor_type.HasField("shape")
    }
    channels_first = _channels_first(graph)
    made = 0
    for node in graph.node:
        if (
            operator_of(node) == "ReduceMean"
            and node.input[0] in channels_first
            and _reduces_positions(node, view.constants, ranks.get(node.input[0]))
            and not _is_subtracted(view, node)
        ):
            node.op_type = "GlobalAveragePool"
            del node.input[1:], node.attribute[:]
            made += 1
    return made


def _channels_first(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors of layout `[batch, channels, ...]`: outputs of `CHANNELS_FIRST`, propagated by `KEEPS_LAYOUT`."""
    found: set[str] = set()
    for node in graph.node:  # ONNX requires topological order
        kind = operator_of(node)
        if kind in CHANNELS_FIRST or (kind in KEEPS_LAYOUT and any(name in found for name in node.input)):
            found.update(filter(None, node.output))
    return found


def _is_subtracted(view: GraphView, mean: onnx.NodeProto) -> bool:
    """Return whether a Sub subtracts the mean from the tensor itself, as norms do."""
    readers = view.readers.get(mean.output[0], [])
    return any(operator_of(reader) == "Sub" and mean.input[0] in reader.input for reader, _ in readers)


def _reduces_positions(node: onnx.NodeProto, constants: dict[str, onnx.TensorProto], rank: int | None) -> bool:
    """Return whether the node keeps its axes and reduces exactly the position axes."""
    if rank is None or rank <= FEATURE_AXES or not attribute(node, "keepdims", 1):
        return False
    if len(node.input) > 1:
        if node.input[1] not in constants:
            return False
        axes = to_array(constants[node.input[1]]).tolist()
    else:
        axes = attribute(node, "axes", [])
    return sorted(axis % rank for axis in axes) == list(range(FEATURE_AXES, rank))
