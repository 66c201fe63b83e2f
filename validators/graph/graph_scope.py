"""Name index of one graph of an ONNX model: its constants, and the producer and readers of each tensor.

Weights are not read; from external data, only scales and zero points are. Bodies of If, Loop and Scan are separate scopes,
which see the names of the enclosing graphs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from validators.errors import SourceError
from validators.untrusted.external_data import bodies_of

Array = NDArray[Any]
QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class Scope:
    """One graph: the main graph, a body, or a function. `readers` includes readers in nested bodies."""

    folder: Path
    graph: onnx.GraphProto | onnx.FunctionProto
    parent: Scope | None = None
    constants: dict[str, TensorProto] = field(default_factory=dict)
    producers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    readers: dict[str, list[tuple[Scope, onnx.NodeProto, int]]] = field(default_factory=dict)
    values: dict[str, onnx.ValueInfoProto] = field(default_factory=dict)

    def owner(self, name: str) -> Scope:
        """Return the scope that defines a name; the outermost scope if none does."""
        scope = self
        while scope.parent is not None and not (
            name in scope.constants or name in scope.values or name in scope.producers
        ):
            scope = scope.parent
        return scope

    def constant(self, name: str) -> TensorProto | None:
        """Return the stored tensor of this name, if any."""
        return self.owner(name).constants.get(name)

    def producer(self, name: str) -> onnx.NodeProto | None:
        """Return the node that produces a tensor; None for a constant or an input."""
        owner = self.owner(name)
        return None if name in owner.constants else owner.producers.get(name)

    def read_by(self, name: str) -> list[tuple[Scope, onnx.NodeProto, int]]:
        """Return the readers of a tensor: scope, node and input index."""
        return self.owner(name).readers.get(name, [])

    def element_type(self, name: str) -> int:
        """Return the ONNX data type of a tensor; 0 if unknown."""
        constant, value = self.constant(name), self.owner(name).values.get(name)
        return constant.data_type if constant is not None else value.type.tensor_type.elem_type if value else 0

    def shape(self, name: str) -> list[int] | None:
        """Return the sizes of a tensor's axes, 0 for a dynamic axis; None if the rank is unknown."""
        constant, value = self.constant(name), self.owner(name).values.get(name)
        if constant is not None:
            return list(constant.dims)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        return [max(0, dim.dim_value) for dim in value.type.tensor_type.shape.dim]

    def numbers(self, tensor: TensorProto) -> Array:
        """Return the values of a scale or zero point as float64, in the tensor's shape.

        Raises:
            SourceError: the external data file is missing or too short.
        """
        try:
            return np.asarray(numpy_helper.to_array(tensor, base_dir=str(self.folder))).astype(np.float64)
        except (OSError, ValueError, onnx.checker.ValidationError) as error:
            raise SourceError(
                found=f"the values of {tensor.name} cannot be read: {error}",
                expected="the model's external data in the same folder",
                fix="copy all files of the model",
            ) from error

    def is_computed(self, name: str) -> bool:
        """Return True if a tensor depends on an input of the model."""
        pending, seen = [name], {""}
        while pending:
            item = pending.pop()
            node = self.producer(item)
            if node is None and self.constant(item) is None:
                return True
            seen.add(item)
            pending += [other for other in (node.input if node else ()) if other not in seen]
        return False


def is_standard(node: onnx.NodeProto) -> bool:
    """Return True if a node's operator is in the standard ONNX domain."""
    return node.domain in ("", "ai.onnx")


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or `default`."""
    return next((helper.get_attribute_value(item) for item in node.attribute if item.name == name), default)


def label(node: onnx.NodeProto) -> str:
    """Return a node's name, or a description if it has none.

    >>> label(helper.make_node("Conv", ["x", "w"], ["y"]))
    'Conv of y'
    """
    return str(node.name) or f"{node.op_type} of {next(iter(node.output), 'nothing')}"


def type_name(kind: int) -> str:
    """Return the name of an ONNX data type."""
    return TensorProto.DataType.Name(kind) if kind else "an unknown type"


def scopes_of(graph: onnx.GraphProto | onnx.FunctionProto, folder: Path, parent: Scope | None) -> Iterator[Scope]:
    """Yield the indexed scope of a graph, then those of the bodies in it."""
    scope = Scope(folder, graph, parent)
    if isinstance(graph, onnx.GraphProto):
        scope.constants.update({tensor.name: tensor for tensor in graph.initializer})
        scope.values.update({value.name: value for value in [*graph.input, *graph.value_info, *graph.output]})
    for node in graph.node:
        value = next((item.t for item in node.attribute if item.name == "value" and item.HasField("t")), None)
        if node.op_type == "Constant" and value is not None:
            scope.constants[node.output[0]] = value
        scope.producers.update(dict.fromkeys(filter(None, node.output), node))
    yield scope
    for node in graph.node:
        for index, name in enumerate(node.input):
            scope.owner(name).readers.setdefault(name, []).append((scope, node, index))
        for body in bodies_of(node):
            yield from scopes_of(body, folder, scope)
