"""The files for OpenVINO: where pairs stand in graphs made by hand, their numbers against float64, what has no form."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, statistics_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import AMX

from tasks.engines.openvino.pairs import PAIRS, place_for_openvino, place_weights
from tasks.engines.variants import refuse_other_targets, session_settings
from tasks.ptq.build_variant import ranges_for
from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import GraphView, PlacementTask
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import SessionSettings
from validators.target_facts import OPENVINO
from validators.targets import facts_of

BASIC = SessionSettings("CPUExecutionProvider", 1, "basic")
Array = NDArray[Any]
Ranges = dict[str, tuple[float, float]]


def op(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=output, **attributes)


def draw(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def graph_of(nodes: list[onnx.NodeProto], constants: Mapping[str, Array], *shape: int) -> onnx.GraphProto:
    """A graph from `x[n, *shape]` to `y` of the same rank."""
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)]
        for name, dims in (("x", ["n", *shape]), ("y", None))
    ]
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    return helper.make_graph(nodes, "g", *ends, stored)


def residual() -> onnx.GraphProto:
    """Two convolutions with a sum around the second, and one that reads the sum."""
    nodes = [
        op("Conv", "x w b", "first", pads=[1, 1, 1, 1]),
        op("Relu", "first", "relu"),
        op("Conv", "relu w", "second", pads=[1, 1, 1, 1]),
        op("Add", "second relu", "sum"),
        op("Clip", "sum", "clipped"),
        op("Add", "clipped offset", "shifted"),
        op("Conv", "clipped w", "third", pads=[1, 1, 1, 1]),
        op("Add", "third clipped", "last"),
        op("Add", "last shifted", "y"),
    ]
    return graph_of(nodes, {"w": draw(4, 4, 3, 3), "b": draw(4), "offset": draw(4, 1, 1)}, 4, 8, 8)


def attention() -> onnx.GraphProto:
    """Scores of queries and keys, a softmax, and their product with the input."""
    nodes = [
        op("MatMul", "x w", "queries"),
        op("Transpose", "x", "keys", perm=[0, 2, 1]),
        op("MatMul", "queries keys", "scores"),
        op("Softmax", "scores", "weights"),
        op("MatMul", "weights x", "y"),
    ]
    return graph_of(nodes, {"w": draw(8, 8)}, 5, 8)


def known(graph: onnx.GraphProto) -> Ranges:
    """Some range for every activation."""
    return {name: (-1.0, 2.0) for node in graph.node for name in [*node.input, *node.output]}


def places(graph: onnx.GraphProto, **options: Any) -> set[tuple[str, str]]:
    """(node, tensor) wherever a node reads integers."""
    plan = place_for_openvino(PlacementTask(GraphView(graph), options.pop("ranges", known(graph)), **options))
    assert not plan.outputs and not plan.folded and not plan.shares
    return {(node, tensor) for tensor, readers in plan.inputs.items() for node, _ in readers}


CONVOLUTIONS = {("first", "x"), ("second", "relu"), ("third", "clipped")}
# What is added to the result of a convolution, and quantized for another one.
ADDED = {("sum", "relu"), ("last", "clipped")}


def test_products_with_constant_weights_read_integers() -> None:
    """Inputs alone, whatever the bias; nothing where they write; and what a convolution's kernel adds, as others read it."""
    assert places(residual(), every_operator=False) == CONVOLUTIONS | ADDED
    assert places(attention(), every_operator=False) == {("queries", "x")}


def test_residual_sum_reads_integers_on_both_sides_or_none() -> None:
    """The first sum does; the result of `third` stays float, as no integer kernel reads the last sum."""
    assert places(residual(), every_operator=True) == CONVOLUTIONS | ADDED | {("sum", "second")}


def test_a_sum_with_what_no_integer_kernel_made_is_float() -> None:
    """The input itself is one side of it, and is read as the convolution reads it."""
    nodes = [op("Conv", "x w", "first"), op("Add", "first x", "sum"), op("Conv", "sum w", "y")]
    graph = graph_of(nodes, {"w": draw(4, 4, 1, 1)}, 4, 8, 8)
    assert places(graph, every_operator=True) == {("first", "x"), ("sum", "x"), ("y", "sum")}


def test_products_of_activations_read_integers_with_all() -> None:
    """Those of a softmax stay in float."""
    expected = {("queries", "x"), ("scores", "queries"), ("scores", "keys")}
    assert places(attention(), every_operator=True) == expected
    plan = place_for_openvino(PlacementTask(GraphView(attention()), known(attention()), every_operator=True))
    assert plan.left == {"y": "it reads a softmax, whose small numbers lose most in 8 bits"}


def test_activation_products_stay_float_where_they_saturate() -> None:
    """Weights have 7 bits there; two activations have 8."""
    given = {"every_operator": True, "bits": 7}
    assert places(attention(), **given) == {("queries", "x")}
    plan = place_for_openvino(PlacementTask(GraphView(attention()), known(attention()), **given))
    assert "saturate" in plan.left["scores"] and "softmax" in plan.left["y"]


def test_softmax_behind_other_shapes_stays_float() -> None:
    nodes = [op("Softmax", "x", "s"), op("Transpose", "s", "t", perm=[0, 2, 1]), op("MatMul", "t x", "y")]
    assert places(graph_of([op("MatMul", "x w", "z"), *nodes], {"w": draw(8, 8)}, 8, 8), every_operator=True) == {
        ("z", "x")
    }


def test_kept_and_rangeless_nodes_stay_float_with_the_reason() -> None:
    graph = residual()
    ranges = {name: ends for name, ends in known(graph).items() if name != "relu"}
    plan = place_for_openvino(PlacementTask(GraphView(graph), ranges, every_operator=True, keep_float=["third"]))
    assert plan.nodes == ("first",)
    assert plan.left["second"] == "no calibrated range of 'relu'"
    assert plan.left["third"] == "kept in float as asked"
    assert plan.left["sum"] == "not between integer kernels"


def quantize(model: Path, ranges: Mapping[str, tuple[float, float]], path: Path, *, every: bool = False) -> QdqReport:
    return quantize_qdq(
        model,
        path,
        ranges,
        rules=PAIRS,
        every_operator=every,
        activation="uint8",
        weights=Int8Weights(),
    )


def fake(values: Array, low: float, high: float) -> Array:
    """As 256 numbers from zero, or 127 on each side of it."""
    ends = (0, 255) if low >= 0 else (-127, 127)
    scale = float(np.float32(high / 255 if low >= 0 else max(-low, high) / 127))
    return np.clip(np.rint(values / scale), *ends) * scale


def fake_weight(weight: Array) -> Array:
    scale = (np.abs(weight).max(axis=0) / 127).astype(np.float64)
    return np.rint(weight / scale) * scale


def test_the_numbers_of_a_small_model(tiny: Tiny, tmp_path: Path) -> None:
    """Against float64: `x` with a sign, what leaves Relu without, weights per channel, the bias untouched."""
    ranges = ranges_for(decode("int8-static-minmax-pc@openvino"), statistics_of_copy(tiny, tmp_path), PAIRS)
    report = quantize(tmp_path / "tiny.onnx", ranges, tmp_path / "variant.onnx")
    assert report.quantized == ("first_matmul", "second_matmul")
    first, bias, second = (np.asarray(weight, np.float64) for weight in tiny.weights)
    x = np.load(tiny.evaluation)["x"][:64]
    hidden = np.maximum(fake(x.astype(np.float64), *ranges["x"]) @ fake_weight(first) + bias, 0)
    expected = fake(hidden, *ranges["hidden"]) @ fake_weight(second)
    with open_session(tmp_path / "variant.onnx", BASIC) as session:
        found = run_batches(session, [{"x": x}], "logits")
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    assert np.abs(expected - np.maximum(x @ first + bias, 0) @ second).max() < 0.05 * np.abs(expected).max()


def statistics_of_copy(tiny: Tiny, folder: Path) -> Path:
    (folder / "tiny.onnx").write_bytes(tiny.model.read_bytes())
    return statistics_of(folder / "tiny.onnx", tiny.calibration)


def test_ranges_have_two_even_sides_or_one(tiny: Tiny, tmp_path: Path) -> None:
    statistics = statistics_of_copy(tiny, tmp_path)
    found = ranges_for(decode("int8-static-percentile-pc@openvino"), statistics, PAIRS)
    assert found["x"] == read_ranges(statistics, "percentile", symmetric=True)["x"]
    assert found["hidden"] == read_ranges(statistics, "percentile", symmetric=False)["hidden"]
    assert found["hidden"][0] >= 0 and found["x"][0] == -found["x"][1]


FINITE = st.floats(-1e3, 1e3, allow_nan=False, width=32)


@given(ends=st.tuples(FINITE, FINITE).map(sorted))
@settings(derandomize=True, database=None, max_examples=30)
def test_zero_is_stored_as_zero_whatever_the_range(tiny: Tiny, tmp_path_factory: Any, ends: list[float]) -> None:
    path = tmp_path_factory.mktemp("form") / "variant.onnx"
    low, high = ends
    quantize(tiny.model, {"x": (low, high), "hidden": (0.0, 1.0)}, path)
    graph = onnx.load(path).graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    zero = stored["x_zero_point"]
    assert not numpy_helper.to_array(zero).any()
    assert zero.data_type == (TensorProto.UINT8 if low >= 0 else TensorProto.INT8)
    assert all(tensor.data_type != TensorProto.INT32 for tensor in graph.initializer), "a bias became integers"


@pytest.mark.parametrize("graph", [residual(), attention()], ids=["residual", "attention"])
@pytest.mark.parametrize("every", [False, True])
def test_graphs_keep_their_function(graph: onnx.GraphProto, every: bool, tmp_path: Path) -> None:
    """Within what 8 bits leave, by calibrated ranges; the CPU provider computes the pairs as numbers."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "float.onnx")
    shape = [axis.dim_value or 16 for axis in graph.input[0].type.tensor_type.shape.dim]
    x = draw(*shape)
    tensors = [node.output[0] for node in graph.node]
    watched = onnx.load(tmp_path / "float.onnx")
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in tensors)
    onnx.save(watched, tmp_path / "watched.onnx")
    with open_session(tmp_path / "watched.onnx", BASIC) as session:
        values = dict(zip(tensors, session.run(tensors, {"x": x}), strict=True)) | {"x": x}
    ranges = {name: (float(array.min()), float(array.max())) for name, array in values.items()}
    quantize(tmp_path / "float.onnx", ranges, tmp_path / "variant.onnx", every=every)
    with open_session(tmp_path / "variant.onnx", BASIC) as session:
        found = run_batches(session, [{"x": x}], "y")
    error_db = 10 * np.log10(np.square(values["y"]).sum() / np.square(found - values["y"]).sum())
    assert 25 < error_db < 60, "8 bits leave some 6 dB a bit, less what several products add"


def test_ranges_at_run_time_store_weights_alone(tiny: Tiny, tmp_path: Path) -> None:
    """Products with constant weights of two axes; the numbers are those of float activations and rounded weights."""
    report = quantize_qdq(
        tiny.model,
        tmp_path / "v.onnx",
        None,
        rules=PAIRS,
        every_operator=False,
        activation="uint8",
        weights=Int8Weights(),
    )
    assert report.quantized == ("first_matmul", "second_matmul") and not report.left
    graph = onnx.load(tmp_path / "v.onnx").graph
    assert [node.op_type for node in graph.node if "uantize" in node.op_type] == ["DequantizeLinear"] * 2
    first, bias, second = (np.asarray(weight, np.float64) for weight in tiny.weights)
    x = np.load(tiny.evaluation)["x"][:64]
    expected = np.maximum(x @ fake_weight(first) + bias, 0) @ fake_weight(second)
    with open_session(tmp_path / "v.onnx", BASIC) as session:
        np.testing.assert_allclose(run_batches(session, [{"x": x}], "logits"), expected, rtol=1e-3, atol=1e-3)


def test_weight_only_leaves_convolutions_and_stacks_in_float() -> None:
    assert place_weights(residual()).left["first"] == "a Conv with INT8 weights alone runs in float"
    plan = place_weights(attention(), ["queries"])
    assert plan.left == {
        "queries": "kept in float as asked",
        **dict.fromkeys(("scores", "y"), "its second input is no constant"),
    }
    stacked = graph_of([op("MatMul", "x w", "y")], {"w": draw(5, 8, 8)}, 5, 8)
    assert "3 axes" in place_weights(stacked).left["y"] and not place_weights(stacked).nodes


@pytest.mark.parametrize("ranges", [None, {"e": (-4.0, 4.0)}], ids=["dynamic", "static"])
def test_tables_of_embeddings_become_integers_by_row(ranges: Ranges | None, tmp_path: Path) -> None:
    """Rows of very different size keep 8 bits each; a table that a product reads too stays as it is."""
    table = draw(50, 8) * np.logspace(-3, 3, 50, dtype=np.float32)[:, None]
    nodes = [op("Gather", "table i", "e"), op("MatMul", "e w", "y"), op("Gather", "w i", "z")]
    graph = graph_of(nodes, {"table": table, "w": draw(8, 8)})
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info("i", TensorProto.INT64, ["n"]))
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    options = {"every_operator": False, "activation": "uint8", "weights": Int8Weights()}
    report = quantize_qdq(tmp_path / "m.onnx", tmp_path / "v.onnx", ranges, rules=PAIRS, **options)
    assert report.quantized == ("e", "y")
    made = onnx.load(tmp_path / "v.onnx").graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in made.initializer}
    assert stored["table_quantized"].dtype == np.int8 and "table" not in stored and "w" in stored
    np.testing.assert_allclose(stored["table_scale"], np.abs(table).max(axis=1) / 127, rtol=1e-6)
    np.testing.assert_array_equal(stored["table_quantized"], np.rint(table / stored["table_scale"][:, None]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("int8-dynamic-pc+fused@openvino", "it fuses attention"),
        ("int8-static-mse-pc+fused@openvino", "it fuses attention"),
        ("int4-g32-rtn+fused@openvino", "it fuses attention"),
        ("int8-static-mse-pc-s8s8@openvino", "'s8s8'"),
        ("fp8-amax-pc@openvino", "FP8"),
        ("fp16@openvino", "float16"),
    ],
)
def test_a_recipe_without_a_form_is_refused(name: str, words: str) -> None:
    with pytest.raises(CandidateRefused, match=words) as caught:
        refuse_other_targets(decode(name), AMX)
    assert caught.value.kind == "unsupported" and caught.value.fix


def test_options_that_decide_speed_are_in_the_settings() -> None:
    """A job may set any but those that its candidates and `measurement` set; the group is never left to the runtime."""
    group = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
    groups = {"int8-dynamic-pc": "64", "int4-g32-rtn": "32", "int8-static-mse-pc": "0", "fp32-fused": "0", "bf16": "0"}
    for name, expected in groups.items():
        assert session_settings(decode(f"{name}@openvino"), 1).provider_options[group] == expected
    given = session_settings(decode("fp32-fused@openvino"), 1, (), {"NUM_STREAMS": "2", "ENABLE_CPU_PINNING": "NO"})
    assert given.provider_options == {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": "2",
        "INFERENCE_PRECISION_HINT": "f32",
        "ENABLE_CPU_PINNING": "NO",
        group: "0",
    }
    with pytest.raises(CandidateRefused, match="INFERENCE_PRECISION_HINT in `provider_options`"):
        session_settings(decode("fp32-fused@openvino"), 1, (), {"INFERENCE_PRECISION_HINT": "bf16"})


def test_the_default_list_has_forms() -> None:
    providers = set()
    for name in facts_of("openvino").default_candidates:
        refuse_other_targets(decode(name), AMX)
        providers.add(session_settings(decode(name), 2).provider)
    assert providers == {OPENVINO}
