"""Habits of exporters that the runtime accepts: step 1 brings each to one form, the same function, fit for quantization."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import CLASSES, FEATURES, Tiny, static_int8, statistics_of, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE
from runs import run_in

from tasks.evidence.resolve_source import resolve_source
from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.graph.edits import gather_weights
from tasks.ptq.graph.prepare import prepare_graph
from validators.errors import SourceError
from validators.graph.source_graph import check_source_graph, opset_of
from validators.job.read_job import parse_job

FLOAT = TensorProto.FLOAT
Habit = Callable[[onnx.ModelProto], object]


def negative_axes(model: onnx.ModelProto) -> None:
    for value, size in ((model.graph.input[0], FEATURES), (model.graph.output[0], CLASSES)):
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, [-1, size]))
    model.graph.value_info.append(helper.make_tensor_value_info("sum", FLOAT, [-1, 128]))


def standard_domain_by_name(model: onnx.ModelProto) -> None:
    model.opset_import[0].domain = "ai.onnx"
    for node in model.graph.node:
        node.domain = "ai.onnx"


def repeated_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = "node"


def no_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.name = ""


def constants_as_inputs(model: onnx.ModelProto) -> None:
    model.ir_version, model.opset_import[0].version = 3, 9
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, FLOAT, tensor.dims))


def sparse_constants(model: onnx.ModelProto) -> None:
    """The first weight by flat positions, the second by coordinates."""
    matrices = [tensor for tensor in model.graph.initializer if len(tensor.dims) == 2][:2]
    for tensor, by_rows in zip(matrices, (False, True), strict=True):
        name, dense = tensor.name, numpy_helper.to_array(tensor)
        places = np.argwhere(dense) if by_rows else np.flatnonzero(dense)
        model.graph.sparse_initializer.append(
            helper.make_sparse_tensor(
                numpy_helper.from_array(dense[dense != 0], name),
                numpy_helper.from_array(places.astype(np.int64), f"{name}_places"),
                list(dense.shape),
            )
        )
        model.graph.initializer.remove(tensor)


def no_output_shape(model: onnx.ModelProto) -> None:
    model.graph.output[0].type.tensor_type.ClearField("shape")


def no_output_type(model: onnx.ModelProto) -> None:
    model.graph.output[0].ClearField("type")


def empty_output_shape(model: onnx.ModelProto) -> None:
    """The shape of a scalar, where the output is none; the upgrade replaces the operator that makes it."""
    model.ir_version, model.opset_import[0].version = 6, 11
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", FLOAT, []))
    model.graph.node[3].output[0] = "scores"
    model.graph.node.append(helper.make_node("Unsqueeze", ["scores"], ["column"], axes=[2]))
    model.graph.node.append(helper.make_node("LogSoftmax", ["column"], ["logits"], axis=1))


def output_of_unknown_rank(model: onnx.ModelProto) -> None:
    """A Reshape to sizes that only data show: of each row so many as the first has."""
    model.graph.node[3].output[0] = "scores"
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, CLASSES]), "sizes"))
    model.graph.node.extend(
        [
            helper.make_node("NonZero", ["sizes"], ["places"]),
            helper.make_node("Transpose", ["places"], ["turned"]),
            helper.make_node("GatherND", ["sizes", "turned"], ["shape"]),
            helper.make_node("Reshape", ["scores", "shape"], ["logits"]),
        ]
    )
    no_output_shape(model)


HABITS: tuple[Habit, ...] = (
    negative_axes,
    standard_domain_by_name,
    repeated_names,
    no_names,
    constants_as_inputs,
    sparse_constants,
    no_output_shape,
    no_output_type,
    empty_output_shape,
    output_of_unknown_rank,
)


def resolved(tiny: Tiny, folder: Path, habit: Habit) -> Path:
    """The source as step 1 makes it of the tiny model with a habit."""
    model = tiny_model(*tiny.weights)
    habit(model)
    onnx.save(model, folder / "source.onnx")
    job = parse_job(tiny.job(source=str(folder / "source.onnx")), base=folder)
    started = run_in(folder, job)
    return resolve_source.fn(started).onnx_path


def run(model: Path, x: NDArray[np.float32]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    outputs: NDArray[Any] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        ["logits"], {"x": x}
    )[0]
    return outputs


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_a_habit_of_exporters_is_no_obstacle(tiny: Tiny, tmp_path: Path, habit: Habit) -> None:
    """The source computes what the tiny model does, has the shapes that its axes have, and becomes INT8."""
    source = resolved(tiny, tmp_path, habit)
    x = np.load(tiny.evaluation)["x"][:50]
    expected = run(tiny.model, x)
    if habit is empty_output_shape:
        expected = expected - np.log(np.exp(expected).sum(axis=1, keepdims=True))
    found = run(source, x)
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-5, atol=1e-5)
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert len(session.get_inputs()[0].shape) == 2 and len(session.get_outputs()[0].shape) == found.ndim
    assert not isinstance(session.get_outputs()[0].shape[0], int)
    prepare_graph(source, tmp_path / "prepared.onnx")
    ranges = read_ranges(statistics_of(tmp_path / "prepared.onnx", tiny.calibration), "minmax", symmetric=False)
    report = static_int8(tmp_path / "prepared.onnx", ranges, tmp_path / "int8.onnx", bits=BITS_HERE[-1])
    assert len(report.quantized) == 2
    answers = run(tmp_path / "int8.onnx", x).reshape(expected.shape).argmax(axis=1)
    assert (answers == expected.argmax(axis=1)).mean() > 0.9


def test_a_usual_file_is_gathered_as_it_is(tiny: Tiny, tmp_path: Path) -> None:
    gather_weights(tiny.model, tmp_path / "gathered.onnx")
    assert (tmp_path / "gathered.onnx").read_bytes() == tiny.model.read_bytes()


def test_an_input_without_a_shape_is_refused_by_name(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny_model(*tiny.weights)
    model.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "source.onnx")
    with pytest.raises(SourceError, match="input 'x' has no shape") as caught:
        check_source_graph(tmp_path / "source.onnx")
    assert "graph.input" in caught.value.fix


def test_two_spellings_of_the_standard_domain_become_one(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny_model(*tiny.weights)
    model.opset_import.append(helper.make_opsetid("ai.onnx", 21))
    model.graph.node[2].domain = "ai.onnx"
    onnx.save(model, tmp_path / "source.onnx")
    gather_weights(tmp_path / "source.onnx", tmp_path / "gathered.onnx")
    gathered = check_source_graph(tmp_path / "gathered.onnx")
    assert [item.domain for item in gathered.opset_import] == [""] and opset_of(gathered) == 21
    assert not any(node.domain for node in gathered.graph.node)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64])
@pytest.mark.parametrize(
    "settings", [{"offset": [1.0, -2.0, 0.5], "scale": [2.0, 3.0, 0.1]}, {"offset": [1.0], "scale": [4.0]}]
)
def test_a_scaler_becomes_standard_operators(tmp_path: Path, kind: int, settings: dict[str, list[float]]) -> None:
    nodes = [helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", **settings)]
    inputs = [helper.make_tensor_value_info("x", kind, ["n", 3])]
    rows = np.array([[1, 2, 3], [-4, 5, 6]], helper.tensor_dtype_to_np_dtype(kind))
    as_before(tmp_path, nodes, inputs, helper.make_tensor_value_info("y", TensorProto.FLOAT, None), rows)


@pytest.mark.parametrize("table", [np.array([7, 8, 9]), np.array([[7, 8, 9]]), np.arange(6.0).reshape(2, 3)])
def test_a_lookup_of_classes_becomes_standard_operators(tmp_path: Path, table: NDArray[Any]) -> None:
    """skl2onnx looks up the label of the best score so."""
    nodes = [helper.make_node("ArrayFeatureExtractor", ["table", "x"], ["y"], domain="ai.onnx.ml")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, ["n", 1])]
    answer = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(table.dtype), None)
    as_before(tmp_path, nodes, inputs, answer, np.array([[2], [0], [2], [1]]), numpy_helper.from_array(table, "table"))


def as_before(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    rows: NDArray[Any],
    *constants: onnx.TensorProto,
) -> None:
    """Check that ONNX Runtime answers alike for a model and for its normal form, which has standard operators alone."""
    graph = helper.make_graph(nodes, "learned", inputs, [output], list(constants))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "source.onnx")
    gather_weights(folder / "source.onnx", folder / "model.onnx")
    assert {node.domain for node in onnx.load(folder / "model.onnx").graph.node} == {""}
    (before,), (after,) = (
        ort.InferenceSession(folder / name, providers=["CPUExecutionProvider"]).run(None, {"x": rows})
        for name in ("source.onnx", "model.onnx")
    )
    assert (after.dtype, after.shape) == (before.dtype, before.shape)
    np.testing.assert_allclose(after, before, rtol=1e-6)
