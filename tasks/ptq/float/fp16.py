"""Conversion to float16: casts at the inputs and outputs, and around the nodes that stay in float32.

Inputs and outputs keep their types. Every tensor that becomes float16 keeps its name, except inputs, outputs and tensors that
the bodies of If and Loop read. `fp16_rules.py` decides which nodes stay in float32, and why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.placement import IN_HALF, GraphView
from tasks.ptq.eight_bit.qdq_checks import check_variant, describe_tensors, refuse, refuse_model
from tasks.ptq.float.fp16_rules import MASK, Floats, Rules, find_rules, slots_of
from tasks.ptq.graph.edits import Names, attribute, custom_operators, interface_of, name_nodes, set_nodes
from validators.graph.source_graph import opset_of
from validators.graph.stored import from_array, load_model, save_model, spilling, to_array

Found = TypeVar("Found")


@dataclass(frozen=True)
class Float16Report:
    """Result of the pass.

    `converted` are the nodes that compute in float16. `left` maps float nodes that do not to the reason. `carries` maps each
    new tensor to the source's tensor with the same values in another type.
    """

    converted: tuple[str, ...]
    left: dict[str, str]
    carries: dict[str, str]

    def with_carried(self, found: Mapping[str, Found]) -> dict[str, Found]:
        """Return what calibration found of the source's tensors, extended to the new tensors with the same values."""
        return dict(found) | {new: found[old] for new, old in self.carries.items() if old in found}


@spilling()
def convert_to_float16(model: Path, variant: Path, ranges: Mapping[str, Range]) -> Float16Report:
    """Convert a float32 model to float16. `ranges` maps tensors to the (least, greatest) values seen in calibration.

    Raises:
        CandidateRefused: `unsupported`: the model is quantized already, its opset is below 21, it has custom operators, or
            no node can be float16; `invalid`: the result is not a valid model with the same inputs and outputs.
    """
    proto = load_model(model)
    refuse_model(proto, IN_HALF, "int8", ())
    name_nodes(proto.graph)
    interface = interface_of(proto.graph)
    view = GraphView(proto.graph)
    _refuse_custom(proto.graph)
    slots = {node.name: slots_of(node, opset_of(proto)) for node in proto.graph.node}
    floats = Floats(view, _float32_tensors(proto), slots)
    rules = find_rules(floats, ranges)
    converter = _Converter(floats, rules)
    converter.rewrite()
    if not converter.converted:
        found = f"nothing to compute in float16: {next(iter(rules.left.items()), 'no float32 tensors')}"
        refuse("unsupported", found, "a float32 model within float16", "take another candidate")
    # TensorRT's parser looks up every listed operator set, and the runtime's folding lists all of its own.
    kept = [item for item in proto.opset_import if item.domain in ("", "ai.onnx")]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    save_model(proto, variant)
    check_variant(variant, interface)
    return Float16Report(tuple(converter.converted), rules.left, converter.carries)


def _refuse_custom(graph: onnx.GraphProto) -> None:
    custom = next(iter(custom_operators(graph).values()), None)
    if custom is not None:
        expected = "operators of ONNX alone: TensorRT builds no kernel of an ONNX Runtime library"
        fix = "take the unfused graph, or candidates for ort-cpu where the source itself has the operator"
        refuse("unsupported", custom, expected, fix)


def _float32_tensors(proto: onnx.ModelProto) -> frozenset[str]:
    constants = {item.name for item in proto.graph.initializer if item.data_type == TensorProto.FLOAT}
    types, _ = describe_tensors(proto)
    return frozenset(constants | {name for name, kind in types.items() if kind == TensorProto.FLOAT})


@dataclass
class _Converter:
    """Rewrite of one graph.

    `half` are the tensors that are produced as float16. `wanted` are the tensors that are read, each with whether as float16.
    `names` maps such a pair to a name. The tensor's own name goes to float32 where callers or bodies refer to it, else to
    float16.
    """

    floats: Floats
    rules: Rules
    converted: list[str] = field(default_factory=list)
    carries: dict[str, str] = field(default_factory=dict)
    half: set[str] = field(default_factory=set)
    wanted: set[tuple[str, bool]] = field(default_factory=set)
    names: dict[tuple[str, bool], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        graph = self.floats.view.graph
        self.inputs = {value.name for value in graph.input}
        self.allocator = Names(graph)

    def rewrite(self) -> None:
        """Rewrite the graph."""
        graph, pinned = self.floats.view.graph, self.floats.view.pinned
        made = {node.name: self._convert(node) for node in graph.node}
        self.wanted.update((name, False) for name in pinned & self.floats.names)
        self._store_constants()
        # Sorted, so that equal sources give equal bytes.
        nodes = [cast for name in sorted(self.inputs & self.floats.names) for cast in self._casts(name)]
        for node in graph.node:
            nodes += [node, *(cast for name in made[node.name] for cast in self._casts(name))]
        set_nodes(graph, nodes)
        self._describe()

    def _convert(self, node: onnx.NodeProto) -> list[str]:
        """Rename a node's inputs and outputs to their types; return its float outputs by the source's names."""
        converts = node.name not in self.rules.left
        reads = [(index, half and converts) for half in (True, False) for index in self.floats.inputs(node, half=half)]
        makes = [(index, half and converts) for half in (True, False) for index in self.floats.outputs(node, half=half)]
        tensors = [node.output[index] for index, _ in makes]
        for index, half in reads:
            self.wanted.add((node.input[index], half))
            node.input[index] = self._name(node.input[index], half)
        for index, half in makes:
            if half:
                self.half.add(node.output[index])
                _set_type(node)
            node.output[index] = self._name(node.output[index], half)
        if any(half for _, half in [*reads, *makes]):
            self.converted.append(node.name)
        return tensors

    def _name(self, tensor: str, half: bool) -> str:
        if (tensor, half) not in self.names:
            name = tensor
            if half == (tensor in self.inputs | self.floats.view.pinned):
                name = self.allocator.new(f"{name}_float16" if half else f"{name}_float32")
                self.carries[name] = tensor
            self.names[tensor, half] = name
        return self.names[tensor, half]

    def _casts(self, tensor: str) -> list[onnx.NodeProto]:
        """Return the Cast to the type that a tensor is not produced in, if a node reads that type."""
        half = tensor in self.half
        if (tensor, not half) not in self.wanted:
            return []
        source, end = self._name(tensor, half), self._name(tensor, not half)
        to = TensorProto.FLOAT if half else TensorProto.FLOAT16
        name = self.allocator.new(f"{end}_cast")
        return [helper.make_node("Cast", [source], [end], name=name, to=to)]

    def _store_constants(self) -> None:
        graph = self.floats.view.graph
        stored: list[onnx.TensorProto] = []
        for tensor in graph.initializer:
            if tensor.name not in self.floats.names or tensor.name in self.inputs:
                stored.append(tensor)
                continue
            values = to_array(tensor)
            raised = np.maximum(values, np.float32(MASK)) if tensor.name in self.rules.masks else values
            if (tensor.name, True) in self.wanted:
                stored.append(from_array(raised.astype(np.float16), self._name(tensor.name, half=True)))
            if (tensor.name, False) in self.wanted:
                stored.append(from_array(values, self._name(tensor.name, half=False)))
        del graph.initializer[:]
        graph.initializer.extend(stored)

    def _describe(self) -> None:
        """Declare the shapes and types of all tensors that had them."""
        graph = self.floats.view.graph
        known = {value.name: value for value in [*graph.value_info, *graph.input, *graph.output]}
        described = [value for value in graph.value_info if value.name not in self.floats.names]
        for (tensor, half), name in self.names.items():
            if tensor in known and name not in self.inputs | {value.name for value in graph.output}:
                value = onnx.ValueInfoProto.FromString(known[tensor].SerializeToString())
                value.name = name
                value.type.tensor_type.elem_type = TensorProto.FLOAT16 if half else TensorProto.FLOAT
                described.append(value)
        del graph.value_info[:]
        graph.value_info.extend(described)


def _set_type(node: onnx.NodeProto) -> None:
    """Set the output type to float16 in nodes that hold it in an attribute."""
    if node.op_type == "Cast":
        next(item for item in node.attribute if item.name == "to").i = TensorProto.FLOAT16
    elif node.op_type == "ConstantOfShape":
        value = attribute(node, "value", helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]))
        half = from_array(to_array(value).astype(np.float16), value.name)
        del node.attribute[:]
        node.attribute.append(helper.make_attribute("value", half))
