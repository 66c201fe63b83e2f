"""Biases added after a product by an Add: find them, and fuse them where the runtime would do so itself."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx

from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.graph.edits import drop_unused_initializers


def fuse_bias(graph: onnx.GraphProto, ranks: Mapping[str, int], keep_float: Collection[str] = ()) -> int:
    """Fuse each rank-2 MatMul with a constant weight and its Add of a constant bias into a Gemm; return how many.

    `ranks` maps tensors to their ranks, where known. The Gemm keeps the name of the MatMul.
    """
    view = GraphView(graph)
    fused = 0
    for node in list(graph.node):
        add = bias_behind(view, node)
        weight = view.constants.get(node.input[1]) if add is not None else None
        if add is None or weight is None or ranks.get(node.input[0]) != 2 or {node.name, add.name} & set(keep_float):
            continue
        bias = next(name for name in add.input if name in view.constants)
        if len(weight.dims) != 2 or view.constants[bias].dims[0] != weight.dims[1]:
            continue
        node.op_type = "Gemm"
        node.input.append(bias)
        node.output[0] = add.output[0]
        graph.node.remove(add)
        fused += 1
    drop_unused_initializers(graph)
    return fused


def bias_behind(view: GraphView, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the Add of a one-axis constant that is the only reader of a MatMul's output, or None."""
    if node.op_type != "MatMul" or node.domain or not view.is_read_by(node.output[0], 1):
        return None
    add, index = view.readers[node.output[0]][0]
    bias = view.constants.get(add.input[1 - index]) if add.op_type == "Add" and not add.domain else None
    return add if bias is not None and len(bias.dims) == 1 else None
