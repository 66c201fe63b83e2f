"""Conversion of graphs with old opsets to one that every pass reads, with a check that outputs agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx

from tasks.ptq.graph.edits import add_note, attribute, operator_of, scratch
from tasks.ptq.graph.equal_floats import GetBatch, compare_outputs
from tasks.ptq.graph.prepare import FOLDING
from tasks.runtimes.ort import open_session, with_mapped_weights
from validators.errors import CandidateRefused, SourceError
from validators.graph.source_graph import LEAST_OPSET, opset_of
from validators.graph.stored import locate, save_model
from validators.records.libraries import Libraries

# The newest opset that every part of the pinned runtimes reads, with its IR version.
OPSET, IR_VERSION = 21, 10
# Nearly all operators run the same kernels. A wrong conversion differs by far more than a changed order of summation.
TOLERANCE = 1e-4
# Operators that flattened all axes from `axis` on, and the first opset in which they work on a single axis.
FLATTENING, FLATTENING_ENDS = frozenset({"Softmax", "LogSoftmax", "Hardmax"}), 13


def upgrade_opset(source: Path, upgraded: Path, batch: GetBatch, libraries: Libraries = ()) -> float:
    """Convert the source to `OPSET`; return the largest absolute difference between the outputs before and after.

    `batch(inputs)` returns the samples to compare on, for the source's inputs. `libraries` hold its custom operators, which
    are unchanged. The file gets a note of the upgrade (`add_note`).

    Raises:
        SourceError: onnx cannot upgrade an operator, or the result does not run or computes something else.
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
    """Convert any float graph to `OPSET`; return the largest absolute difference of the outputs on one batch.

    The names of tensors, inputs and outputs stay, and so do the declared shapes of the outputs.

    Raises:
        CandidateRefused: `unsupported`: for the reasons in `upgrade_opset`.
    """
    old = onnx.load(source, load_external_data=False)
    _name_last_axis(old, source, libraries)
    try:
        # The converter reads attributes and small constants only, so external weights need not be loaded.
        new = onnx.version_converter.convert_version(old, OPSET)
    except Exception as error:  # RuntimeError, ConvertError, or the bindings' translation of an assertion
        raise _refuse(old, f"onnx cannot upgrade it: {str(error).splitlines()[0][:300]}") from error
    new.ir_version = max(old.ir_version, IR_VERSION)
    # The converter drops the shape of an output whose operator it replaces.
    for value, declared in zip(new.graph.output, old.graph.output, strict=True):
        value.CopyFrom(declared)
    locate(new, source.parent)
    add_note(new, "upgraded", f"from opset {opset_of(old)} to {OPSET}, which the passes need")
    save_model(new, upgraded)
    try:
        onnx.checker.check_model(str(upgraded))
        worst, told = compare_outputs(source, upgraded, batch, libraries, tolerance=TOLERANCE, floats_alone=False)
    except onnx.checker.ValidationError as error:
        raise _refuse(old, f"upgraded, it fails onnx.checker: {str(error).splitlines()[0]}") from error
    except CandidateRefused as error:
        raise _refuse(old, error.found) from error
    if told:
        raise _refuse(old, f"upgraded, {told}")
    return worst


def _name_last_axis(old: onnx.ModelProto, source: Path, libraries: Libraries) -> None:
    """Set the axis of a Softmax to -1 where it is the last axis; below opset 13 the two are equivalent.

    Up to opset 12 a Softmax flattens all axes from its own on. The converter surrounds a Softmax of unknown rank with three
    operators, and the fusions then find no attention.
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
    """Return the ranks that onnx infers after the runtime has folded constants, such as computed shapes.

    The result is empty if the runtime does not load the graph, which the comparison of outputs then reports.
    """
    with scratch() as folder:
        folded, inferred = folder / "folded.onnx", folder / "inferred.onnx"
        try:
            settings = with_mapped_weights(replace(FOLDING, libraries=libraries), source)
            with open_session(source, settings, optimized_model=folded):
                pass
            onnx.shape_inference.infer_shapes_path(str(folded), str(inferred), data_prop=True)
        except (CandidateRefused, onnx.shape_inference.InferenceError):
            return {}
        values = onnx.load(inferred, load_external_data=False).graph.value_info
        shapes = {value.name: value.type.tensor_type for value in values}
        return {name: len(kind.shape.dim) for name, kind in shapes.items() if kind.HasField("shape")}


def _refuse(old: onnx.ModelProto, found: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=f"a model of opset {opset_of(old)}; {found}",
        expected=f"opset {OPSET}, or operators that can be upgraded to it",
        fix=f"export again with opset {OPSET}",
    )
