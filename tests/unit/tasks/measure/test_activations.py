"""What is watched in a graph, and what is counted there: against the same model computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_samples
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.measure.activations import Counts, Ranges, describe_clipping, open_tapped, view_samples
from tasks.measure.taps import Tap, Taps, find_taps, taps_of
from validators.errors import JobError
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

SETTINGS = SessionSettings("CPUExecutionProvider", 1)


def samples_of(**inputs: NDArray[Any]) -> Samples:
    return Samples(DataFile(Path("some.npz"), "0" * 64, len(next(iter(inputs.values())))), inputs, None)


def graph_of(
    nodes: list[onnx.NodeProto], weights: dict[str, NDArray[Any]], inputs: dict[str, list[Any]]
) -> onnx.GraphProto:
    return helper.make_graph(
        nodes,
        "some",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )


def save(graph: onnx.GraphProto, path: Path) -> Path:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def hidden_of(tiny: Tiny, x: NDArray[Any]) -> NDArray[Any]:
    first, bias, _ = tiny.weights
    return np.maximum(x @ first + bias, 0)


def watch_all(graph: onnx.GraphProto) -> Taps:
    return find_taps(graph, "logits", None)


# What is watched.


def test_inputs_of_weighted_layers_are_watched_the_last_embeds(tiny: Tiny) -> None:
    """The input of the last weighted layer stands for a sample."""
    taps = watch_all(onnx.load(tiny.model).graph)
    assert taps == Taps((Tap("x", ("first_matmul",)), Tap("hidden", ("second_matmul",))), "hidden", -1)


def test_weights_are_not_watched_and_activation_products_are() -> None:
    """However the weights are computed."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"], name="turn"),
        helper.make_node("MatMul", ["x", "turned"], ["query"]),
        helper.make_node("Transpose", ["query"], ["key"]),
        helper.make_node("MatMul", ["query", "key"], ["y"], name="attention"),
    ]
    graph = graph_of(nodes, {"w": np.eye(4, dtype=np.float32)}, {"x": ["n", 4]})
    taps = find_taps(graph, "y", None)
    assert taps.watched == (
        Tap("x", ("MatMul_1",)),  # a node without a name goes by its kind and place
        Tap("query", ("attention",)),  # its Transpose fixes no range
        Tap("key", ("attention",)),
    )
    assert taps.representation == "x"  # the product of activations has no weights: the search goes on behind it


def test_what_a_convolution_reads_has_its_channels_on_axis_1(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["made"]),
        helper.make_node("ReduceMean", ["made", "axes"], ["y"], keepdims=0),
    ]
    weights = {"w": np.ones((2, 3, 1, 1), np.float32), "axes": np.array([2, 3])}
    graph = graph_of(nodes, weights, {"x": ["n", 3, 2, 2]})
    assert find_taps(graph, "y", None) == Taps((Tap("x", ("Conv_0",)),), "x", 1)
    x = np.random.default_rng(0).normal(size=(5, 3, 2, 2)).astype(np.float32)
    with open_tapped(save(graph, tmp_path / "m.onnx"), SETTINGS, lambda g: find_taps(g, "y", None)) as watch:
        _, vectors = watch.ranges(samples_of(x=x), np.arange(5), None)
    np.testing.assert_allclose(vectors, x.mean(axis=(2, 3)), rtol=1e-5)


def test_a_graph_without_weights_is_known_by_its_output() -> None:
    graph = graph_of([helper.make_node("Relu", ["x"], ["y"])], {}, {"x": ["n", 4]})
    assert find_taps(graph, "y", None) == Taps((), "y", -1)


def test_the_job_may_name_the_representation_if_the_model_has_it(tiny: Tiny) -> None:
    graph = onnx.load(tiny.model).graph
    assert find_taps(graph, "logits", "sum").representation == "sum"
    for name in ("first", "nowhere"):  # a weight, and nothing
        with pytest.raises(JobError, match=f"calibration.representation` '{name}'"):
            find_taps(graph, "logits", name)


def test_given_tensors_are_watched_as_far_as_the_graph_has_them(tiny: Tiny) -> None:
    taps = taps_of(onnx.load(tiny.model).graph, "logits", ["hidden", "of another graph", "first", "sum"])
    assert taps == Taps((Tap("hidden", ("second_matmul",)), Tap("sum", ("relu",))), "logits", -1)


# What is counted.


def test_ranges_and_embeddings_are_those_of_the_rows_asked_for(tiny: Tiny) -> None:
    x = tiny_samples(40, 5)["x"].astype(np.float32)
    x[3] *= 100  # not asked for
    rows = np.array([0, 1, 2, *range(4, 40)])
    with open_tapped(tiny.model, SETTINGS, watch_all) as watch:
        ranges, vectors = watch.ranges(samples_of(x=x), rows, None)
    hidden = hidden_of(tiny, x[rows])
    np.testing.assert_allclose(ranges.low, [x[rows].min(), 0], rtol=1e-5)
    np.testing.assert_allclose(ranges.high, [x[rows].max(), hidden.max()], rtol=1e-5)
    np.testing.assert_allclose(vectors, hidden, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fixed_batch", [None, 4])
def test_values_outside_ranges_are_counted_by_value_and_sample(tiny: Tiny, fixed_batch: int | None) -> None:
    x = tiny_samples(40, 6)["x"].astype(np.float32)
    hidden = hidden_of(tiny, x)
    narrow = Ranges(np.array([-4.0, -1.0]), np.array([3.0, np.quantile(hidden, 0.99)]))
    wide = Ranges(np.full(2, -1e9), np.full(2, 1e9))
    none = Ranges(np.full(2, np.nan), np.full(2, np.nan))
    with open_tapped(tiny.model, SETTINGS, watch_all) as watch:
        (counts, nothing, unknown), _ = watch.count_outside(
            samples_of(x=x), np.arange(40), fixed_batch, [narrow, wide, none]
        )
    outside = [(x < -4) | (x > 3), hidden > narrow.high[1]]
    assert counts.outside.tolist() == [int(some.sum()) for some in outside]
    assert counts.samples.tolist() == [int(some.any(axis=1).sum()) for some in outside]
    assert counts.values.tolist() == [x.size, hidden.size] and counts.rows == 40
    assert 0 < counts.samples[1] < 40 and counts.outside[1] > counts.samples[1]
    assert nothing.outside.tolist() == nothing.samples.tolist() == [0, 0] and nothing.values.tolist() == [
        x.size,
        hidden.size,
    ]
    assert unknown.values.tolist() == [0, 0]
    described = describe_clipping(watch.taps, narrow, counts)
    assert described[1].share == counts.outside[1] / hidden.size and described[1].sample_share == counts.samples[1] / 40
    assert (described[0].tensor, described[0].nodes, described[0].low, described[0].high) == (
        "x",
        ("first_matmul",),
        -4,
        3,
    )
    assert describe_clipping(watch.taps, none, unknown) == ()


def test_nonfinite_values_make_no_range_and_are_outside_all(tiny: Tiny) -> None:
    x = tiny_samples(16, 7)["x"].astype(np.float32)
    x[2, 5], x[3, 6] = np.nan, np.inf
    least, most = x[np.isfinite(x)].min(), x[np.isfinite(x)].max()
    with open_tapped(tiny.model, SETTINGS, watch_all) as watch:
        ranges, vectors = watch.ranges(samples_of(x=x), np.arange(16), None)
        wide = Ranges(np.full(2, -1e9), np.full(2, 1e9))
        (counts,), _ = watch.count_outside(samples_of(x=x), np.arange(16), None, [wide])
    assert (ranges.low[0], ranges.high[0]) == (least, most)
    assert np.isfinite([ranges.low, ranges.high]).all()
    assert counts.outside[0] == 2 and counts.samples[0] == 2 and counts.samples[1] == 2
    assert np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist() == [2, 3]


def test_tensor_without_batch_axis_counts_whole_embeds_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["pooled"], keepdims=0),
        helper.make_node("MatMul", ["pooled", "w"], ["y"]),
    ]
    graph = graph_of(nodes, {"axes": np.array([0]), "w": np.eye(3, dtype=np.float32)}, {"x": ["n", 3]})
    x = np.ones((7, 3), np.float32)
    with open_tapped(save(graph, tmp_path / "m.onnx"), SETTINGS, lambda g: find_taps(g, "y", None)) as watch:
        (counts,), vectors = watch.count_outside(
            samples_of(x=x), np.arange(7), 7, [Ranges(np.array([0.0]), np.array([1.0]))]
        )
    assert (counts.outside[0], counts.values[0], counts.samples[0]) == (3, 3, 7)
    assert vectors.shape == (7, 1) and np.isnan(vectors).all()


def test_nothing_counted_is_zero_of_each() -> None:
    counts = Counts.none(2)
    assert counts.outside.tolist() == counts.values.tolist() == counts.samples.tolist() == [0, 0] and counts.rows == 0


# What is seen of two sets.


def test_a_view_has_the_ranges_of_the_one_against_the_other(tiny: Tiny) -> None:
    ours, theirs = (tiny_samples(n, seed)["x"].astype(np.float32) for n, seed in ((20, 8), (60, 9)))
    ours[7, 0], theirs[11] = np.nan, theirs[10]  # one is not finite, one a copy: neither is run
    with open_tapped(tiny.model, SETTINGS, watch_all) as watch:
        view = view_samples(watch, samples_of(x=ours), samples_of(x=theirs), most=1000, fixed_batch=None, seed=1)
        few = view_samples(watch, samples_of(x=ours), samples_of(x=theirs), most=10, fixed_batch=4, seed=1)
        hollow = samples_of(x=np.full((5, 64), np.nan, np.float32))
        assert view_samples(watch, hollow, samples_of(x=theirs), most=9, fixed_batch=None, seed=1) is None
    assert view is not None and few is not None
    assert view.tensor == "hidden"
    assert view.calibration.rows.tolist() == [row for row in range(20) if row != 7]
    assert view.reference.rows.tolist() == [row for row in range(60) if row != 11]
    np.testing.assert_allclose(
        view.reference.vectors, hidden_of(tiny, theirs[view.reference.rows]), rtol=1e-4, atol=1e-4
    )
    kept, others = ours[view.calibration.rows], theirs[view.reference.rows]
    outside = (others < kept.min()) | (others > kept.max())
    assert view.clipping[0].share == outside.mean() > 0
    assert view.clipping[0].sample_share == outside.any(axis=1).mean()
    assert len(few.calibration) == len(few.reference) == 8  # 10 at most, in whole batches of 4
