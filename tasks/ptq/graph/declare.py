"""Missing output shapes of a source. The runtime loads such a file, but onnx's checker and the passes need the axes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from tasks.ptq.graph.equal_floats import GetBatch, parity_settings
from tasks.runtimes.ort import describe_inputs, open_session, run_outputs, with_mapped_weights
from validators.errors import CandidateRefused, SourceError
from validators.graph.source_form import undeclared_outputs
from validators.records.libraries import Libraries


def declare_outputs(model: Path, batch: GetBatch, libraries: Libraries = ()) -> tuple[str, ...]:
    """Write the missing shapes of outputs into the file, in place; return the names of those outputs.

    Shape inference supplies the shape. Where it finds none, the model runs on a batch of samples to learn the number of axes,
    all of which are declared dynamic.

    Raises:
        SourceError: shape inference finds no shape, and the runtime does not load or run the model.
        DataError: the samples do not fit the inputs.
    """
    proto = onnx.load(model, load_external_data=False)
    undeclared = undeclared_outputs(proto)
    if not undeclared:
        return ()
    for value in undeclared:
        value.type.tensor_type.ClearField("shape")
    inferred = _infer_types(proto)
    for value in undeclared:
        if value.name in inferred:
            value.type.CopyFrom(inferred[value.name])
    unknown = [value for value in undeclared if not value.type.tensor_type.HasField("shape")]
    onnx.save_model(proto, model)
    if unknown:
        _declare_observed(unknown, model, batch, libraries)
        onnx.save_model(proto, model)
    return tuple(value.name for value in undeclared)


def _infer_types(proto: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """Return the types that onnx infers; none if onnx finds the graph inconsistent, which the runtime may still load."""
    try:
        graph = onnx.shape_inference.infer_shapes(proto, data_prop=True).graph
    except onnx.shape_inference.InferenceError:
        return {}
    return {value.name: value.type for value in (*graph.output, *graph.value_info)}


def _declare_observed(unknown: list[onnx.ValueInfoProto], model: Path, batch: GetBatch, libraries: Libraries) -> None:
    names = [value.name for value in unknown]
    try:
        settings = with_mapped_weights(parity_settings(libraries), model)
        with open_session(model, settings) as session:
            arrays = run_outputs(session, batch(describe_inputs(session)), names)
    except CandidateRefused as error:
        raise SourceError(
            found=f"output {names[0]!r} has no shape, and the model does not show it: {error.found}",
            expected="an output with a shape, or a model that the runtime loads and runs on the data",
            fix="export with the shapes of the outputs, or write them into `graph.output` of the file with onnx",
        ) from error
    for value, array in zip(unknown, map(np.asarray, arrays), strict=True):
        kind = value.type.tensor_type.elem_type or helper.np_dtype_to_tensor_dtype(array.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, [None] * array.ndim))
