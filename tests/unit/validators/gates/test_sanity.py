"""Sanity of variants: each fault planted in a model, asked through the real runtime, and found by the gate made for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import CLASSES, HIDDEN, Tiny
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tasks.measure.sanity import RUNS, ask, describe, merge
from validators.gates.sanity import SPREAD_SLACK, judge_finite, judge_sanity
from validators.records.measurements import Answers, Sanity
from validators.records.run import SessionSettings
from validators.samples.datasets import Arrays

SETTINGS = SessionSettings("CPUExecutionProvider", 1)
SAMPLES = 8
FLOAT = TensorProto.FLOAT


def batches(tiny: Tiny, *sizes: int) -> list[Arrays]:
    x = np.load(tiny.evaluation)["x"]
    starts = np.cumsum([0, *sizes])
    return [{"x": x[start : start + size]} for start, size in zip(starts, sizes, strict=False)]


def outputs(model: onnx.ModelProto, *names: str) -> None:
    """Let these be the outputs, as the runtime infers their types."""
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)


def append(model: onnx.ModelProto, kind: str, inputs: list[str], output: str, **attributes: object) -> None:
    model.graph.node.append(helper.make_node(kind, inputs, [output], name=f"{output}_made", **attributes))


def constant(model: onnx.ModelProto, name: str, value: object) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return name


def renamed(model: onnx.ModelProto) -> None:
    append(model, "Identity", ["logits"], "scores")
    outputs(model, "scores")


def other_dtype(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = "exact"
    append(model, "Cast", ["exact"], "logits", to=TensorProto.FLOAT16)
    outputs(model, "logits")


def other_shape(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = "flat"
    append(model, "Unsqueeze", ["flat", constant(model, "axes", np.array([1]))], "logits")
    outputs(model, "logits")


def extra(model: onnx.ModelProto) -> None:
    outputs(model, "logits", "hidden")


def constant_answer(model: onnx.ModelProto) -> None:
    """The logits of the first class alone count, and those not at all."""
    model.graph.node[-1].output[0] = "lively"
    append(model, "Mul", ["lively", constant(model, "nothing", np.float32(0))], "dead")
    append(model, "Add", ["dead", constant(model, "one", np.float32(1))], "logits")


def random(model: onnx.ModelProto) -> None:
    model.graph.node[-1].output[0] = "exact"
    append(model, "RandomNormalLike", ["exact"], "noise", scale=0.01)
    append(model, "Add", ["exact", "noise"], "logits")


def nan_where_negative(model: onnx.ModelProto) -> None:
    """The logarithm of the first feature: NaN for samples where that is negative."""
    model.graph.node[-1].output[0] = "exact"
    append(model, "Gather", ["x", constant(model, "place", np.array([0]))], "first_feature", axis=1)
    append(model, "Log", ["first_feature"], "logarithm")
    append(model, "Mul", ["logarithm", constant(model, "zero", np.float32(0))], "nothing_or_nan")
    append(model, "Add", ["exact", "nothing_or_nan"], "logits")


def infinite(model: onnx.ModelProto) -> None:
    """An overflow on every sample."""
    model.graph.node[-1].output[0] = "exact"
    append(model, "Mul", ["exact", constant(model, "huge", np.float32(3e38))], "large")
    append(model, "Mul", ["large", "huge"], "logits")


def positives(least: float, by_row: bool = True, axes: int = 2) -> Callable[[onnx.ModelProto], None]:
    """The positions of all logits above `least`, as a side output: as many as there are."""

    def plant(model: onnx.ModelProto) -> None:
        scores = "logits"
        if axes == 3:
            append(model, "Unsqueeze", ["logits", constant(model, "last", np.array([2]))], scores := "deep")
        append(model, "Greater", [scores, constant(model, "least", np.float32(least))], "above")
        append(model, "NonZero", ["above"], "rows" if by_row else "places")
        if by_row:
            append(model, "Transpose", ["rows"], "places", perm=[1, 0])
        outputs(model, "logits", "places")

    return plant


Plant = Callable[[onnx.ModelProto], None]
FAULTS: dict[str, tuple[Plant, dict[str, str]]] = {
    "renamed output": (renamed, {"same_outputs": "output 'logits' is missing; output 'scores' is not the baseline's"}),
    "output of another dtype": (other_dtype, {"same_outputs": "has dtype float16, the baseline's has float32"}),
    "output of another shape": (other_shape, {"same_outputs": "has shape (8, 1, 4), the baseline's has (8, 4)"}),
    "extra output": (extra, {"same_outputs": "output 'hidden' is not the baseline's"}),
    "a constant": (constant_answer, {"not_constant": "output 'logits' gives every sample the same answer"}),
    "random": (random, {"deterministic": "output 'logits' differs from run to run by 0.0"}),
    "NaN on some": (nan_where_negative, {"finite_outputs": "output 'logits' has NaN or Inf on "}),
    "Inf on all": (
        infinite,
        {"finite_outputs": "on 8 samples (0, 1, 2, 3, 4 and 3 more) where the baseline is finite"},
    ),
    "none": (lambda model: None, {}),
}


def sane(tiny: Tiny, folder: Path, plant: Plant, before: Plant = lambda model: None) -> Sanity:
    """What a model with a fault answers beside one without it."""
    asked, *probes = batches(tiny, *(SAMPLES,) * 8)
    answers = []
    for name, change, more in (("before", before, probes), ("after", plant, [])):
        model = onnx.load(tiny.model)
        change(model)
        onnx.save(model, folder / f"{name}.onnx")
        answers.append(ask(folder / f"{name}.onnx", SETTINGS, [asked], more))
    return Sanity(SAMPLES, RUNS, *answers)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_the_gate_made_for_it_and_no_other(tiny: Tiny, tmp_path: Path, fault: str) -> None:
    """The reason says which output, and how."""
    plant, expected = FAULTS[fault]
    verdicts = judge_sanity(sane(tiny, tmp_path, plant))
    assert [verdict.gate for verdict in verdicts] == ["same_outputs", "not_constant", "deterministic", "finite_outputs"]
    failed = {verdict.gate: verdict for verdict in verdicts if verdict.outcome != "pass"}
    assert set(failed) == set(expected)
    for gate, told in expected.items():
        assert told in failed[gate].reason and failed[gate].n == SAMPLES
    assert all(verdict.reason == "" and verdict.value == 0 for verdict in verdicts if verdict.outcome == "pass")


@pytest.mark.parametrize("fault", ["a constant", "random", "NaN on some", "Inf on all", "extra output"])
def test_what_the_baseline_does_too_is_no_fault(tiny: Tiny, tmp_path: Path, fault: str) -> None:
    """A constant output, noise of the same size, NaN on the same samples."""
    plant, _ = FAULTS[fault]
    assert {verdict.outcome for verdict in judge_sanity(sane(tiny, tmp_path, plant, plant))} == {"pass"}


@pytest.mark.parametrize("by_row", [True, False])
def test_a_size_that_depends_on_values_may_differ(tiny: Tiny, tmp_path: Path, by_row: bool) -> None:
    """Of positions above a threshold there are as many as values say; the other size is the number of axes."""
    found = sane(tiny, tmp_path, positives(5.0, by_row), positives(0.0, by_row))
    free, fixed = (0, 1) if by_row else (1, 0)
    (logits, before), after = found.baseline, found.variant[1]
    assert logits.shape == (SAMPLES, CLASSES) and before.shape is not None and after.shape is not None
    assert (before.shape[free], before.shape[fixed], after.shape[fixed]) == (None, 2, 2)
    (asked,) = batches(tiny, SAMPLES)
    assert ask(tmp_path / "before.onnx", SETTINGS, [asked])[1].shape != after.shape
    assert {verdict.outcome for verdict in judge_sanity(found)} == {"pass"}
    other = judge_sanity(sane(tiny, tmp_path, positives(0.0, by_row, axes=3), positives(0.0, by_row)))[0]
    assert other.outcome == "fail"
    assert "the baseline's has (any, 2)" in other.reason or "the baseline's has (2, any)" in other.reason


def test_rows_as_many_as_values_say_are_no_samples() -> None:
    """Their number may equal that of the samples by chance: 8 boxes of one class are no constant answer."""
    before = Answers("labels", "int64", (None,), bad_samples=(0,))
    after = Answers("labels", "int64", (SAMPLES,), is_constant=True, bad_samples=(5,))
    verdicts = judge_sanity(Sanity(SAMPLES, RUNS, (before,), (after,)))
    assert {verdict.outcome for verdict in verdicts} == {"pass"}
    new = judge_sanity(Sanity(SAMPLES, RUNS, (replace(before, bad_samples=()),), (after,)))
    assert new[3].reason == "output 'labels' has NaN or Inf where the baseline is finite"


def test_the_metric_judges_sizes_of_the_boxes_that_it_counts() -> None:
    """One box for each sample in all samples asked of the source, and one more in the variant's."""
    sides = [(Answers("boxes", "float32", (size, 7)),) for size in (8, 9)]
    assert judge_sanity(Sanity(SAMPLES, RUNS, *sides))[0].outcome == "fail"
    assert judge_sanity(Sanity(SAMPLES, RUNS, *sides), judged_boxes=["boxes"])[0].outcome == "pass"
    deep = (Answers("boxes", "float32", (1, 9, 7)),)
    assert judge_sanity(Sanity(SAMPLES, RUNS, sides[0], deep), judged_boxes=["boxes"])[0].outcome == "fail"


def test_samples_with_nan_are_named(tiny: Tiny, tmp_path: Path) -> None:
    """Those whose first feature is negative, by numpy."""
    found = sane(tiny, tmp_path, nan_where_negative)
    expected = tuple(int(row) for row in np.flatnonzero(np.load(tiny.evaluation)["x"][:SAMPLES, 0] < 0))
    assert 0 < len(expected) < SAMPLES
    assert found.variant[0].bad_samples == expected
    assert replace(found.baseline[0], peak=0.0) == Answers("logits", "float32", (SAMPLES, CLASSES))


@pytest.mark.parametrize("sizes", [(8,), (4, 4), (1,) * 8, (3, 3, 2)])
@pytest.mark.parametrize("fault", ["none", "a constant", "NaN on some", "extra output"])
def test_batches_make_no_difference(tiny: Tiny, tmp_path: Path, fault: str, sizes: tuple[int, ...]) -> None:
    """A model of a fixed batch is asked sample by sample: the answers are those of one batch."""
    model = onnx.load(tiny.model)
    FAULTS[fault][0](model)
    onnx.save(model, tmp_path / "model.onnx")
    whole = ask(tmp_path / "model.onnx", SETTINGS, batches(tiny, SAMPLES))
    assert ask(tmp_path / "model.onnx", SETTINGS, batches(tiny, *sizes)) == whole
    assert whole[0].shape == (SAMPLES, CLASSES)
    assert fault != "extra output" or whole[1].shape == (SAMPLES, HIDDEN)


def test_one_sample_is_never_constant(tiny: Tiny) -> None:
    assert not ask(tiny.model, SETTINGS, batches(tiny, 1))[0].is_constant


def test_outputs_without_samples_or_numbers_are_described() -> None:
    """A scalar has no samples; a sequence of maps is known by its type alone."""
    scalar = [np.array(2.0), np.array(2.0)]
    assert describe("mean", "float64", scalar, 4).answers == Answers("mean", "float64", (), peak=2.0)
    assert merge([describe("mean", "float64", scalar, 4)] * 2).is_constant is False
    nan = [np.array(np.nan)] * 2
    assert describe("mean", "float64", nan, 4).answers.bad_samples == (0,)
    maps = [[{0: 0.5}], [{0: 0.5}]]
    assert merge([describe("labels", "seq(map(int64,tensor(float)))", maps, 1)] * 2).shape is None


@pytest.mark.parametrize(
    ("runs", "spread"),
    [
        ([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], 0.0),
        ([[1.0, 2.0], [1.0, 2.5], [0.25, 2.0]], 0.75),
        ([[1.0, np.nan], [1.0, np.nan], [1.0, np.nan]], 0.0),
        ([[1.0, 2.0], [1.0, np.nan], [1.0, 2.0]], float("inf")),
        ([[1.0, np.inf], [1.5, np.inf], [1.0, np.inf]], 0.5),
        ([[1.0, 0.0], [1.0, -0.0], [1.0, 0.0]], np.finfo(np.float64).tiny),
    ],
)
def test_the_spread_of_runs_by_hand(runs: list[list[float]], spread: float) -> None:
    """The largest difference to the first run; the same bits are none, and 0 and -0 are not the same bits."""
    assert describe("y", "float64", [np.array([run]) for run in runs], 1).answers.spread == spread


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_variant_may_waver_as_much_as_the_baseline(before: float, after: float) -> None:
    """Within a factor of two, which three runs cannot tell; not at all beside a baseline that does not."""
    answers = Answers("y", "float32", (2, 3))
    sanity = Sanity(2, 3, (replace(answers, spread=before),), (replace(answers, spread=after),))
    verdict = next(verdict for verdict in judge_sanity(sanity) if verdict.gate == "deterministic")
    assert (verdict.outcome == "pass") == (after <= SPREAD_SLACK * before)


def test_the_order_of_outputs_counts() -> None:
    """Who reads outputs by position gets the other one."""
    first, second = Answers("a", "float32", (2,)), Answers("b", "float32", (2,))
    verdict = judge_sanity(Sanity(2, 3, (first, second), (second, first)))[0]
    assert verdict.outcome == "fail" and "in the order b, a" in verdict.reason


def test_the_judged_output_is_looked_at_on_all_samples() -> None:
    assert judge_finite(0, 100).outcome == "pass"
    verdict = judge_finite(3, 100)
    assert (verdict.outcome, verdict.value, verdict.n) == ("fail", 3.0, 100) and "3 samples" in verdict.reason
