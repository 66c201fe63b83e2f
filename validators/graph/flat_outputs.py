"""Outputs that are no tensors, rewritten as the tensors that they hold: a run compares and serves tensors alone.

- A sequence of maps that ZipMap makes, as skl2onnx writes class probabilities, becomes the tensor `(batch, classes)` behind it.
- A sequence that SequenceConstruct makes becomes one output for each of its tensors: `name.0`, `name.1`, ...
- An optional value that Optional makes of a tensor becomes that tensor.
"""

from __future__ import annotations

import onnx
from onnx import helper

FLATTENED = frozenset({"ZipMap", "SequenceConstruct", "Optional"})
DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml"})


def can_flatten(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> bool:
    """Return True if `flatten_outputs` rewrites an output."""
    return _maker(graph, value) is not None


def flatten_outputs(graph: onnx.GraphProto) -> dict[str, tuple[str, ...]]:
    """Rewrite outputs that are no tensors, in place; return the names of the tensors of each, by the name of the output."""
    changed: dict[str, tuple[str, ...]] = {}
    outputs: list[onnx.ValueInfoProto] = []
    for value in graph.output:
        maker = _maker(graph, value)
        if maker is None:
            outputs.append(value)
            continue
        several = maker.op_type == "SequenceConstruct"
        names = tuple(f"{value.name}.{number}" if several else value.name for number in range(len(maker.input)))
        changed[value.name] = names
        # Their shapes are inferred or observed later, as for any output that declares none.
        outputs += [helper.make_tensor_value_info(name, _element_type(value.type), None) for name in names]
        for tensor, name in zip(maker.input, names, strict=True):
            graph.node.append(helper.make_node("Identity", [tensor], [name], name=f"{name}_flat"))
        graph.node.remove(maker)
    if changed:
        del graph.output[:]
        graph.output.extend(outputs)
    return changed


def _maker(graph: onnx.GraphProto, value: onnx.ValueInfoProto) -> onnx.NodeProto | None:
    """Return the node behind an output that is no tensor, if it holds tensors that nothing else reads as it does."""
    if value.type.WhichOneof("value") in (None, "tensor_type") or any(value.name in node.input for node in graph.node):
        return None
    makers = (node for node in graph.node if value.name in node.output and node.input)
    return next((node for node in makers if node.op_type in FLATTENED and node.domain in DOMAINS), None)


def _element_type(kind: onnx.TypeProto) -> int:
    """Return the element type of the tensors in a sequence, in the maps of one, or in an optional value.

    >>> number = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None)
    >>> _element_type(helper.make_sequence_type_proto(helper.make_map_type_proto(onnx.TensorProto.STRING, number)))
    1
    """
    match kind.WhichOneof("value"):
        case "sequence_type":
            return _element_type(kind.sequence_type.elem_type)
        case "map_type":
            return _element_type(kind.map_type.value_type)
        case "optional_type":
            return _element_type(kind.optional_type.elem_type)
    return int(kind.tensor_type.elem_type)
