"""Graphs in old operators, brought to an opset that every pass reads, if they compute the same there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.external_data_helper import load_external_data_for_model

from tasks.ptq.graph.edits import add_note, attribute, operator_of, save_model, scratch
from tasks.ptq.graph.prepare import FOLDING
from tasks.runtimes.ort import describe_inputs, open_session, run_outputs
from tasks.runtimes.parity import largest_difference, largest_magnitude
from validators.errors import CandidateRefused, SourceError
from validators.graph.source_graph import LEAST_OPSET, opset_of
from validators.records.libraries import Libraries
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays, TensorSpec

# The newest opset that every part of the pinned runtimes reads, with the IR version that belongs to it.
OPSET, IR_VERSION = 21, 10
# The same kernels run for nearly all operators; a wrong conversion differs by far more than another order of the same sums.
TOLERANCE = 1e-4
# Operators that took all axes from theirs on as one, and the first opset in which they take one.
FLATTENING, FLATTENING_ENDS = frozenset({"Softmax", "LogSoftmax", "Hardmax"}), 13

GetBatch = Callable[[tuple[TensorSpec, ...]], Arrays]


def upgrade_opset(source: Path, upgraded: Path, batch: GetBatch, libraries: Libraries = ()) -> float:
    """Write the source in operators of `OPSET`; return the largest absolute difference of the outputs of both.

    `batch(inputs)` gives the samples to compare on, for the inputs that the source has; `libraries` have its custom
    operators, which stay as they are. The file has a note of the upgrade (`add_note`).

    Raises:
        SourceError: onnx has no way to upgrade an operator, or the result does not run, or computes something else.
        DataError: the samples do not fit the inputs.
    """
    try:
        return convert_opset(source, upgraded, batch, libraries)
    except CandidateRefused as error:
        raise SourceError(
            found=error.found,
            expected=f"opset {LEAST_OPSET} or above, or operators that can be upgraded",
            fix=error.fix,
        ) from error


def convert_opset(source: Path, upgraded: Path, batch: GetBatch, libraries: Libraries = ()) -> float:
    """Write any float graph in operators of `OPSET`; return the largest absolute difference of the outputs on one batch.

    Names of tensors, inputs and outputs stay, and the shapes of the latter as the file has them.

    Raises:
        CandidateRefused: `unsupported`: as `upgrade_opset` says of a source.
    """
    old = onnx.load(source, load_external_data=False)
    _name_last_axis(old, source, libraries)
    try:
        # It looks at attributes and small constants alone: weights may stay in their file meanwhile.
        new = onnx.version_converter.convert_version(old, OPSET)
    except (
        Exception
    ) as error:  # the converter raises RuntimeError, ConvertError and what its bindings make of assertions
        raise _refuse(old, f"onnx cannot upgrade it: {str(error).splitlines()[0][:300]}") from error
    new.ir_version = max(old.ir_version, IR_VERSION)
    # The converter drops the shape of an output whose operator it replaces.
    for value, declared in zip(new.graph.output, old.graph.output, strict=True):
        value.CopyFrom(declared)
    load_external_data_for_model(new, str(source.parent))
    add_note(new, "upgraded", f"from opset {opset_of(old)} to {OPSET}, which the passes need")
    save_model(new, upgraded)
    try:
        onnx.checker.check_model(str(upgraded))
        return _check_parity(old, source, upgraded, batch, libraries)
    except onnx.checker.ValidationError as error:
        raise _refuse(old, f"upgraded, it fails onnx.checker: {str(error).splitlines()[0]}") from error
    except CandidateRefused as error:
        raise _refuse(old, error.found) from error


def _name_last_axis(old: onnx.ModelProto, source: Path, libraries: Libraries) -> None:
    """Write the axis of a Softmax as -1 where it is the last: below opset 13 that means the same.

    Up to opset 12 a Softmax takes all axes from its own on as one. The converter writes three operators around each whose rank
    it does not know, and no fusion finds an attention with them.
    """
    found = [node for node in old.graph.node if operator_of(node) in FLATTENING and attribute(node, "axis", 1) > 0]
    if opset_of(old) >= FLATTENING_ENDS or not found:
        return
    ranks = _infer_ranks(source, libraries)
    for node in found:
        if attribute(node, "axis", 1) == ranks.get(node.input[0], 0) - 1:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("axis", -1))


def _infer_ranks(source: Path, libraries: Libraries) -> dict[str, int]:
    """The ranks of tensors that onnx infers of a graph whose constants the runtime has folded; of exported shapes it has many.

    None where the runtime does not load the graph, which the comparison of outputs then reports.
    """
    with scratch() as folder:
        folded, inferred = folder / "folded.onnx", folder / "inferred.onnx"
        try:
            with open_session(source, replace(FOLDING, libraries=libraries), optimized_model=folded):
                pass
            onnx.shape_inference.infer_shapes_path(str(folded), str(inferred), data_prop=True)
        except (CandidateRefused, onnx.shape_inference.InferenceError):
            return {}
        values = onnx.load(inferred, load_external_data=False).graph.value_info
        shapes = {value.name: value.type.tensor_type for value in values}
        return {name: len(kind.shape.dim) for name, kind in shapes.items() if kind.HasField("shape")}


def parity_settings(libraries: Libraries) -> SessionSettings:
    """Those of a session that computes a graph as it is written, as far as the runtime does so."""
    return SessionSettings("CPUExecutionProvider", 0, "basic", libraries=libraries).without_spinning()


def _check_parity(old: onnx.ModelProto, source: Path, upgraded: Path, batch: GetBatch, libraries: Libraries) -> float:
    settings = parity_settings(libraries)
    with open_session(source, settings) as session:
        names = [value.name for value in session.get_outputs()]
        arrays = batch(describe_inputs(session))
        before = run_outputs(session, arrays, names)
    with open_session(upgraded, settings) as session:
        after = run_outputs(session, arrays, names)
    worst = 0.0
    for name, one, other in zip(names, before, after, strict=True):
        distance, scale = _distance(one, other), max(1.0, largest_magnitude(one))
        if not distance <= TOLERANCE * scale:
            raise _refuse(
                old, f"upgraded, its output {name!r} differs by {distance:.3g}, where its largest is {scale:.3g}"
            )
        worst = max(worst, distance)
    return worst


def _distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest absolute difference, infinite where shapes, types or what is no number differ."""
    if one.dtype != other.dtype or (one.dtype.kind != "f" and not np.array_equal(one, other)):
        return np.inf
    return largest_difference(one, other)


def _refuse(old: onnx.ModelProto, found: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=f"a model of opset {opset_of(old)}; {found}",
        expected=f"opset {OPSET}, or operators that can be upgraded to it",
        fix=f"export again with opset {OPSET}",
    )
