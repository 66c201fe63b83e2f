"""Widening of float16 to float32: ONNX Runtime's CPU provider has few float16 kernels, and no integer kernel reads float16.

Every float16 number is exact in float32, so weights keep their values; results are rounded less.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
from onnx import TensorProto, helper

from tasks.ptq.graph.edits import Names, interface_of
from validators.errors import CandidateRefused
from validators.graph.stored import from_array, to_array
from validators.untrusted.external_data import bodies_of, nodes_of

# Attributes of standard and contrib operators that name the type of their output or of their computation.
TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype", "output_datatype", "softmax_precision", "stash_type"})


def widen(model: onnx.ModelProto) -> int:
    """Make a float16 graph compute in float32 with the same inputs and outputs; return the number of widened constants.

    A Cast follows each float16 input and precedes each float16 output. Weights must be in memory.

    Raises:
        CandidateRefused: `unsupported`: an input or output is a sequence of float16, which Cast does not support.
    """
    graph = model.graph
    interface = interface_of(graph)
    border = [value for value in [*graph.input, *graph.output] if _is_half(value)]
    inputs = {value.name for value in graph.input}
    count = _widen_graph(graph)
    for function in model.functions:
        count += sum(_widen_attributes(node) for node in function.node)
        del function.value_info[:]
    for value in border:
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    if interface_of(graph) != interface:
        raise CandidateRefused(
            kind="unsupported",
            found="an input or output that is a sequence of float16",
            expected="tensors, which can be cast",
            fix="export the model with tensors as inputs and outputs, or in float32",
        )
    _cast_border(graph, [value.name for value in border], inputs)
    return count


def has_half(model: onnx.ModelProto) -> bool:
    """Return whether anything in a model is float16."""
    nodes = [*nodes_of(model.graph), *(node for function in model.functions for node in function.node)]
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return (
        any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer)
        or any(_is_half(value) for value in values)
        or any(_names_half(item) for node in nodes for item in node.attribute)
    )


def _widen_graph(graph: onnx.GraphProto) -> int:
    """Widen a graph and its bodies, including the declared types."""
    count = sum(_widen_tensor(tensor) for tensor in graph.initializer)
    for value in [*graph.input, *graph.output, *graph.value_info]:
        _widen_type(value.type)
    return count + sum(_widen_attributes(node) for node in graph.node)


def _widen_attributes(node: onnx.NodeProto) -> int:
    count = 0
    for item in node.attribute:
        if _names_half(item) and item.type == onnx.AttributeProto.INT:
            item.i = TensorProto.FLOAT
        count += sum(_widen_tensor(tensor) for tensor in [item.t, *item.tensors])
        for kind in [item.tp, *item.type_protos]:
            _widen_type(kind)
    return count + sum(_widen_graph(body) for body in bodies_of(node))


def _widen_tensor(tensor: onnx.TensorProto) -> int:
    if tensor.data_type != TensorProto.FLOAT16:
        return 0
    tensor.CopyFrom(from_array(to_array(tensor).astype(np.float32), tensor.name))
    return 1


def _widen_type(kind: onnx.TypeProto) -> None:
    match kind.WhichOneof("value"):
        case "tensor_type" if kind.tensor_type.elem_type == TensorProto.FLOAT16:
            kind.tensor_type.elem_type = TensorProto.FLOAT
        case "sequence_type":
            _widen_type(kind.sequence_type.elem_type)
        case "optional_type":
            _widen_type(kind.optional_type.elem_type)


def _cast_border(graph: onnx.GraphProto, names: Iterable[str], inputs: set[str]) -> None:
    """Insert a Cast after each of these inputs and before each of these outputs, and rename the tensor inside the graph."""
    allocator = Names(graph)
    first, last = [], []
    inner: dict[str, str] = {}
    for name in names:
        if name in inner:
            continue
        inner[name] = allocator.new(f"{name}_float32")
        if name in inputs:
            node = allocator.new(f"{name}_widen")
            first.append(helper.make_node("Cast", [name], [inner[name]], name=node, to=TensorProto.FLOAT))
        else:
            node = allocator.new(f"{name}_narrow")
            last.append(helper.make_node("Cast", [inner[name]], [name], name=node, to=TensorProto.FLOAT16))
    _rename(graph, inner)
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors and constants, in the graph and in the bodies that read them."""
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    del graph.value_info[:]  # shapes are inferred anew
    for node in nodes_of(graph):
        for field in (node.input, node.output):
            field[:] = [names.get(name, name) for name in field]
        for body in bodies_of(node):
            for value in body.output:
                value.name = names.get(value.name, value.name)


def _is_half(value: onnx.ValueInfoProto) -> bool:
    return bool(value.type.tensor_type.elem_type == TensorProto.FLOAT16)


def _names_half(item: onnx.AttributeProto) -> bool:
    """Return whether an attribute holds a float16 tensor or names float16."""
    return (item.name in TYPE_ATTRIBUTES and item.i == TensorProto.FLOAT16) or item.t.data_type == TensorProto.FLOAT16
