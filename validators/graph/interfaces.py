"""Checks that a run can feed a model's inputs and judge its outputs: tensors of numbers or text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from numpy.typing import NDArray

from validators.errors import JobError, SourceError
from validators.graph.flat_outputs import can_flatten
from validators.graph.source_form import declared_shape
from validators.samples.datasets import TensorSpec

# numpy's names of ONNX types that differ, and the element types that numpy has and ONNX Runtime accepts from it.
NUMPY_NAMES = {"float": "float32", "double": "float64"}
NUMBERS = frozenset(
    {"bool", "float16", "float32", "float64"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
# Also accepted of a source: text, and bfloat16, which becomes float32 (`source_form.normalize`).
ACCEPTED = NUMBERS | {"string", "bfloat16"}
NOT_TENSORS = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "an optional value",
    "sparse_tensor_type": "a sparse tensor",
}


def dtype_name(element_type: int) -> str:
    """Return numpy's name of an ONNX element type.

    >>> dtype_name(1), dtype_name(7), dtype_name(16)
    ('float32', 'int64', 'bfloat16')
    """
    name: str = onnx.TensorProto.DataType.Name(element_type).lower()
    return NUMPY_NAMES.get(name, name)


def spec_of(value: onnx.ValueInfoProto) -> TensorSpec:
    """Return the name, dtype and shape of a tensor."""
    tensor = value.type.tensor_type
    return TensorSpec(value.name, dtype_name(tensor.elem_type), declared_shape(tensor.shape))


def check_interface(model: onnx.ModelProto, file: str) -> None:
    """Check that a run can feed the inputs of a source and read its outputs; `file` names the source in errors.

    Raises:
        SourceError: the model has no inputs, or an input or output is not a tensor of a supported type.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if not inputs:
        raise SourceError(
            found=f"{file} has no inputs",
            expected="at least one input, with samples along axis 0",
            fix="export the model with its data as inputs: a model without inputs gives the same answer every time",
        )
    for value in inputs:
        _check_input(value, file)
    for value in model.graph.output:
        if not can_flatten(model.graph, value):
            _check_output(value, file)


def check_judged(output: TensorSpec, probes: Sequence[tuple[int, Any]]) -> None:
    """Check that the judged output has one row per sample; each probe is a batch's sample count and its output array.

    Raises:
        JobError: the number of rows differs from the number of samples, the batch is on another axis, or there are no values.
    """
    for rows, answer in probes:
        if answer.ndim and len(answer) == rows and (answer.size or not rows):
            continue
        shapes = " and ".join(f"{probe.shape} for {count} samples" for count, probe in probes)
        raise JobError(
            found=f"output {output} has the shape {shapes}: {_why_not_by_row(probes)}",
            expected="a judged output with one row per sample along axis 0",
            fix="name another `output`, or export the model with the batch on axis 0 of this one",
        )


def _why_not_by_row(probes: Sequence[tuple[int, NDArray[Any]]]) -> str:
    """Return the reason, inferred from the shapes."""
    if any(not answer.size for _, answer in probes):
        return "it has no values"
    if not all(answer.ndim for _, answer in probes):
        return "it is a single value for all samples"
    moved = [
        axis
        for axis in range(1, min(answer.ndim for _, answer in probes))
        if all(answer.shape[axis] == rows for rows, answer in probes)
    ]
    if moved:
        return f"its batch is on axis {moved[0]}, which is not supported"
    return "its number of rows is independent of the batch, which is not supported"


def _check_input(value: onnx.ValueInfoProto, file: str) -> None:
    what = _not_a_tensor(value.type)
    if what:
        raise SourceError(
            found=f"{file}: input {value.name!r} is {what}, which is not supported",
            expected="inputs that are tensors of numbers or text",
            fix=f"export the model with a tensor in place of {value.name!r}",
        )
    if not value.type.tensor_type.HasField("shape"):
        missing = (
            "shape: its number of axes is dynamic, which is not supported" if value.type.WhichOneof("value") else "type"
        )
        raise SourceError(
            found=f"{file}: input {value.name!r} has no {missing}",
            expected="the element type and the number of axes of every input; axes may be dynamic",
            fix="export with the shapes of the inputs, or write them into `graph.input` of the file with onnx",
        )
    spec = spec_of(value)
    if spec.dtype not in ACCEPTED:
        raise SourceError(
            found=f"{file}: input {value.name!r} has the type {spec.dtype}, which numpy does not have",
            expected=f"one of {', '.join(sorted(NUMBERS))}",
            fix="export the model with a float32 or float16 input and a Cast behind it",
        )
    if 0 in spec.shape:
        raise SourceError(
            found=f"{file}: input {spec} has an empty axis, which is not supported",
            expected="inputs with at least one value per sample",
            fix=f"export the model without {value.name!r}, or for the step at which it has values",
        )


def _check_output(value: onnx.ValueInfoProto, file: str) -> None:
    what = _not_a_tensor(value.type)
    if what:
        raise SourceError(
            found=f"{file}: output {value.name!r} is {what}, which is not supported, judged or not",
            expected="outputs that are tensors, or sequences of them that ZipMap or SequenceConstruct makes",
            fix=f"export the model with tensors in place of {value.name!r}, or without it",
        )
    dtype = spec_of(value).dtype
    # An exporter that declares no type leaves it undefined; it is inferred later.
    if dtype not in ACCEPTED | {"undefined"}:
        raise SourceError(
            found=f"{file}: output {value.name!r} has the type {dtype}, which numpy does not have",
            expected=f"one of {', '.join(sorted(NUMBERS))}",
            fix="export the model with a Cast to float32 or float16 before that output",
        )


def _not_a_tensor(kind: onnx.TypeProto) -> str:
    """Describe a value that is not a tensor; return an empty string for a tensor.

    >>> number = onnx.helper.make_tensor_type_proto(1, None)
    >>> _not_a_tensor(onnx.helper.make_sequence_type_proto(onnx.helper.make_map_type_proto(8, number)))
    'a sequence of maps'
    >>> _not_a_tensor(number)
    ''
    """
    which = kind.WhichOneof("value")
    if which == "sequence_type" and kind.sequence_type.elem_type.WhichOneof("value") == "map_type":
        return "a sequence of maps"
    return NOT_TENSORS.get(str(which), "")
