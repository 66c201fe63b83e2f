"""Checks of a model before and after Q/DQ pairs are inserted, and the types of its tensors."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import NoReturn

import onnx

from tasks.ptq.eight_bit.affine import ActivationType
from tasks.ptq.eight_bit.placement import FLOATS, GraphView, PairRules
from tasks.ptq.graph.edits import interface_of, weight_input
from validators.errors import CandidateRefused, RefusalKind
from validators.graph.source_graph import KNOWN_DOMAINS, QUANTIZED_OPERATORS, opset_of

# Opset 13 added per-channel DequantizeLinear, opset 19 float16 scales; engines that take float16 get 21.
LEAST_OPSET, FLOAT16_OPSET = 13, 21


def describe_tensors(proto: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Return the element types and the ranks of the float tensors, by name, as far as shape inference knows them."""
    graph = onnx.shape_inference.infer_shapes(proto).graph
    values = {value.name: value.type.tensor_type for value in [*graph.value_info, *graph.input, *graph.output]}
    types = {name: kind.elem_type for name, kind in values.items() if kind.elem_type in FLOATS}
    return types, {name: len(values[name].shape.dim) for name in types if values[name].HasField("shape")}


def weight_type(view: GraphView) -> int:
    """Return the float type of the weights, used for activations whose type inference does not know."""
    weights = [view.constants.get(node.input[1]) for node in view.graph.node if weight_input(node)]
    return next((item.data_type for item in weights if item and item.data_type in FLOATS), onnx.TensorProto.FLOAT)


def refuse_model(
    proto: onnx.ModelProto, rules: PairRules, activation: ActivationType, keep_float: Collection[str]
) -> None:
    """Refuse a model or options that cannot be quantized by the rules of an engine.

    Raises:
        CandidateRefused: `unsupported` or `invalid`: the first problem found.
    """
    nodes = proto.graph.node
    known = (node.op_type for node in nodes if node.domain in KNOWN_DOMAINS)
    quantized = next((kind for kind in known if kind.startswith(QUANTIZED_OPERATORS)), "")
    half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in proto.graph.initializer)
    least = FLOAT16_OPSET if half or rules.in_half else LEAST_OPSET
    opset = opset_of(proto)
    unknown = sorted(set(keep_float) - {node.name for node in nodes})
    if quantized:
        refuse("unsupported", f"a model that is quantized already: {quantized}", "a float model", "register that one")
    if opset < least:
        refuse("unsupported", f"opset {opset}", f"opset {least} or above", "export the model with a newer opset")
    if rules.symmetric == "always" and activation != "int8":
        expected = "int8: the engine reads no zero point but 0"
        refuse("unsupported", f"{activation} activations", expected, "take int8 activations")
    if half and not rules.in_half:
        expected = "float32: the engine's kernels for pairs have no others"
        refuse("unsupported", "float16 weights", expected, "take the float32 model")
    if unknown:
        found = f"nodes to keep in float {unknown}"
        refuse("invalid", found, "names of nodes of the graph", "read them from the graph")


def check_variant(variant: Path, before: list[bytes]) -> None:
    """Refuse a variant that is not a valid model, or whose inputs and outputs differ from the source's (`before`)."""
    try:
        onnx.checker.check_model(str(variant), full_check=True)
        same = interface_of(onnx.load(variant, load_external_data=False).graph) == before
        found = "" if same else "other inputs or outputs than the source"
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        found = str(error).splitlines()[0]
    if found:
        refuse("invalid", found, "a valid model of the same interface", "report it with the source model")


def refuse(kind: RefusalKind, found: str, expected: str, fix: str) -> NoReturn:
    """Raise the refusal of a candidate."""
    raise CandidateRefused(kind=kind, found=found, expected=expected, fix=fix)
