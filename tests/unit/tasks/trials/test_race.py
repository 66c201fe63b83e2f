"""The race: which candidates are measured in full, and why the others are stopped. Measurements are planted, verdicts real."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from report_data import INVENTORY
from test_judge import BASELINE_BYTES, Bench, N, latency, make_job

from tasks.run.step import step
from tasks.trials import race as races
from tasks.trials.judge_on_samples import JudgedData
from tasks.trials.race import Raced, race, resume
from validators.errors import CandidateRefused
from validators.records.measurements import Coverage, Estimate
from validators.records.run import Refusal, SessionSettings, Trial, Variant

FAST, NEAR, MIDDLE, SLOW, SLOWEST = (
    "int8-dynamic-pc@ort-cpu",
    "int8-static-mse-pc@ort-cpu",
    "int8-dynamic-pt@ort-cpu",
    "int4-g32-rtn@ort-cpu",
    "fp32-fused@ort-cpu",
)
# They run the same kernels as NEAR, and as SLOW.
TWIN, SLOW_TWIN = "int8-static-minmax-pc@ort-cpu", "int4-g32-gptq@ort-cpu"
SPEED = {FAST: 3.0, NEAR: 2.95, MIDDLE: 2.0, SLOW: 1.5, SLOWEST: 1.05, TWIN: 2.95, SLOW_TWIN: 1.5}
FIVE = (FAST, NEAR, MIDDLE, SLOW, SLOWEST)
GOOD = np.ones(N)
BAD = (np.arange(N) < 800).astype(float)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


COVERED = Coverage({"QGemm": 90, "Gemm": 10}, ("QGemm",), ("head",), ("CPUExecutionProvider",))


def variant_of(name: str) -> Variant:
    return Variant(name, Path("model.onnx"), name, 260, SessionSettings("CPUExecutionProvider", 2))


class Rehearsal:
    """A run whose candidates have planted speedups and scores.

    `asked` lists the measurements in their order, but for short ones, which `probed` lists; `made` those that were made.
    """

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, scores: dict[str, Any], **changes: Any) -> None:
        self.asked: list[str] = []
        self.made: list[str] = []
        self.probed: list[tuple[str, int]] = []
        self.changes: dict[str, Any] = {}
        # How far the two short launches differ, and the speeds that direct comparisons find: by default the planted ones.
        self.noise = 0.01
        self.direct: dict[str, float | None] = dict(SPEED)
        self.bench, self.scores, self.refused = bench, scores, ""
        self.hopeless: tuple[str, ...] = ()
        self.run: Any = SimpleNamespace(job=make_job(**changes), inventory=INVENTORY)
        nobody = np.zeros(N, bool)
        judged_data = JudgedData(self.run.job, bench.accuracy(GOOD), BASELINE_BYTES, nobody, {})
        monkeypatch.setattr(races, "judged_data_of", lambda *_: judged_data)
        self.convolutions = 0.4
        monkeypatch.setattr(races, "share_in_convolutions", lambda _: self.convolutions)
        monkeypatch.setattr(races, "make_candidates", self.make)
        monkeypatch.setattr(races, "probe_latency", step("probe")(self.probe))
        monkeypatch.setattr(races, "measure_in_turn", step("compare")(self.compare))
        monkeypatch.setattr(races, "measure_latency", self.step("time", self.timed))
        monkeypatch.setattr(races, "evaluate_candidate", self.step("evaluate", self.evaluated))

    def step(self, word: str, done: Any) -> Any:
        """A step that notes who it is called for."""

        @step(word)
        def call(*given: Any, alone: bool = False) -> Any:
            (trial,) = (one for one in given if isinstance(one, Trial))
            if word == "evaluate" and given[-1] is not None and trial.candidate in self.hopeless:
                self.asked.append(f"look at {trial.candidate}")
                return replace(trial, outcome="refused", refusal=Refusal("stopped", "worse by at least 0.1"))
            self.asked.append(f"{word} {trial.candidate}")
            return done(trial)

        return call

    def make(self, *given: Any, evaluates: bool) -> tuple[Trial, ...]:
        assert not evaluates
        self.made.extend(given[-1])
        trials = [Trial(name, variant=variant_of(name), coverage=COVERED) for name in given[-1]]
        return tuple(replace(trial, **self.changes.get(trial.candidate, {})) for trial in trials)

    def probe(self, *given: Any) -> Any:
        trial, launch = given[-2:]
        self.probed.append((trial.candidate, launch))
        speed = SPEED[trial.candidate] * (1 - self.noise, 1 + self.noise)[launch]
        found = replace(latency(Estimate(speed, speed, speed)), launches=1)
        refused = Refusal("invalid", "does not load")
        return refused if trial.candidate == self.refused else found

    def compare(self, *given: Any) -> Any:
        leader, trial = (one.candidate for one in given[-2:])
        self.asked.append(f"compare {trial} with {leader}")
        slow, fast = self.direct[leader], self.direct[trial]
        return None if slow is None or fast is None else fast / slow

    def timed(self, trial: Trial) -> Trial:
        return replace(trial, latencies=(self.measured(trial.candidate),))

    def evaluated(self, trial: Trial) -> Trial:
        return replace(trial, accuracy=self.bench.accuracy(self.scores.get(trial.candidate, GOOD)))

    @staticmethod
    def measured(name: str) -> Any:
        """Its bounds are those of launches that differ by 1 %."""
        value = SPEED[name]
        return replace(latency(Estimate(value, value * 0.99, value * 1.01)), launches=6)

    def race(self, names: tuple[str, ...] = FIVE, **changes: Any) -> Raced:
        """Run the race over candidates; `changes` changes a candidate's trial after it was made, by its name."""
        self.changes = changes
        self.run.job = self.run.job.model_copy(update={"candidates": names})
        nothing: Any = None
        return race(self.run, nothing)


def outcomes(raced: Raced) -> dict[str, str]:
    return {trial.candidate: "stopped" if trial.is_stopped else str(trial.outcome) for trial in raced.trials}


def test_only_those_that_can_win_are_measured_in_full(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    raced = rehearsal.race((SLOWEST, SLOW, MIDDLE, FAST))
    assert outcomes(raced) == {SLOWEST: "stopped", SLOW: "stopped", MIDDLE: "stopped", FAST: "passed"}
    assert rehearsal.asked == [f"evaluate {FAST}", f"time {FAST}"]
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


def test_hopeless_drop_is_measured_fully_if_recovery_may_take_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {FAST: BAD, NEAR: BAD, SLOW: BAD}
    rehearsal = Rehearsal(bench, monkeypatch, scores, gates={"max_drop": 0.02, "min_speedup": 1.2})
    rehearsal.hopeless = (FAST, NEAR)
    raced = rehearsal.race((FAST, NEAR, MIDDLE, SLOW))
    assert outcomes(raced) == {FAST: "failed", NEAR: "stopped", MIDDLE: "passed", SLOW: "stopped"}
    looked = [f"look at {FAST}", f"look at {NEAR}"]
    assert rehearsal.asked == [
        *looked,
        *(f"{word} {MIDDLE}" for word in ("evaluate", "time")),
        *(f"{word} {FAST}" for word in ("evaluate", "time")),
    ]


def test_nothing_is_recovered_because_of_a_faster_machine_before(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The winner's full timing is slow; in the short timings both were nearly equal."""
    rehearsal = Rehearsal(bench, monkeypatch, {NEAR: BAD}, gates={"max_drop": 0.02, "min_speedup": 1.2})
    monkeypatch.setattr(rehearsal, "timed", lambda trial: replace(trial, latencies=(rehearsal.measured(SLOW),)))
    monkeypatch.setattr(races, "measure_latency", rehearsal.step("time", lambda trial: rehearsal.timed(trial)))
    # Their comparison in turn is disturbed, so that the other's accuracy is measured.
    rehearsal.direct[FAST] = None
    assert outcomes(rehearsal.race((FAST, NEAR))) == {FAST: "passed", NEAR: "failed"}
    assert f"time {NEAR}" not in rehearsal.asked


def test_smaller_loss_is_recovered_rather_than_a_hopeless_drop(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {FAST: BAD, NEAR: BAD}, gates={"max_drop": 0.02, "min_speedup": 1.2})
    rehearsal.hopeless = (FAST,)
    assert outcomes(rehearsal.race((FAST, NEAR))) == {FAST: "stopped", NEAR: "failed"}
    assert rehearsal.asked[-1] == f"time {NEAR}" and f"evaluate {FAST}" not in rehearsal.asked


def test_hopeless_drop_stays_stopped_if_winner_is_nearly_as_fast(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert not [asked for asked in rehearsal.asked if FAST in asked] and (FAST, 0) not in rehearsal.probed


def test_a_simulation_is_stopped_unless_nothing_else_is_there(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fp8 = "fp8-amax-pc@ort-cpu"
    monkeypatch.setitem(SPEED, fp8, 1.0)
    made: dict[str, Any] = {fp8: {"variant": replace(variant_of(fp8), proof="simulated")}}
    beside = Rehearsal(bench, monkeypatch, {})
    assert outcomes(beside.race((fp8, FAST), **made)) == {fp8: "stopped", FAST: "passed"}
    assert beside.made == [FAST]
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
    made: dict[str, Any] = {
        name: {"variant": replace(variant_of(name), size_bytes=size)}
        for name, size in ((FAST, 300), (MIDDLE, 200), (SLOW, 100))
    }
    raced = rehearsal.race((FAST, MIDDLE, SLOW), **made)
    assert outcomes(raced) == {FAST: "stopped", MIDDLE: "stopped", SLOW: "passed"}
    assert rehearsal.asked == [f"evaluate {SLOW}", f"time {SLOW}"]


def test_those_behind_are_measured_when_the_leader_does_not_win(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    raced = rehearsal.race((FAST, MIDDLE, SLOW))
    lost = tuple(replace(trial, outcome="failed") if trial.candidate == FAST else trial for trial in raced.trials)
    nothing: Any = None
    rehearsal.asked.clear()
    again = resume(rehearsal.run, nothing, replace(raced, trials=lost))
    assert outcomes(again) == {FAST: "failed", MIDDLE: "passed", SLOW: "stopped"} and again.behind == (SLOW,)
    assert rehearsal.asked == [f"evaluate {MIDDLE}", f"time {MIDDLE}"]


def test_those_behind_race_among_themselves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    raced = rehearsal.race((FAST, MIDDLE, SLOW, SLOW_TWIN))
    lost = tuple(replace(trial, outcome="failed") if trial.candidate == FAST else trial for trial in raced.trials)
    nothing: Any = None
    again = resume(rehearsal.run, nothing, replace(raced, trials=lost))
    assert outcomes(again) == {FAST: "failed", MIDDLE: "passed", SLOW: "stopped", SLOW_TWIN: "stopped"}
    assert again.behind == (SLOW, SLOW_TWIN) and SLOW_TWIN not in rehearsal.made


def test_of_equal_kernels_one_is_made_and_timed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is made once it can win: it is stopped unmade if its kind is slow, or if the first passes."""
    rehearsal = Rehearsal(bench, monkeypatch, {})
    raced = rehearsal.race((SLOW, SLOW_TWIN, NEAR, TWIN))
    assert outcomes(raced) == {SLOW: "stopped", SLOW_TWIN: "stopped", NEAR: "passed", TWIN: "stopped"}
    reasons = {trial.candidate: trial.refusal.reason for trial in raced.trials if trial.refusal}
    assert reasons[TWIN] == f"the same kernels as {NEAR}, which passes"
    short = f"1.50x in a short measurement, by {SLOW}, which runs the same kernels"
    assert reasons[SLOW_TWIN] == f"{short}, {NEAR} has 2.95x: not 3% faster with 99% confidence"
    assert rehearsal.made == [SLOW, NEAR]
    assert set(raced.behind) == {SLOW, SLOW_TWIN, TWIN}


def test_of_equal_kernels_next_races_if_first_loses_too_much(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {NEAR: BAD})
    raced = rehearsal.race((NEAR, TWIN, MIDDLE))
    assert outcomes(raced) == {NEAR: "failed", TWIN: "passed", MIDDLE: "stopped"}
    assert rehearsal.made == [NEAR, MIDDLE, TWIN]
    assert rehearsal.asked == [f"evaluate {NEAR}", f"evaluate {TWIN}", f"time {TWIN}"]


def test_of_equal_kernels_the_next_replaces_a_refused_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    unable = {"variant": None, "outcome": "refused", "refusal": Refusal("unsupported", "no ranges")}
    raced = rehearsal.race((NEAR, TWIN, MIDDLE), **{NEAR: unable})
    assert outcomes(raced) == {NEAR: "refused", TWIN: "passed", MIDDLE: "stopped"}
    assert [name for name, _ in rehearsal.probed] == [TWIN, MIDDLE] * 2


def test_all_of_equal_kernels_fail_on_coverage_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})
    in_float = Coverage({"QGemm": 10, "Gemm": 90}, ("QGemm",), ("head",), ("CPUExecutionProvider",))
    raced = rehearsal.race((SLOW, SLOW_TWIN, FAST), **{SLOW: {"coverage": in_float}})
    assert outcomes(raced) == {SLOW: "failed", SLOW_TWIN: "stopped", FAST: "passed"}
    reason = next(trial.refusal for trial in raced.trials if trial.candidate == SLOW_TWIN)
    assert reason is not None and reason.reason == f"{SLOW}, which runs the same kernels, fails on coverage"
    assert SLOW_TWIN not in rehearsal.made and SLOW_TWIN not in raced.behind


@pytest.mark.parametrize(("convolutions", "least", "is_made"), [(0.5, 0.5, True), (0.51, 0.5, False), (1, None, True)])
def test_what_leaves_most_in_float_is_not_made(
    convolutions: float, least: float | None, is_made: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    dynamic, weights, static = "int8-dynamic-pc-smooth@ort-cpu", "int4-g32-rtn@openvino", "int8-static-mse-pc@ort-cpu"
    rehearsal = Rehearsal(bench, monkeypatch, {}, gates={"min_coverage": least})
    rehearsal.convolutions = convolutions
    monkeypatch.setitem(SPEED, dynamic, 1.5)
    monkeypatch.setitem(SPEED, weights, 1.4)
    raced = rehearsal.race((dynamic, weights, static))
    assert rehearsal.made == ([dynamic, weights, static] if is_made else [static])
    if not is_made:
        stopped = {trial.candidate: trial.refusal for trial in raced.trials if trial.is_stopped}
        assert stopped.keys() == {dynamic, weights} and not raced.behind
        assert (reason := stopped[weights]) is not None and reason.reason == (
            "51% of the multiply-accumulates are in convolutions, which int4-g32-rtn leaves in float; "
            "at least 50% are to be in low precision"
        )


def test_copy_of_an_already_judged_one_is_not_judged_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one is the copy, although the job names it first."""
    rehearsal = Rehearsal(bench, monkeypatch, {FAST: BAD, NEAR: BAD})
    # Made in the finals, as NEAR is of its kind; the same file as FAST.
    raced = rehearsal.race((NEAR, TWIN, FAST), **{TWIN: {"variant": variant_of(FAST)}})
    assert outcomes(raced) == {NEAR: "failed", TWIN: "refused", FAST: "failed"}
    assert f"evaluate {TWIN}" not in rehearsal.asked
    assert next(trial for trial in raced.trials if trial.candidate == FAST).copies == (TWIN,)


def test_finalists_that_may_be_equal_are_measured_in_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches differ so much that nothing else tells them apart; the slower one of two is not timed in full.

    Nor is another with its kernels, and neither accuracy is measured.
    """
    rehearsal = Rehearsal(bench, monkeypatch, {SLOWEST: BAD})
    monkeypatch.setitem(SPEED, SLOWEST, 3.1)
    rehearsal.noise, rehearsal.direct = 0.1, {FAST: 3.0, NEAR: 2.0}
    raced = rehearsal.race((SLOWEST, FAST, NEAR, TWIN))
    assert outcomes(raced) == {SLOWEST: "failed", FAST: "passed", NEAR: "stopped", TWIN: "stopped"}
    assert set(raced.behind) == {NEAR, TWIN}
    finals = [f"evaluate {SLOWEST}", f"evaluate {FAST}", f"time {FAST}", f"compare {NEAR} with {FAST}"]
    assert rehearsal.asked == finals
    reasons = {trial.candidate: trial.refusal.reason for trial in raced.trials if trial.refusal}
    assert reasons[NEAR] == f"0.67x as fast as {FAST} in turn with it: not 3% faster with 99% confidence"
    assert f"in turn with it, by {NEAR}, which runs the same kernels: not 3% faster" in reasons[TWIN]


def test_who_is_faster_in_turn_leads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever both have beside the baseline, which was measured at different times."""
    rehearsal = Rehearsal(bench, monkeypatch, {})
    rehearsal.noise, rehearsal.direct = 0.1, {FAST: 2.0, NEAR: 9.0}
    raced = rehearsal.race((FAST, NEAR))
    assert outcomes(raced) == {FAST: "stopped", NEAR: "passed"} and raced.behind == (FAST,)
    beside = [f"compare {NEAR} with {FAST}", f"evaluate {NEAR}", f"time {NEAR}"]
    assert rehearsal.asked == [f"evaluate {FAST}", f"time {FAST}", *beside]
    first = raced.trials[0]
    assert first.latency is not None and first.refusal is not None, "what was measured stays"
    assert first.refusal.reason == f"{NEAR} is 4.50x as fast in turn with it, with 99% confidence"


def test_who_is_faster_in_turn_but_does_not_pass_does_not_lead(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {}, gates={"max_drop": 0.02, "min_speedup": 2.96})
    rehearsal.noise, rehearsal.direct = 0.1, {FAST: 2.0, NEAR: 9.0}
    raced = rehearsal.race((FAST, NEAR))
    assert outcomes(raced) == {FAST: "passed", NEAR: "inconclusive"} and raced.behind == ()


@pytest.mark.parametrize("direct", [{FAST: None, NEAR: 9.0}, {FAST: 3.0, NEAR: 3.1}, {FAST: 3.0, NEAR: 3.0}])
def test_undecided_comparison_is_left_to_full_measurements(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, direct: dict[str, float | None]
) -> None:
    """Disturbed, or closer than launches differ."""
    rehearsal = Rehearsal(bench, monkeypatch, {})
    rehearsal.noise, rehearsal.direct = 0.1, direct
    assert outcomes(rehearsal.race((FAST, NEAR))) == {FAST: "passed", NEAR: "passed"}
    assert rehearsal.asked[-1] == f"time {NEAR}"


def test_short_measurements_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch of each, then another of each: what slows the machine for seconds meets one launch of a candidate."""
    rehearsal = Rehearsal(bench, monkeypatch, {})
    rehearsal.race((FAST, MIDDLE, SLOW))
    assert rehearsal.probed == [(name, launch) for launch in (0, 1) for name in (FAST, MIDDLE, SLOW)]


def test_an_error_of_a_step_is_the_candidates_refusal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {})

    def fail(trial: Trial) -> Any:
        if trial.candidate == FAST:
            raise CandidateRefused(kind="invalid", found="no", expected="yes", fix="none")
        return rehearsal.evaluated(trial)

    monkeypatch.setattr(races, "evaluate_candidate", rehearsal.step("evaluate", fail))
    raced = rehearsal.race((FAST, MIDDLE))
    assert outcomes(raced) == {FAST: "refused", MIDDLE: "passed"}
