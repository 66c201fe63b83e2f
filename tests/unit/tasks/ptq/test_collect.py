"""Statistics of a graph's tensors: against the values of the same graph by numpy, within the memory that was foreseen."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_samples
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate import watched as module
from tasks.ptq.calibrate.collect import Collected, collect_statistics
from tasks.ptq.calibrate.statistics import MIN_BINS, TensorStatistics, add, empty
from validators.errors import CandidateRefused

Arrays = dict[str, NDArray[Any]]
Batches = Callable[[int], Iterator[Arrays]]


def batches_of(**inputs: NDArray[Any]) -> Batches:
    def batches(size: int) -> Iterator[Arrays]:
        for start in range(0, len(next(iter(inputs.values()))), size):
            yield {name: array[start : start + size] for name, array in inputs.items()}

    return batches


def collect(model: Path, batches: Batches, **changes: Any) -> Collected:
    settings: dict[str, Any] = {"threads": 1, "max_memory_mb": 100.0, "fixed_batch": None, "bins": MIN_BINS}
    return collect_statistics(model, batches, **(settings | changes))


def save(
    folder: Path,
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: list[str],
    weights: Arrays | None = None,
    domains: tuple[str, ...] = ("",),
) -> Path:
    graph = helper.make_graph(
        nodes,
        "some",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid(domain, 21 if not domain else 1) for domain in domains]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    return folder / "model.onnx"


def assert_is_of(found: TensorStatistics, values: NDArray[Any]) -> None:
    """The statistics of these values, to the last bit."""
    expected = add(empty(MIN_BINS), values)
    assert (found.minimum, found.maximum, found.finite, found.non_finite, found.exponent) == (
        expected.minimum,
        expected.maximum,
        expected.finite,
        expected.non_finite,
        expected.exponent,
    )
    np.testing.assert_array_equal(found.counts, expected.counts)


def same(a: Collected, b: Collected) -> bool:
    """Whether both found the same of the same tensors."""
    return list(a.statistics) == list(b.statistics) and all(
        (one.minimum, one.maximum, one.finite, one.counts.tobytes())
        == (other.minimum, other.maximum, other.finite, other.counts.tobytes())
        for one, other in zip(a.statistics.values(), b.statistics.values(), strict=True)
    )


# What is watched.


def test_every_activation_is_watched_and_no_weight(tiny: Tiny) -> None:
    x = tiny_samples(21, 5)["x"]
    found = collect(tiny.model, batches_of(x=x))
    assert list(found.statistics) == ["x", "product", "sum", "hidden", "logits"]
    assert (found.samples, found.passes) == (21, 1)
    assert_is_of(found.statistics["x"], x)
    first, bias, _ = (weight.astype(np.float64) for weight in tiny.weights)
    hidden = np.maximum(x.astype(np.float64) @ first + bias, 0)
    assert found.statistics["hidden"].finite == hidden.size
    assert found.statistics["hidden"].maximum == pytest.approx(hidden.max(), rel=1e-5)
    assert found.statistics["hidden"].minimum == 0


def test_tensors_of_weights_and_non_floats_are_not_watched(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Transpose", ["w"], ["turned"]),
        helper.make_node("Constant", [], ["half"], value=numpy_helper.from_array(np.float32(0.5))),
        helper.make_node("Mul", ["turned", "half"], ["halved"]),
        helper.make_node("MatMul", ["x", "halved"], ["product"]),
        helper.make_node("Greater", ["product", "half"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["number"], to=TensorProto.INT64),
        helper.make_node("SequenceConstruct", ["product", "x"], ["pair"]),
        helper.make_node("Cast", ["product"], ["y"], to=TensorProto.FLOAT16),
    ]
    weights = {"w": np.eye(3, dtype=np.float32)}
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 3])}, ["y", "number", "pair"], weights)
    x = np.array([[1.0, -2.0, np.inf], [0.1, 0.2, 70000.0]], np.float32)
    found = collect(model, batches_of(x=x)).statistics
    assert list(found) == ["x", "product", "y"]
    assert_is_of(found["x"], x)
    with np.errstate(invalid="ignore", over="ignore"):
        assert_is_of(
            found["y"],
            np.where(np.isfinite(x).all(axis=1, keepdims=True), x / 2, [[np.nan, np.nan, np.inf]]).astype(np.float16),
        )


def test_no_samples_are_refused(tiny: Tiny) -> None:
    with pytest.raises(CandidateRefused, match="no calibration samples"):
        collect(tiny.model, lambda size: iter(()))


def test_a_model_that_does_not_run_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused, match="fails on the model"):
        collect(tiny.model, batches_of(x=np.ones((4, 3), np.float32)))
    unknown = [helper.make_node("Nothing", ["x"], ["y"], domain="nobody")]
    model = save(tmp_path, unknown, {"x": (TensorProto.FLOAT, ["n"])}, ["y"], domains=("nobody",))
    with pytest.raises(CandidateRefused, match=r"does not load model\.onnx"):
        collect(model, batches_of(x=np.ones(3, np.float32)))


def test_a_graph_of_fused_operators_alone_is_watched(tmp_path: Path) -> None:
    model = save(
        tmp_path,
        [helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")],
        {"x": (TensorProto.FLOAT, ["n", 4])},
        ["y"],
        domains=("com.microsoft",),
    )
    found = collect(model, batches_of(x=np.zeros((3, 4), np.float32)))
    assert list(found.statistics) == ["x", "y"] and found.statistics["y"].finite == 12


# Shapes and bodies.


def test_shapes_may_depend_on_the_data(tmp_path: Path) -> None:
    """NonZero: as many columns as there are positive values."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Transpose", ["places"], ["turned"]),
        helper.make_node("GatherND", ["positive", "turned"], ["kept"]),
        helper.make_node("ReduceSum", ["kept"], ["y"]),
    ]
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 50])}, ["y"])
    x = np.random.default_rng(1).normal(size=(20, 50)).astype(np.float32)
    x[0] = -1  # the sample that is measured has none
    found = collect(model, batches_of(x=x))
    assert list(found.statistics) == ["x", "positive", "kept", "y"]
    assert_is_of(found.statistics["kept"], x[x > 0])


def test_batches_shrink_when_tensors_are_larger_than_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["turned"]),
        helper.make_node("GatherND", ["x", "turned"], ["kept"]),
        helper.make_node("Expand", ["kept", "many"], ["y"]),
    ]
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 4])}, ["y"], {"many": np.array([50_000, 1])})
    x = np.ones((33, 4), np.float32)
    x[0] = [0, 0, 0, 1]
    sizes = []
    run = module.run_outputs

    def watch(session: Any, batch: Arrays, outputs: list[str]) -> list[NDArray[Any]]:
        sizes.append(len(batch["x"]))
        return run(session, batch, outputs)

    monkeypatch.setattr(module, "run_outputs", watch)
    found = collect(model, batches_of(x=x), max_memory_mb=6.0)
    assert found.statistics["y"].finite == 50_000 * (32 * 4 + 1)
    # The sample that is measured, a batch by what it told, and the other batches in pieces of 0.8 MB a sample.
    assert sizes == [1, 8, 3, 3, 2, 3, 3, 2, 3, 3, 2, 1]


def test_samples_may_differ_in_length(tmp_path: Path) -> None:
    nodes = [helper.make_node("Abs", ["x"], ["size"]), helper.make_node("ReduceMax", ["size"], ["y"], keepdims=0)]
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", "length"])}, ["y"])
    rng = np.random.default_rng(2)
    samples = [rng.normal(size=(1, length)).astype(np.float32) for length in (3, 700, 40, 1, 700)]
    found = collect(model, lambda size: ({"x": sample} for sample in samples))
    assert found.samples == 5
    assert_is_of(found.statistics["size"], np.abs(np.concatenate(samples, axis=1)))
    longest = collect(model, lambda size: ({"x": sample} for sample in samples[1:2]))
    assert found.predicted_mb == longest.predicted_mb


def test_bodies_of_if_are_left_alone_and_outer_tensors_watched(tmp_path: Path) -> None:
    def body(name: str, operator: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node(operator, ["doubled"], [f"{name}_inner"]),
            helper.make_node("Identity", [f"{name}_inner"], [f"{name}_out"]),
        ]
        return helper.make_graph(
            nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None)]
        )

    nodes = [
        helper.make_node("Add", ["x", "x"], ["doubled"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["chosen"], then_branch=body("a", "Abs"), else_branch=body("b", "Neg")),
        helper.make_node("Relu", ["chosen"], ["y"]),
    ]
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 2])}, ["y"], {"zero": np.float32(0.0).reshape(())})
    x = np.array([[1, -3], [-4, -5]], np.float32)
    found = collect(model, lambda size: ({"x": x[place : place + 1]} for place in range(2))).statistics
    assert list(found) == ["x", "doubled", "most", "chosen", "y"]
    assert_is_of(found["chosen"], np.array([2, 6, 8, 10], np.float32))
    # What a body reads counts, not the condition alone.
    nodes[3].input[0] = "true"
    constants: Arrays = {"zero": np.array(0, np.float32), "true": np.array(True)}
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 2])}, ["y"], constants)
    assert_is_of(collect(model, batches_of(x=x)).statistics["chosen"], np.array([2, 6, 8, 10], np.float32))


def test_bodies_of_loop_are_left_alone_and_their_outputs_watched(tmp_path: Path) -> None:
    """Three turns, each of which doubles `x` and stacks the result."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "state"], ["twice"]),
            helper.make_node("Identity", ["twice"], ["stacked"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("stacked", TensorProto.FLOAT, None),
        ],
    )
    nodes = [
        helper.make_node("Loop", ["three", "", "x"], ["last", "all"], body=body),
        helper.make_node("Neg", ["all"], ["y"]),
    ]
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 2])}, ["y"], {"three": np.array(3)})
    x = np.array([[1, -3], [5, 0]], np.float32)
    found = collect(model, batches_of(x=x)).statistics
    assert list(found) == ["x", "last", "all", "y"]
    assert_is_of(found["all"], np.stack([2 * x, 4 * x, 8 * x]))


def test_a_fixed_batch_is_run_whole(tmp_path: Path) -> None:
    model = save(tmp_path, [helper.make_node("Neg", ["x"], ["y"])], {"x": (TensorProto.FLOAT, [4, 3])}, ["y"])
    x = np.arange(24, dtype=np.float32).reshape(8, 3)
    found = collect(model, batches_of(x=x), fixed_batch=4)
    assert found.samples == 8
    assert_is_of(found.statistics["y"], -x)


# Memory.


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """Six tensors of 1.2 MB for each sample, one after the other, from 12 bytes."""
    names = ["spread", "a", "b", "c", "d", "y"]
    nodes = [helper.make_node("Expand", ["x", "shape"], ["spread"])]
    nodes += [helper.make_node("Neg", [old], [new]) for old, new in itertools.pairwise(names)]
    return save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 3, 1])}, ["y"], {"shape": np.array([1, 3, 100_000])})


OVERHEAD_MB = 13 * (1 << 18) / 1e6 + 7 * MIN_BINS * 8 / 1e6


def test_memory_is_foreseen_from_the_sizes_of_one_sample(wide: Path) -> None:
    x = np.random.default_rng(3).normal(size=(20, 3, 1)).astype(np.float32)
    found = collect(wide, batches_of(x=x))
    # 8 samples at once, of six tensors and the input; nothing else lives.
    assert found.passes == 1
    assert found.predicted_mb == pytest.approx(OVERHEAD_MB + 8 * (6 * 1.2 + 12e-6))


@pytest.mark.parametrize(("units_mb", "passes"), [(40.0, 1), (8.5, 2), (6.1, 2), (5.0, 3), (3.7, 6)])
def test_tensors_are_split_over_passes_that_fit(wide: Path, units_mb: float, passes: int) -> None:
    """A plain run holds two tensors at a time, 2.4 MB, beside those that are exposed."""
    x = np.random.default_rng(3).normal(size=(11, 3, 1)).astype(np.float32)
    found = collect(wide, batches_of(x=x), max_memory_mb=OVERHEAD_MB + units_mb)
    assert found.passes == passes
    assert found.predicted_mb <= OVERHEAD_MB + units_mb
    assert same(found, collect(wide, batches_of(x=x)))  # and all passes together are as good as one


def test_what_does_not_fit_at_all_is_refused_with_what_it_needs(wide: Path) -> None:
    with pytest.raises(CandidateRefused, match=r"3\.6 MB, which one sample takes with 'spread' exposed") as refused:
        collect(wide, batches_of(x=np.ones((2, 3, 1), np.float32)), max_memory_mb=OVERHEAD_MB + 3)
    assert refused.value.kind == "unsupported"  # however often it is tried again


def test_values_do_not_depend_on_what_else_is_exposed(tmp_path: Path) -> None:
    """The runtime's optimizations would multiply the weights by the normalization, and round elsewhere."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["product"]),
        helper.make_node("BatchNormalization", ["product", "scale", "bias", "mean", "variance"], ["normal"]),
        helper.make_node("Sigmoid", ["normal"], ["y"]),
    ]
    rng = np.random.default_rng(4)
    weights: Arrays = {
        name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in ("scale", "bias", "mean", "variance")
    }
    weights["w"] = rng.normal(size=(3, 3, 3, 3)).astype(np.float32)
    model = save(tmp_path, nodes, {"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, ["y"], weights)
    batches = batches_of(x=rng.normal(size=(20, 3, 8, 8)).astype(np.float32))
    overhead_mb = 13 * (1 << 18) / 1e6 + 4 * MIN_BINS * 8 / 1e6
    alone, *others = (collect(model, batches, max_memory_mb=overhead_mb + mb) for mb in (0.0020, 0.0022, 0.0030, 1))
    assert [found.passes for found in (alone, *others)] == [4, 3, 2, 1]
    for found in others:
        assert (found.statistics["normal"].minimum, found.statistics["normal"].maximum) == (
            alone.statistics["normal"].minimum,
            alone.statistics["normal"].maximum,
        )
        np.testing.assert_array_equal(found.statistics["normal"].counts, alone.statistics["normal"].counts)


def test_no_output_outlives_its_batch(wide: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two batches alive at once would take twice what was foreseen."""
    alive: list[weakref.ref[NDArray[Any]]] = []
    run = module.run_outputs

    def watch(session: Any, batch: Arrays, outputs: list[str]) -> list[NDArray[Any]]:
        assert not any(reference() is not None for reference in alive)
        found = run(session, batch, outputs)
        if "a" in outputs:
            alive.extend(weakref.ref(array) for array in found)
        return found

    monkeypatch.setattr(module, "run_outputs", watch)
    collect(wide, batches_of(x=np.ones((20, 3, 1), np.float32)))
    assert len(alive) == 3 * 6
