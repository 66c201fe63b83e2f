"""The race: which candidates are measured in full, and why the others are stopped. Measurements are planted, verdicts real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_judge import BASELINE_BYTES, Bench, N, good_trial, latency, make_job

from tasks.trials import race as races
from tasks.trials.judge_on_samples import JudgedData
from tasks.trials.race import Raced, race, resume
from validators.errors import CandidateRefused
from validators.records.measurements import Coverage, Estimate
from validators.records.run import Refusal, Trial

FAST, NEAR, MIDDLE, SLOW, SLOWEST = (
    "int8-dynamic-pc@ort-cpu",
    "int8-static-mse-pc@ort-cpu",
    "int8-static-minmax-pc@ort-cpu",
    "int4-g32-rtn@ort-cpu",
    "fp32-fused@ort-cpu",
)
SPEED = {FAST: 3.0, NEAR: 2.95, MIDDLE: 2.0, SLOW: 1.5, SLOWEST: 1.05}
GOOD = np.ones(N)
BAD = (np.arange(N) < 800).astype(float)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class Rehearsal:
    """A run whose candidates have planted speedups and scores; `asked` lists the measurements in their order."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, scores: dict[str, Any], **changes: Any) -> None:
        self.asked: list[str] = []
        self.bench, self.scores, self.refused = bench, scores, ""
        self.hopeless: tuple[str, ...] = ()
        self.run: Any = SimpleNamespace(job=make_job(**changes))
        nobody = np.zeros(N, bool)
        judged_data = JudgedData(self.run.job, bench.accuracy(GOOD), BASELINE_BYTES, nobody, {})
        monkeypatch.setattr(races, "judged_data_of", lambda *_: judged_data)
        monkeypatch.setattr(races, "probe_latency", self.step("probe", self.probed))
        monkeypatch.setattr(races, "measure_latency", self.step("time", self.timed))
        monkeypatch.setattr(races, "evaluate_candidate", self.step("evaluate", self.evaluated))

    def step(self, word: str, done: Any) -> Any:
        """A task with `submit`, that notes who it is called for."""

        def call(*given: Any, return_state: bool = True) -> Any:
            (trial,) = (one for one in given if isinstance(one, Trial))
            if word == "evaluate" and given[-1] is not None and trial.candidate in self.hopeless:
                self.asked.append(f"look at {trial.candidate}")
                stopped = replace(trial, outcome="refused", refusal=Refusal("stopped", "worse by at least 0.1"))
                return SimpleNamespace(result=lambda raise_on_failure: stopped)
            self.asked.append(f"{word} {trial.candidate}")
            return SimpleNamespace(result=lambda raise_on_failure: done(trial))

        call.submit = call  # type: ignore[attr-defined]  # as Prefect's tasks have
        return call

    def probed(self, trial: Trial) -> Any:
        if trial.candidate == self.refused:
            return Refusal("invalid", "does not load")
        return self.measured(trial.candidate, 2)

    def timed(self, trial: Trial) -> Trial:
        return replace(trial, latencies=(self.measured(trial.candidate, 6),))

    def evaluated(self, trial: Trial) -> Trial:
        return replace(trial, accuracy=self.bench.accuracy(self.scores.get(trial.candidate, GOOD)))

    @staticmethod
    def measured(name: str, launches: int) -> Any:
        """Its bounds are those of launches that differ by 1 %."""
        value = SPEED[name]
        return replace(latency(Estimate(value, value * 0.99, value * 1.01)), launches=launches)

    def race(self, names: tuple[str, ...] = tuple(SPEED), **made: Any) -> Raced:
        """Run the race over candidates that were made; `made` changes a candidate's trial, by its name."""
        nothing: Any = None
        trials = [replace(good_trial(nothing, name), latencies=()) for name in names]
        trials = [replace(trial, **made.get(trial.candidate, {})) for trial in trials]
        return race(self.run, nothing, nothing, nothing, tuple(trials))


def outcomes(raced: Raced) -> dict[str, str]:
    return {trial.candidate: "stopped" if trial.is_stopped else str(trial.outcome) for trial in raced.trials}


def test_only_those_that_can_win_are_measured_in_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    raced = rehearsal.race((SLOWEST, SLOW, MIDDLE, FAST))
    assert outcomes(raced) == {SLOWEST: "stopped", SLOW: "stopped", MIDDLE: "stopped", FAST: "passed"}
    measured = [asked for asked in rehearsal.asked if not asked.startswith("probe")]
    assert measured == [f"evaluate {FAST}", f"evaluate {MIDDLE}", f"time {FAST}"]
    reasons = {trial.candidate: trial.refusal.reason for trial in raced.trials if trial.refusal}
    assert reasons[SLOWEST] == "1.05x in a short measurement, below 1.20x with 99% confidence"
    assert reasons[SLOW] == f"1.50x in a short measurement, {FAST} has 3.00x: not 3% faster with 99% confidence"
    assert raced.behind == (MIDDLE, SLOW)


def test_those_that_fail_in_accuracy_leave_the_lead_to_the_next(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {FAST: BAD, NEAR: BAD}, gates={"max_drop": 0.02, "min_speedup": 1.2})
    raced = rehearsal.race((FAST, NEAR, MIDDLE, SLOW))
    assert outcomes(raced) == {FAST: "failed", NEAR: "failed", MIDDLE: "passed", SLOW: "stopped"}
    # One of them may be recovered, which needs to know how fast it is.
    assert rehearsal.asked[-1] == f"time {FAST}" and f"time {NEAR}" not in rehearsal.asked
    assert next(trial for trial in raced.trials if trial.candidate == FAST).latency is not None


def test_a_hopeless_drop_is_measured_to_its_end_if_recovery_may_choose_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {FAST: BAD, NEAR: BAD, SLOW: BAD}
    rehearsal = Rehearsal(bench, monkeypatch, scores, gates={"max_drop": 0.02, "min_speedup": 1.2})
    rehearsal.hopeless = (FAST, NEAR)
    raced = rehearsal.race((FAST, NEAR, MIDDLE, SLOW))
    assert outcomes(raced) == {FAST: "failed", NEAR: "stopped", MIDDLE: "passed", SLOW: "failed"}
    looked = [f"look at {FAST}", f"look at {NEAR}"]
    assert [asked for asked in rehearsal.asked if not asked.startswith("probe")] == [
        *looked,
        *(f"{word} {name}" for word, name in (("evaluate", MIDDLE), ("evaluate", SLOW), ("time", MIDDLE))),
        *(f"{word} {FAST}" for word in ("evaluate", "time")),
    ]


def test_what_loses_less_is_recovered_rather_than_a_hopeless_drop(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {FAST: BAD, NEAR: BAD}, gates={"max_drop": 0.02, "min_speedup": 1.2})
    rehearsal.hopeless = (FAST,)
    assert outcomes(rehearsal.race((FAST, NEAR))) == {FAST: "stopped", NEAR: "failed"}
    assert rehearsal.asked[-1] == f"time {NEAR}" and f"evaluate {FAST}" not in rehearsal.asked


def test_a_hopeless_drop_stays_stopped_if_the_winner_is_nearly_as_fast(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {FAST: BAD})
    rehearsal.hopeless = (FAST,)
    raced = rehearsal.race((FAST, NEAR))
    assert outcomes(raced) == {FAST: "stopped", NEAR: "passed"}
    assert f"evaluate {FAST}" not in rehearsal.asked


def test_kernels_in_float_fail_before_anything_is_timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    in_float = Coverage({"QGemm": 10, "Gemm": 90}, ("QGemm",), ("head",), ("CPUExecutionProvider",))
    raced = rehearsal.race((FAST, MIDDLE), **{FAST: {"coverage": in_float}})
    assert outcomes(raced) == {FAST: "failed", MIDDLE: "passed"}
    assert [verdict.gate for verdict in raced.trials[0].verdicts if verdict.outcome == "fail"] == ["coverage"]
    assert not [asked for asked in rehearsal.asked if FAST in asked]


def test_a_simulation_is_stopped_unless_nothing_else_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fp8 = "fp8-amax-pc@ort-cpu"
    monkeypatch.setitem(SPEED, fp8, 1.0)
    variant = good_trial(bench.accuracy(GOOD), fp8).variant
    assert variant is not None
    made: dict[str, Any] = {fp8: {"variant": replace(variant, proof="simulated")}}
    assert outcomes(Rehearsal(bench, monkeypatch, {}).race((fp8, FAST), **made)) == {fp8: "stopped", FAST: "passed"}
    alone = Rehearsal(bench, monkeypatch, {})
    alone.race((fp8,), **made)
    assert alone.asked == [f"evaluate {fp8}"]


def test_a_candidate_that_is_refused_when_it_is_timed_is_out(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    rehearsal.refused = FAST
    raced = rehearsal.race((FAST, MIDDLE))
    assert outcomes(raced) == {FAST: "refused", MIDDLE: "passed"} and raced.behind == ()


def test_by_size_the_smallest_that_passes_ends_the_race(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {}, objective="size")
    variant = good_trial(bench.accuracy(GOOD)).variant
    assert variant is not None
    made: dict[str, Any] = {
        name: {"variant": replace(variant, candidate=name, size_bytes=size)}
        for name, size in ((FAST, 300), (MIDDLE, 200), (SLOW, 100))
    }
    raced = rehearsal.race((FAST, MIDDLE, SLOW), **made)
    assert outcomes(raced) == {FAST: "stopped", MIDDLE: "stopped", SLOW: "passed"}
    assert rehearsal.asked == [f"evaluate {SLOW}", f"evaluate {MIDDLE}", f"time {SLOW}"]


def test_those_behind_are_measured_when_the_leader_does_not_win(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {SLOW: BAD})
    raced = rehearsal.race((FAST, MIDDLE, SLOW))
    lost = tuple(replace(trial, outcome="failed") if trial.candidate == FAST else trial for trial in raced.trials)
    nothing: Any = None
    rehearsal.asked.clear()
    trials = resume(rehearsal.run, nothing, nothing, nothing, replace(raced, trials=lost))
    assert outcomes(Raced(trials)) == {FAST: "failed", MIDDLE: "passed", SLOW: "failed"}
    assert rehearsal.asked == [f"evaluate {SLOW}", f"time {MIDDLE}", f"time {SLOW}"], "the accuracy of one was known"


def test_an_error_of_a_step_is_the_candidates_refusal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})

    def fail(trial: Trial) -> Any:
        return (
            CandidateRefused(kind="invalid", found="no", expected="yes", fix="none")
            if trial.candidate == FAST
            else (rehearsal.evaluated(trial))
        )

    monkeypatch.setattr(races, "evaluate_candidate", rehearsal.step("evaluate", fail))
    raced = rehearsal.race((FAST, MIDDLE))
    assert outcomes(raced) == {FAST: "refused", MIDDLE: "passed"}
