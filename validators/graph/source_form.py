"""One form for what exporters write in several: the runtime accepts all of them, onnx's checker and the passes do not."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from validators.untrusted.external_data import nodes

# The standard domain has two spellings; onnx's checker looks operators up by the first alone.
STANDARD, STANDARD_ALIAS = "", "ai.onnx"
# The first IR version in which a constant need not be an input.
CONSTANTS_APART = 4


def normalize(model: onnx.ModelProto) -> None:
    """Rewrite a model in place so that it says the same to every reader; a usual model stays byte for byte as it is.

    Inputs that are constants, as all were in old files, become constants alone: a caller could replace them, so that the
    runtime does not prepare them and no pass may change them. Negative dimensions become dynamic ones. `ai.onnx` becomes the
    empty domain. A node name that another node of its graph has is taken away: the runtime refuses it, and a node needs none.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    for value in [value for value in model.graph.input if value.name in constants]:
        model.graph.input.remove(value)
        model.ir_version = max(model.ir_version, CONSTANTS_APART)
    _drop_alias(model)
    for graph in _graphs(model.graph):
        _name_apart(graph)
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in value.type.tensor_type.shape.dim:
                if dim.HasField("dim_value") and dim.dim_value < 0:
                    dim.ClearField("dim_value")


def undeclared_outputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The outputs of which the file does not say how many axes they have.

    An empty shape is that of a scalar, or of an exporter that knew none: it counts as not said.
    """
    return [value for value in model.graph.output if _is_undeclared(value)]


def is_checkable(model: onnx.ModelProto) -> bool:
    """Whether onnx's checker can judge the model as it is; otherwise only once it is normalized and its outputs declared."""
    complete = all(value.type.tensor_type.HasField("shape") or _is_no_tensor(value) for value in model.graph.output)
    return complete and not any(node.domain == STANDARD_ALIAS for node in nodes(model))


def declared_shape(shape: onnx.TensorShapeProto) -> tuple[int | str | None, ...]:
    """The sizes of the axes: the name of a dynamic one, None where it has none. Negative sizes are dynamic.

    >>> value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [-1, 3, "n", None])
    >>> declared_shape(value.type.tensor_type.shape)
    (None, 3, 'n', None)
    """
    return tuple(
        (dim.dim_value if dim.dim_value >= 0 else None) if dim.HasField("dim_value") else dim.dim_param or None
        for dim in shape.dim
    )


def _is_undeclared(value: onnx.ValueInfoProto) -> bool:
    return not _is_no_tensor(value) and not value.type.tensor_type.shape.dim


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


def _name_apart(graph: onnx.GraphProto) -> None:
    seen: set[str] = set()
    for node in graph.node:
        if node.name in seen:
            node.name = ""
        seen.add(node.name)


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and all bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                if body.node or body.output:
                    yield from _graphs(body)
