"""The confirmation: what was chosen on some samples is judged on others, best first, and only then approved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs import run_in
from test_judge import Bench, N, good_trial, latency, make_job, right

from tasks.run.context import Run
from tasks.trials import confirm
from tasks.trials.confirm import ConfirmedTrials, confirm_winner
from validators.errors import CandidateRefused
from validators.gates.approval import Approval, NotApproved
from validators.gates.verdict_rules import confidence_of_each
from validators.records.measurements import Accuracy, Agreement, Estimate
from validators.records.run import Trial, Variant
from validators.records.verdicts import SignOff, Verdict

FAST, SLOWER, SLOWEST = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu", "int4-g32-rtn@ort-cpu"
SPEED = {FAST: 3.0, SLOWER: 2.0, SLOWEST: 1.5}
KEPT = np.arange(N) >= N // 2


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def good_until(count: int) -> Any:
    """Scores like the baseline's in the half that chooses, and `count` right ones fewer in the half that confirms."""
    scores = np.ones(N)
    scores[N - count :] = 0
    return scores


class Rehearsal:
    """A run whose latencies are planted: what is measured anew has a speedup of its own, by candidate."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, anew: dict[str, Any], **changes: Any) -> None:
        self.baseline = bench.accuracy(np.ones(N))
        self.bench, self.asked = bench, []
        job = make_job(**changes)
        self.run: Any = run_in(bench.folder, job)

        def measured(run: Run, trial: Trial, confidence: float, beside: Variant | None = None) -> Any:
            self.asked.append((trial.candidate, confidence))
            speedup = anew.get(trial.candidate, SPEED[trial.candidate])
            if beside is not None:
                speedup = anew["beside fp16"]
            if isinstance(speedup, Exception):
                raise speedup
            return latency(Estimate(speedup, speedup * 0.98, speedup * 1.02))

        def judged_data(run: Run, baseline: Accuracy) -> Any:
            kept = KEPT if job.confirmation.share else np.zeros(N, bool)
            return confirm.JudgedData(job, baseline, 1000, kept, {})

        monkeypatch.setattr(confirm, "_measure_again", measured)
        monkeypatch.setattr(confirm, "judged_data_of", judged_data)

    def confirm(self, scores: dict[str, Any], **changes: Any) -> ConfirmedTrials:
        """What comes of candidates that passed with these scores."""
        trials = tuple(
            good_trial(
                self.bench.accuracy(given),
                name,
                latencies=(latency(Estimate(SPEED[name], SPEED[name], SPEED[name])),),
                outcome="passed",
                verdicts=(Verdict("drop", "pass", 0.0, 0.02, "at_most"),),
                **changes,
            )
            for name, given in scores.items()
        )
        return confirm_winner.fn(self.run, self.baseline, trials)


def test_the_first_that_passes_again_wins(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest was lucky in the half that chose it; the next is confirmed, and the last is not asked any more."""
    rehearsal = Rehearsal(bench, monkeypatch, {})
    done = rehearsal.confirm({FAST: good_until(100), SLOWER: good_until(0), SLOWEST: good_until(0)})
    each = confidence_of_each(0.95, 3)
    assert rehearsal.asked == [(SLOWER, each)] and each == pytest.approx(1 - 0.05 / 3)
    assert done.winner is not None and done.winner.candidate == SLOWER
    fast, slower, slowest = done.trials
    assert (fast.outcome, slower.outcome, slowest.outcome) == ("failed", "passed", "passed")
    against = [verdict.gate for verdict in fast.verdicts if verdict.outcome != "pass"]
    assert against == ["confirmed_drop"] and fast.confirmed is not None and slowest.confirmed is None
    assert (fast.confirmed.n, fast.confirmed.value, fast.confirmed.baseline_value) == (N // 2, 0.8, 1.0)
    assert fast.confirmed.latency is None, "its speed does not matter any more"
    assert fast.confirmed.drop.value == pytest.approx(0.2)
    assert {"confirmed_drop", "confirmed_finite", "confirmed_speedup"} <= {v.gate for v in slower.verdicts}


def test_the_speed_is_confirmed_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest by a lucky measurement is below the bound when it is measured again."""
    done = Rehearsal(bench, monkeypatch, {FAST: 1.1}).confirm({FAST: good_until(0), SLOWER: good_until(0)})
    assert done.winner is not None and done.winner.candidate == SLOWER
    assert [verdict.gate for verdict in done.trials[0].verdicts if verdict.outcome == "fail"] == ["confirmed_speedup"]
    assert done.winner.confirmed is not None and done.winner.confirmed.latency is not None
    assert done.winner.confirmed.latency.speedup.value == SPEED[SLOWER]


@pytest.mark.parametrize(("anew", "outcome"), [(1.3, "pass"), (1.0, "fail")])
def test_the_speed_beside_fp16_is_confirmed_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, anew: float, outcome: str
) -> None:
    """A lucky measurement beside float16 is measured again, at the confidence of the confirmation."""
    rehearsal = Rehearsal(
        bench, monkeypatch, {"beside fp16": anew}, gates={"min_speedup": None, "min_speedup_fp16": 1.1}
    )
    fp16 = good_trial(bench.accuracy(good_until(0)), "fp16@ort-cuda")
    assert fp16.variant is not None
    monkeypatch.setattr(confirm, "halves_of", lambda trials: {"ort-cpu": fp16.variant})
    done = rehearsal.confirm({FAST: good_until(0)}, beside_fp16=latency(Estimate(1.4, 1.35, 1.45)))
    found = {verdict.gate: verdict.outcome for verdict in done.trials[0].verdicts}
    assert found["confirmed_speedup_fp16"] == outcome and (done.winner is not None) == (outcome == "pass")


def test_the_agreement_is_confirmed_on_kept_prompts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that answered the prompts that chose it as the baseline does, and not those kept; it is not timed again."""
    answers = {FAST: Agreement(64, (0.5,) * 30 + (1.0,) * 70), SLOWER: Agreement(64, (1.0,) * 100)}
    asked = []

    def answered(run: Any, variant: Variant, *, confirmation: bool) -> Any:
        asked.append((variant.candidate, confirmation))
        return answers[variant.candidate], False

    monkeypatch.setattr(confirm, "agreement_with_baseline", answered)
    rehearsal = Rehearsal(bench, monkeypatch, {}, gates={"min_agreement": 0.9, "min_speedup": None})
    done = rehearsal.confirm({FAST: good_until(0), SLOWER: good_until(0)})
    assert done.winner is not None and done.winner.candidate == SLOWER
    assert asked == [(FAST, True), (SLOWER, True)] and [name for name, _ in rehearsal.asked] == [SLOWER]
    fast, slower = done.trials
    against = [verdict for verdict in fast.verdicts if verdict.outcome != "pass"]
    assert [verdict.gate for verdict in against] == ["confirmed_agreement"]
    assert against[0].confidence == pytest.approx(1 - 0.05 / 3)
    assert slower.confirmed is not None and slower.confirmed.agreement == answers[SLOWER]


def test_no_more_candidates_are_tried_than_the_job_allows(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {}, confirmation={"candidates": 1})
    done = rehearsal.confirm({FAST: good_until(100), SLOWER: good_until(0)})
    assert done.winner is None and done.trials[1].confirmed is None
    assert done.trials[0].confirmed is not None and done.trials[0].confirmed.confidence == 0.95


def test_a_candidate_that_does_not_run_any_more_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = CandidateRefused(kind="invalid", found="a dead file", expected="a live one", fix="look")
    done = Rehearsal(bench, monkeypatch, {FAST: gone}).confirm({FAST: good_until(0), SLOWER: good_until(0)})
    assert done.trials[0].outcome == "refused" and done.winner is not None and done.winner.candidate == SLOWER


def test_without_samples_for_it_the_best_is_the_winner(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    rehearsal = Rehearsal(bench, monkeypatch, {}, confirmation={"share": 0})
    done = rehearsal.confirm({SLOWER: good_until(0), FAST: good_until(100)})
    assert done.winner is not None and done.winner.candidate == FAST and rehearsal.asked == []
    assert done.winner.confirmed is None


# The approval


REQUIRED = frozenset({"drop", "finite", "speedup", "confirmed_drop"})


def passed_trial(bench: Bench, **changes: Any) -> Trial:
    verdicts = tuple(Verdict(gate, "pass", 0.0, 1.0, "at_most") for gate in sorted(REQUIRED))
    trial = good_trial(bench.accuracy(right(770)), outcome="passed", verdicts=verdicts)
    return replace(trial, **changes)


def test_an_approval_holds_what_passed(bench: Bench) -> None:
    trial = passed_trial(bench)
    approval = Approval(trial, "a device", REQUIRED)
    assert approval.variant is trial.variant and approval.verdicts == trial.verdicts


@pytest.mark.parametrize("gate", sorted(REQUIRED))
def test_no_approval_without_a_verdict_that_must_be_there(bench: Bench, gate: str) -> None:
    trial = passed_trial(bench)
    fewer = replace(trial, verdicts=tuple(verdict for verdict in trial.verdicts if verdict.gate != gate))
    with pytest.raises(NotApproved, match=gate):
        Approval(fewer, "a device", REQUIRED)


@pytest.mark.parametrize("outcome", ["fail", "inconclusive"])
def test_no_approval_against_a_verdict(bench: Bench, outcome: Any) -> None:
    """Even where the trial says that it passed."""
    trial = passed_trial(bench)
    against = replace(trial, verdicts=(*trial.verdicts, Verdict("beats_champion", outcome, 1.0, 1.0, "at_least")))
    with pytest.raises(NotApproved, match="beats_champion"):
        Approval(against, "a device", REQUIRED)


def test_no_approval_of_what_is_not_there_or_did_not_pass(bench: Bench) -> None:
    for changes in ({"variant": None}, {"outcome": "inconclusive"}, {"verdicts": ()}):
        with pytest.raises(NotApproved):
            Approval(passed_trial(bench, **changes), "a device", REQUIRED)


@pytest.mark.parametrize("change", [{"decision": "rejected"}, {"identity": "of another variant"}, {"identity": ""}])
def test_no_approval_against_what_a_person_said(bench: Bench, change: dict[str, Any]) -> None:
    """An answer holds for the variant that it was given on; the digest of its file does not do."""
    trial = passed_trial(bench)
    assert trial.variant is not None
    variant = trial.variant
    said = SignOff("approved", "Ada", "as agreed", "2026-11-22T10:00:00Z", variant.digest, None, variant.identity)
    assert Approval(trial, "a device", REQUIRED, sign_off=said).sign_off is said
    with pytest.raises(NotApproved, match="by Ada"):
        Approval(trial, "a device", REQUIRED, sign_off=replace(said, **change))
