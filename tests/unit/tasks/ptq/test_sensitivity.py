"""Which parts lose most when quantized: on a model with outlier channels, where it is known which they are."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Hard, static_int8, statistics_of
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE

from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.sensitivity import SensitivePart, Sensitivity, find_parts, rank_parts
from tasks.runtimes.ort import open_session, run_batches
from validators.records.run import SessionSettings
from validators.samples.datasets import TensorSpec, load_samples

SETTINGS = SessionSettings("CPUExecutionProvider", 1)
# Noise is that of rounding alone where the sums of integer kernels are exact.
BITS = BITS_HERE[-1]


def test_weighted_layers_and_roles_of_the_others_are_parts() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="query"),
        helper.make_node("Add", ["a", "b"], ["c"], name="bias"),
        helper.make_node("MatMul", ["c", "w"], ["d"], name="key"),
        helper.make_node("Add", ["d", "b"], ["e"], name="bias again"),
        helper.make_node("MatMul", ["e", "c"], ["f"], name="product"),
        helper.make_node("Add", ["f", "x"], ["y"], name="residual"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])] for name in "xy"]
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), name) for name in "wb"]
    graph = helper.make_graph(nodes, "some", *ends, weights)
    assert find_parts(graph, {node.name for node in nodes}) == (
        SensitivePart("query", ("query",)),
        SensitivePart("Add (MatMul to MatMul)", ("bias", "bias again")),
        SensitivePart("key", ("key",)),
        SensitivePart("MatMul (Add to Add)", ("product",)),
        SensitivePart("Add (MatMul to output)", ("residual",)),
    )
    assert [part.name for part in find_parts(graph, ("query", "bias again"))] == ["query", "Add (MatMul to MatMul)"]


def test_layers_that_read_the_same_activation_can_be_one_part() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="query"),
        helper.make_node("MatMul", ["x", "w"], ["b"], name="key"),
        helper.make_node("Attention", ["a", "w", "v"], ["c"], name="attention", domain="com.microsoft"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 4])] for name in "xc"]
    weights = [numpy_helper.from_array(np.eye(4, dtype=np.float32), name) for name in "wv"]
    graph = helper.make_graph(nodes, "some", *ends, weights)
    assert [part.nodes for part in find_parts(graph, ("query", "key", "attention"), by_input=True)] == [
        ("query", "key"),
        ("attention",),
    ]


def test_an_output_that_is_left_out_makes_no_input() -> None:
    """Both have the empty name: the Resize follows the Relu, not the GRU that has no first output."""
    nodes = [
        helper.make_node("GRU", ["x", "w", "r"], ["", "last"], name="gru", hidden_size=4),
        helper.make_node("Relu", ["last"], ["a"], name="relu"),
        helper.make_node("Resize", ["a", "", "scales"], ["y"], name="resize"),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, None)] for name in "xy"]
    graph = helper.make_graph(nodes, "some", *ends, [numpy_helper.from_array(np.ones(3, np.float32), "scales")])
    assert [part.name for part in find_parts(graph, {"resize", "relu"})] == [
        "Relu (GRU to Resize)",
        "Resize (Relu to output)",
    ]


@pytest.fixture(scope="module")
def ranked(
    hard: Hard, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Range], tuple[Sensitivity, ...]]:
    """The prepared hard model, its ranges, and its parts in order."""
    folder = tmp_path_factory.mktemp("sensitivity")
    prepared = folder / "prepared.onnx"
    samples = load_samples(
        hard.calibration, (TensorSpec("x", "float32", ("batch", 64)),), label="label", role="calibration"
    )
    prepare_graph(hard.model, prepared)
    ranges = read_ranges(statistics_of(prepared, hard.calibration), "minmax", symmetric=False)

    def without(model: Path, keep_float: Collection[str], path: Path) -> None:
        static_int8(model, ranges, path, keep_float=keep_float, bits=BITS)

    parts = find_parts(onnx.load(prepared).graph, ("first", "second", "third", "head"))
    return prepared, ranges, rank_parts(prepared, parts, without, samples, "logits", SETTINGS)


def test_the_parts_beside_the_outlier_channels_come_first(
    ranked: tuple[Path, dict[str, Range], tuple[Sensitivity, ...]],
) -> None:
    _, _, found = ranked
    noises = {sensitivity.part.name: sensitivity.noise for sensitivity in found}
    assert [sensitivity.noise for sensitivity in found] == sorted(noises.values(), reverse=True)
    # What makes the outlier channels and what reads them, a thousand times above the others: all other channels are zero.
    assert {sensitivity.part.name for sensitivity in found[:2]} == {"first", "second"}
    assert min(noises["first"], noises["second"]) > 1000 * max(noises["third"], noises["head"])


def test_noise_is_the_power_of_the_error_over_that_of_the_output(
    hard: Hard, ranked: tuple[Path, dict[str, Range], tuple[Sensitivity, ...]], tmp_path: Path
) -> None:
    prepared, ranges, found = ranked
    static_int8(prepared, ranges, tmp_path / "third.onnx", keep_float=("first", "second", "head"), bits=BITS)
    x = np.load(hard.calibration)["x"][:16]
    outputs = []
    for path in (prepared, tmp_path / "third.onnx"):
        with open_session(path, SETTINGS) as session:
            outputs.append(run_batches(session, [{"x": x[:8]}, {"x": x[8:]}], "logits").astype(np.float64))
    expected = ((outputs[1] - outputs[0]) ** 2).sum() / (outputs[0] ** 2).sum()
    noise = next(sensitivity.noise for sensitivity in found if sensitivity.part.name == "third")
    assert noise == pytest.approx(expected, rel=1e-6) and noise > 0


def test_masked_logits_leave_the_order_of_parts(
    hard: Hard, ranked: tuple[Path, dict[str, Range], tuple[Sensitivity, ...]], tmp_path: Path
) -> None:
    """A class masked by -inf in the float model too: the parts keep their noise on the other classes."""
    prepared, ranges, found = ranked
    model = onnx.load(prepared)
    head = next(node for node in model.graph.node if "logits" in node.output)
    head.output[0] = "unmasked"
    classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    mask = np.zeros(classes, np.float32)
    mask[0] = -np.inf
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    model.graph.node.append(helper.make_node("Add", ["unmasked", "mask"], ["logits"], name="masking"))
    onnx.save(model, tmp_path / "masked.onnx")
    ranges = ranges | {"unmasked": ranges["logits"]} if "logits" in ranges else ranges

    def without(model: Path, keep_float: Collection[str], path: Path) -> None:
        static_int8(model, ranges, path, keep_float=keep_float, bits=BITS)

    samples = load_samples(
        hard.calibration, (TensorSpec("x", "float32", ("batch", 64)),), label="label", role="calibration"
    )
    parts = find_parts(onnx.load(tmp_path / "masked.onnx").graph, ("first", "second", "third", "head"))
    masked = rank_parts(tmp_path / "masked.onnx", parts, without, samples, "logits", SETTINGS)
    assert all(np.isfinite(one.noise) for one in masked)
    assert [one.part.name for one in masked[:2]] == [one.part.name for one in found[:2]]


def test_part_that_needs_integer_neighbours_comes_with_them(tmp_path: Path) -> None:
    """A residual addition and what follows between convolutions: no candidate quantizes either alone."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Conv", ["a", "w2"], ["b"], name="second"),
        helper.make_node("Add", ["a", "b"], ["c"], name="residual"),
        helper.make_node("Sigmoid", ["c"], ["d"], name="gate"),
        helper.make_node("Conv", ["d", "w3"], ["y"], name="last"),
    ]
    shape = ["batch", 4, 3, 3]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name in "xy"]
    weights = [
        numpy_helper.from_array(rng.normal(size=(4, 4, 1, 1)).astype(np.float32), f"w{one}") for one in (1, 2, 3)
    ]
    graph = helper.make_graph(nodes, "residual", *ends, weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    x = rng.normal(size=(32, 4, 3, 3)).astype(np.float32)
    # A coarse range of the sum alone, so that what makes it is the noisiest part. Without one of the two, nobody reads it.
    ranges: dict[str, Range] = dict.fromkeys("xaby", (-12.0, 12.0)) | {"c": (-400.0, 400.0), "d": (0.0, 1.0)}

    def without(model: Path, keep_float: Collection[str], target: Path) -> object:
        return static_int8(model, ranges, target, keep_float=keep_float, every=True, bits=BITS)

    parts = find_parts(graph, [node.name for node in nodes])
    np.savez(tmp_path / "data.npz", x=x)
    spec = TensorSpec("x", "float32", tuple(shape))
    samples = load_samples(tmp_path / "data.npz", (spec,), label="none", role="calibration")
    found = {one.part.nodes: one.noise for one in rank_parts(path, parts, without, samples, "y", SETTINGS)}
    assert len(found) == 5
    assert found["residual",] == found["gate",] > 10 * found["second",] > 0
