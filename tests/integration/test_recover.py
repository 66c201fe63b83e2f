"""Recovery: what fails on accuracy alone comes back with its worst parts in float; what would gain nothing is left alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from math import isfinite
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Hard
from driving import Answer, run_jobs, write_job
from hypothesis import given
from hypothesis import strategies as st
from test_judge import latency, make_job

from tasks.champion.bundle.verify import is_sound, verify
from tasks.engines.ort.pairs import PAIRS
from tasks.engines.variants import session_settings
from tasks.ptq.calibrate.watched import WATCHING
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.qdq import quantize_qdq
from tasks.ptq.search import Assigned
from tasks.runtimes.ort import open_session, run_batches
from tasks.trials.judge_on_samples import JudgedData
from tasks.trials.recover import (
    choose_recovered,
    find_cheapest,
    first_guess,
    is_worth_a_search,
    loses_little,
    with_stricter_confidence,
)
from validators.job.candidate_name import decode
from validators.records.measurements import Accuracy, Estimate
from validators.records.run import SessionSettings, Trial, Variant
from validators.records.verdicts import Verdict

CPU = SessionSettings("CPUExecutionProvider", 1)
STATIC, DYNAMIC = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu"


def trial(name: str, speedup: float, outcome: str, *, failing: tuple[str, ...] = ("drop",)) -> Trial:
    """A trial with this speedup and these gates not passed."""
    verdicts = tuple(Verdict(gate, "fail", 1.0, 0.5, "at_most") for gate in failing) if outcome != "passed" else ()
    return Trial(
        name,
        outcome=outcome,  # type: ignore[arg-type]  # one of the literals, as the calls below show
        latencies=(latency(Estimate(speedup, speedup, speedup)),),
        verdicts=(*verdicts, Verdict("size_ratio", "pass", 0.5, 1.0, "at_most")),
    )


def test_fastest_static_trial_failing_on_accuracy_is_recovered() -> None:
    slower, faster = trial(STATIC, 1.5, "failed"), trial(STATIC.replace("pc", "pc-all"), 2.0, "inconclusive")
    assert choose_recovered((slower, faster)) is faster
    assert choose_recovered((slower, faster, trial(DYNAMIC, 1.7, "passed"))) is faster
    for speedup in (1.9, 2.1):
        best = trial(DYNAMIC, speedup, "passed")
        assert choose_recovered((slower, faster, best)) is best
    assert choose_recovered((slower, faster, trial("fp32-fused@ort-cpu", 2.1, "passed"))) is None
    quick = trial(DYNAMIC, 3.0, "failed")
    assert choose_recovered((faster, quick)) is quick


def test_of_two_nearly_as_fast_the_smaller_drop_is_recovered() -> None:
    rough = replace(trial(DYNAMIC, 2.0, "failed"), drop=Estimate(0.5, 0.4, 0.6))
    smooth = replace(trial("int8-dynamic-pc-smooth@ort-cpu", 1.85, "failed"), drop=Estimate(0.05, 0.04, 0.06))
    assert choose_recovered((rough, smooth)) is smooth
    slow = replace(smooth, latencies=(latency(Estimate(1.7, 1.7, 1.7)),))
    assert choose_recovered((rough, slow)) is rough


def test_smaller_forms_are_searched_of_int4_that_passes_by_size() -> None:
    """Of two that pass the smaller one, if its weights have smaller forms; one that fails and is much smaller goes before."""
    sizes = {"int4-g32-gptq@ort-cpu": 20, DYNAMIC: 24, "int4-g128-rtn@ort-cpu": 17, "fp32-fused@ort-cpu": 90}
    small, int8, smaller, plain = (
        replace(trial(name, 2.0, "passed"), variant=Variant(name, Path(), "", size, CPU))
        for name, size in sizes.items()
    )
    assert choose_recovered((plain, int8, small), "size") is small and is_worth_a_search(small, "size")
    assert choose_recovered((plain, int8), "size") is int8 and not is_worth_a_search(int8, "size")
    assert choose_recovered((plain,), "size") is None
    failing = replace(trial(smaller.candidate, 2.0, "failed"), variant=smaller.variant)
    assert choose_recovered((small, failing), "size") is failing and is_worth_a_search(failing, "size")
    assert not is_worth_a_search(small, "latency") and is_worth_a_search(failing, "latency")


def test_too_little_low_precision_is_no_loss_of_accuracy() -> None:
    """It is no reason to try yet less of it."""
    for failing, expected in ((("coverage",), True), (("drop",), False), (("coverage", "sqnr"), False)):
        assert loses_little(trial(STATIC, 2.0, "failed", failing=failing)) == expected
    assert loses_little(trial(STATIC, 2.0, "passed"))


@given(st.floats(0.05, 20), st.integers(1, 40))
def test_the_first_attempt_has_the_noise_that_losses_allow(share: float, count: int) -> None:
    """The loss is `share` of its bound: the first point has at most the candidate's noise over it; other gates say nothing."""
    verdicts = (
        Verdict("drop", "fail", 0.5 * share, 1.0, "at_most", high=share),
        Verdict("sqnr_db", "fail", 9.0, 30.0, "at_least"),
        Verdict("size_ratio", "pass", 50.0, 1.0, "at_most"),
    )
    frontier = [Assigned(level, (1,), 10 ** (-level / 10), level) for level in range(1, 1 + count)]
    own = Assigned(0, (0,), 10 ** (-count / 20), 0.0)
    guess = first_guess(Trial(STATIC, verdicts=verdicts), own, frontier)
    assert guess == count - 1 or frontier[guess].noise <= own.noise / share
    assert guess == 0 or frontier[guess - 1].noise > own.noise / share
    assert first_guess(Trial(STATIC, verdicts=verdicts), own, ()) == 0


@pytest.mark.parametrize("nan_first", [False, True])
def test_a_trial_whose_drop_is_nan_loses_most(nan_first: bool) -> None:
    nan = replace(trial(DYNAMIC, 2.0, "failed"), drop=Estimate(math.nan, None, None))
    known = replace(trial("int8-dynamic-pc-smooth@ort-cpu", 1.85, "failed"), drop=Estimate(0.05, 0.04, 0.06))
    assert choose_recovered((nan, known) if nan_first else (known, nan)) is known


@given(st.integers(1, 60), st.integers(0, 60), st.integers(0, 59), st.integers(0, 20))
def test_the_cheapest_point_is_found_by_bisection(count: int, enough: int, guess: int, budget: int) -> None:
    asked: list[int] = []

    def attempt(point: int) -> bool:
        asked.append(point)
        return point >= enough

    found = find_cheapest(attempt, count, budget, min(guess, count - 1))
    assert len(asked) == len(set(asked)) <= budget and set(asked) <= set(range(count))
    assert found is None or (found in asked and found >= enough)
    if budget >= 1 + count.bit_length():
        assert found == (enough if enough < count else None)


def test_attempts_share_the_error_where_nothing_is_confirmed() -> None:
    """Six looks at the same samples: each at 1 - 0.05 / 6; samples that confirm, or no attempts, leave it at 95 %."""
    for changes, confidence in (
        ({"confirmation": {"share": 0}}, 1 - 0.05 / 6),
        ({"confirmation": {"share": 0}, "budgets": {"recovery": 4}}, 1 - 0.05 / 4),
        ({"confirmation": {"share": 0}, "budgets": {"recovery": 0}}, 0.95),
        ({}, 0.95),
    ):
        judged_data = JudgedData(
            make_job(**changes), Accuracy("accuracy", 1.0, 8, Path(), Path()), 1, np.zeros(8, bool), {}
        )
        assert with_stricter_confidence(judged_data).job.gates.confidence == pytest.approx(confidence)


def test_the_search_ends_where_an_attempt_is_refused() -> None:
    assert find_cheapest(lambda point: None if point > 4 else False, 20, 6) is None
    assert find_cheapest(lambda point: True if point > 4 else None, 20, 6, guess=10) == 10
    assert find_cheapest(lambda point: True, 20, 0) is None
    assert find_cheapest(lambda point: True, 0, 6) is None


def test_what_recovery_cannot_mend_is_left_alone() -> None:
    assert choose_recovered(()) is None
    assert choose_recovered((trial("int4-g32-hqq-asym@ort-cpu", 2.0, "failed"),)) is None
    assert choose_recovered((trial("int8-dynamic-pc@ort-genai", 2.0, "failed"),)) is None
    assert choose_recovered((trial(STATIC, 2.0, "failed", failing=("drop", "speedup")),)) is None
    assert choose_recovered((trial(STATIC, 2.0, "failed", failing=("coverage",)),)) is None
    assert choose_recovered((trial("int8-static-minmax-pc-40db@ort-cpu", 2.0, "failed"),)) is None
    assert choose_recovered((Trial(STATIC, outcome="refused"),)) is None


def test_the_hard_model_is_the_easy_one_in_float(hard: Hard) -> None:
    x = np.load(hard.evaluation)["x"]
    outputs = []
    for path in (hard.model, hard.easy):
        with open_session(path, SessionSettings("CPUExecutionProvider", 1)) as session:
            outputs.append(run_batches(session, [{"x": x}], "logits"))
    np.testing.assert_allclose(outputs[0], outputs[1], rtol=1e-3, atol=1e-3 * np.abs(outputs[1]).max())
    assert (outputs[0].argmax(axis=1) == outputs[1].argmax(axis=1)).mean() > 0.999


@pytest.fixture(scope="module")
def answers(hard: Hard, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    folder = tmp_path_factory.mktemp("recover")
    # Nothing is confirmed, so that attempts share the error: each is judged at 1 - 0.05 / 6.
    alone = {"confirmation": {"share": 0}, "gates": {"min_speedup": 0.01, "max_drop": 0.01}}
    jobs = {"hard": hard.job(hard.model) | alone, "easy": hard.job(hard.easy)}
    # No quantized model comes so near to float.
    jobs["hopeless"] = hard.job(hard.model) | {
        "budgets": {"recovery": 1},
        "gates": {"min_speedup": None, "max_drop": 0.01, "min_sqnr_db": 200.0},
    }
    calls: list[dict[str, object]] = [
        {"name": name, "job": str(write_job(folder / f"{name}.yaml", job))} for name, job in jobs.items()
    ]
    return run_jobs(folder / "state", folder / "runs", calls, plain=True)


@pytest.mark.slow
def test_outlier_channels_break_int8_and_recovery_mends_it(answers: dict[str, Answer]) -> None:
    result = answers["hard"].result
    assert result is not None, answers["hard"].said
    candidates = {candidate["name"]: candidate for candidate in result["candidates"]}
    assert candidates[STATIC]["outcome"] == "failed"
    assert candidates[STATIC]["metric_drop"]["low"] > 0.01  # beyond the gate of 1 %, and not by chance
    rescued = candidates[result["chosen"]]
    assert re.fullmatch(r"int8-static-minmax-pc-[0-9]+db@ort-cpu", rescued["name"]) and rescued["outcome"] == "passed"
    assert rescued["metric_drop"]["high"] <= 0.01
    kept = {what.removeprefix("kept in float: ") for what in rescued["changes"] if what.startswith("kept in float")}
    assert kept == {"first", "second"}
    # The others, 128 x 512 and 512 x 4, are still in integers: 73 % of the arithmetic.
    assert rescued["coverage_macs"] == pytest.approx(
        (128 * 512 + 512 * 4) / (64 * 128 + 128 * 128 + 128 * 512 + 512 * 4)
    )
    assert rescued["speedup_p50"]["value"] > 0  # the speed that is left, whatever this machine makes of it
    assert f"{rescued['speedup_p50']['value']:.2f}x" in answers["hard"].said


@pytest.mark.slow
def test_bounds_of_recovered_candidate_hold_as_often_as_stated(answers: dict[str, Answer]) -> None:
    """The evidence holds the times: from them and the stated confidence follow the bounds of every verdict."""
    result = answers["hard"].result
    assert result is not None, answers["hard"].said
    (rescued,) = (candidate for candidate in result["candidates"] if candidate["name"] == result["chosen"])
    stated = {verdict["gate"]: verdict["confidence"] for verdict in rescued["verdicts"] if verdict["confidence"]}
    assert stated["speedup"] == stated["drop"] == pytest.approx(1 - 0.05 / 6)
    report = Path(result["report"])
    (bundle,) = report.parents[2].rglob(f"{report.parent.name}/artifacts/evidence/evidence.zip")
    assert is_sound(verify(bundle)), verify(bundle)


@pytest.mark.slow
def test_what_loses_most_is_told_with_what_keeping_it_costs(answers: dict[str, Answer]) -> None:
    result = answers["hard"].result
    assert result is not None, answers["hard"].said
    recovery = result["recovery"]
    assert (recovery["candidate"], recovery["recovered"]) == (STATIC, result["chosen"])
    assert recovery["attempts"] <= 3 and recovery["allowed"] == 6
    frontier = recovery["frontier"]
    tried = [point for point in frontier if point["candidate"]]
    assert len(tried) == recovery["attempts"] and tried[-1]["outcome"] == "passed"
    assert [point["cost"] for point in frontier] == sorted(point["cost"] for point in frontier)
    assert recovery["cost_unit"] == "µs"
    parts = recovery["parts"]
    assert [part["noise"] for part in parts] == sorted((part["noise"] for part in parts), reverse=True)
    assert {part["name"] for part in parts[:2]} == {"first", "second"} == {p["name"] for p in parts if p["kept"]}
    ratios = {part["name"]: (part["weight_outlier_ratio"], part["activation_outlier_ratio"]) for part in parts}
    # 128 channels, of which three are made 300 to 800 times as large by the first layer's weight.
    assert 500 < ratios["first"][0] < 1200 and 500 < ratios["second"][1] < 1200
    assert max(ratios["second"][0], ratios["third"][0], ratios["first"][1], ratios["third"][1]) < 5
    assert all(isfinite(part["cost_us"]) for part in parts) and [part["form"] for part in parts[:3]] == [
        "float",
        "float",
        "",
    ]
    page = Path(result["report"]).read_text(encoding="utf-8")
    assert "Forms of the parts" in page


@pytest.mark.slow
def test_hopeless_job_ends_within_its_attempts_with_the_table(answers: dict[str, Answer]) -> None:
    result = answers["hopeless"].result
    assert result is not None, answers["hopeless"].said
    assert (result["outcome"], result["chosen"]) == ("no_variant", None)
    recovery = result["recovery"]
    assert recovery["attempts"] == recovery["allowed"] == 1 and recovery["recovered"] is None
    made = [candidate["name"] for candidate in result["candidates"]]
    assert made[0] == STATIC and len(made) == 2 and made[1].endswith("db@ort-cpu")
    assert {part["name"] for part in recovery["parts"][:2]} == {"first", "second"}
    assert not any(part["kept"] or part["form"] for part in recovery["parts"])
    assert f"recovery of {STATIC} did not pass within 1 of at most 1 attempts" in result["reason"]
    assert "Forms of the parts" in Path(result["report"]).read_text(encoding="utf-8")


@pytest.mark.slow
def test_where_int8_passes_nothing_is_recovered(answers: dict[str, Answer]) -> None:
    result = answers["easy"].result
    assert result is not None, answers["easy"].said
    assert [candidate["name"] for candidate in result["candidates"]] == [STATIC]
    assert result["candidates"][0]["outcome"] == "passed"
    recovery = result["recovery"]
    assert recovery["passes"] and not recovery["attempts"] and not recovery["frontier"]
    told = f"{STATIC} passes. Its parts have no cheaper forms, and no candidate that fails on accuracy alone is better"
    assert told in Path(result["report"]).read_text(encoding="utf-8")


SESSIONS = {
    "candidate": session_settings(decode(STATIC), 1),
    "sensitivity": SessionSettings.reference(1),
    "bias correction": WATCHING,
    "FP8": session_settings(decode("fp8-amax-pc@ort-cpu"), 1),
}


@pytest.mark.parametrize("settings", SESSIONS.values(), ids=SESSIONS)
def test_a_part_in_float_between_integers_is_computed_in_float(tmp_path: Path, settings: SessionSettings) -> None:
    """Its weights of a channel of zeros are 1,000 times as large: one scale, as the runtime would give it, loses the others."""
    rng = np.random.default_rng(0)
    kernels = {f"w{index}": rng.normal(size=(8, 8, 1, 1)).astype(np.float32) for index in range(3)}
    kernels["w0"][0], kernels["w1"][:, 0] = 0, 1000
    nodes = [
        onnx.helper.make_node("Conv", [before, kernel], [after], name=kernel)
        for before, kernel, after in (("x", "w0", "a"), ("a", "w1", "b"), ("b", "w2", "y"))
    ]
    shapes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 8, 4, 4]) for name in "xy"]
    weights = [onnx.numpy_helper.from_array(value, name) for name, value in kernels.items()]
    graph = onnx.helper.make_graph(nodes, "three", shapes[:1], shapes[1:], weights)
    model = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), model)
    x = rng.normal(size=(4, 8, 4, 4)).astype(np.float32)
    ranges = {"x": (-4.0, 4.0), "a": (-12.0, 12.0), "b": (-40.0, 40.0), "y": (-120.0, 120.0)}
    path = tmp_path / "variant.onnx"
    quantize_qdq(
        model,
        path,
        ranges,
        rules=PAIRS,
        every_operator=False,
        activation="uint8",
        weights=Int8Weights(),
        keep_float={"w1"},
    )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    as_written = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    with open_session(path, settings) as session:
        found = run_batches(session, [{"x": x}], "y")
    np.testing.assert_allclose(found, as_written, atol=0.02 * np.abs(as_written).max())
