"""Normalization of exporter variants: the runtime accepts all of them, onnx's checker and the graph passes do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from validators.graph.flat_outputs import flatten_outputs
from validators.untrusted.external_data import graphs_of, nodes

# The standard domain has two spellings; onnx's checker knows only the first.
STANDARD, STANDARD_ALIAS = "", "ai.onnx"
LEARNING = "ai.onnx.ml"
BFLOAT16 = onnx.TensorProto.BFLOAT16
# First IR version in which an initializer need not be an input.
CONSTANTS_APART = 4


def normalize(model: onnx.ModelProto) -> dict[str, tuple[str, ...]]:
    """Rewrite a model in place so that every reader interprets it alike; a usual model stays unchanged byte for byte.

    Return the outputs that became tensors, with the names of these (`flat_outputs`).

    Initializers that are also inputs, as in old files, stop being inputs: a caller could override an input, so the runtime does
    not prepack it and no pass may change it. Negative dimensions become dynamic. `ai.onnx` becomes the empty domain. Duplicate
    node names within a graph are removed: the runtime refuses them, and a node needs no name. Inputs and outputs of bfloat16,
    a type that numpy lacks, become float32, with a Cast inside the model. Sparse constants become dense ones: of these alone
    passes know what they are. Two operators that skl2onnx writes become standard ones, which OpenVINO knows.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in [value for value in model.graph.input if value.name in constants]:
        model.graph.input.remove(value)
        model.ir_version = max(model.ir_version, CONSTANTS_APART)
    _drop_alias(model)
    for graph in graphs_of(model.graph):
        _densify(graph)
        _replace_learning_operators(graph)
        _name_apart(graph)
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("dim_value")
    changed = flatten_outputs(model.graph)
    _widen(model.graph)
    return changed


def undeclared_outputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the outputs whose rank the file does not declare.

    An empty shape means a scalar, or an exporter that knew no shape: it counts as undeclared.
    """
    return [value for value in model.graph.output if not (_is_no_tensor(value) or value.type.tensor_type.shape.dim)]


def is_checkable(model: onnx.ModelProto) -> bool:
    """Return True if onnx's checker can judge the model as is, without normalization and declared outputs."""
    complete = all(value.type.tensor_type.HasField("shape") or _is_no_tensor(value) for value in model.graph.output)
    return complete and not any(node.domain == STANDARD_ALIAS for node in nodes(model))


def declared_shape(shape: onnx.TensorShapeProto) -> tuple[int | str | None, ...]:
    """Return the size of each axis; for a dynamic axis its name, or None. Negative sizes count as dynamic.

    >>> value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 3, "n", None])
    >>> declared_shape(value.type.tensor_type.shape)
    (None, 3, 'n', None)
    """
    return tuple(
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in shape.dim
    )


def _is_no_tensor(value: onnx.ValueInfoProto) -> bool:
    return value.type.WhichOneof("value") not in (None, "tensor_type")


def _drop_alias(model: onnx.ModelProto) -> None:
    for opsets in (model.opset_import, *(function.opset_import for function in model.functions)):
        imports = [item for item in opsets if item.domain in (STANDARD, STANDARD_ALIAS)]
        for item in imports[1:]:
            opsets.remove(item)
        for item in imports[:1]:
            item.domain = STANDARD
    for node in nodes(model):
        if node.domain == STANDARD_ALIAS:
            node.domain = STANDARD


def _widen(graph: onnx.GraphProto) -> None:
    """Make inputs and outputs of bfloat16 float32. Every bfloat16 number is a float32 number, so that outputs stay exact."""
    inputs, outputs = (
        [value for value in values if value.type.tensor_type.elem_type == BFLOAT16]
        for values in (graph.input, graph.output)
    )
    inner = {value.name: f"{value.name}_bfloat16" for value in (*inputs, *outputs)}
    if not inner:
        return
    for body in graphs_of(graph):
        for node in body.node:
            node.input[:] = [inner.get(name, name) for name in node.input]
            node.output[:] = [inner.get(name, name) for name in node.output]
    for value in (*inputs, *outputs):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    before = [_cast(value.name, inner[value.name], BFLOAT16) for value in inputs]
    after = [_cast(inner[value.name], value.name, onnx.TensorProto.FLOAT) for value in outputs]
    kept = [*before, *graph.node, *after]
    del graph.node[:]
    graph.node.extend(kept)


def _cast(source: str, target: str, element_type: int) -> onnx.NodeProto:
    return onnx.helper.make_node("Cast", [source], [target], to=element_type, name=f"{target}_cast")


def _densify(graph: onnx.GraphProto) -> None:
    for sparse in graph.sparse_initializer:
        values, indices = (onnx.numpy_helper.to_array(part) for part in (sparse.values, sparse.indices))
        dense = np.zeros(list(sparse.dims), values.dtype)
        # Positions are those of a flat tensor, or one row of coordinates a value.
        dense[tuple(indices.T) if indices.ndim == 2 else np.unravel_index(indices, dense.shape)] = values
        graph.initializer.append(onnx.numpy_helper.from_array(dense, sparse.values.name))
    del graph.sparse_initializer[:]


def _replace_learning_operators(graph: onnx.GraphProto) -> None:
    """Write Scaler, and ArrayFeatureExtractor of a constant table of numbers, in operators of the standard domain."""
    tables = {tensor.name: tensor for tensor in graph.initializer}
    nodes_before = list(graph.node)
    made: list[onnx.NodeProto] = []
    for node in nodes_before:
        # The runtime refuses a Scaler without one of its two attributes.
        if (node.domain, node.op_type) == (LEARNING, "Scaler") and len(node.attribute) == 2:
            made += _scale(graph, node)
        elif (node.domain, node.op_type) == (LEARNING, "ArrayFeatureExtractor") and node.input[0] in tables:
            made += _gather(graph, node, onnx.numpy_helper.to_array(tables[node.input[0]]))
        else:
            made.append(node)
    if made != nodes_before:
        del graph.node[:]
        graph.node.extend(made)


def _scale(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return (x - offset) * scale in float32, whatever numbers the input has."""
    floats, shifted = (f"{node.output[0]}_{part}" for part in ("float", "shifted"))
    named = {item.name: f"{node.output[0]}_{item.name}" for item in node.attribute}
    for item in node.attribute:
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(item.floats, np.float32), named[item.name]))
    return [
        _cast(node.input[0], floats, onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Sub", [floats, named["offset"]], [shifted], name=shifted),
        onnx.helper.make_node("Mul", [shifted, named["scale"]], list(node.output), name=node.name),
    ]


def _gather(graph: onnx.GraphProto, node: onnx.NodeProto, table: NDArray[Any]) -> list[onnx.NodeProto]:
    """Return the columns of a constant table, of which a flat one is a single row, in the order of the flat indices."""
    rows, flat, every = (f"{node.output[0]}_{part}" for part in ("rows", "flat", "every"))
    graph.initializer.append(onnx.numpy_helper.from_array(np.atleast_2d(table), rows))
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), every))
    return [
        onnx.helper.make_node("Reshape", [node.input[1], every], [flat], name=flat),
        onnx.helper.make_node("Gather", [rows, flat], list(node.output), axis=-1, name=node.name),
    ]


def _name_apart(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)
