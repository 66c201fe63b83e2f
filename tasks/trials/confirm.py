"""Step 7: judge the best candidate again, on samples and measurements that did not choose it.

The best of many candidates on some samples owes part of its result to those samples (selection bias); the same is true of
the fastest in many measurements.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.progress_events import CONFIRM
from tasks.run.step import step
from tasks.trials.draws import judge_draws
from tasks.trials.inspect_variant import agreement_with_baseline
from tasks.trials.judge import judged_data_of, rank_passing
from tasks.trials.judge_on_samples import JudgedData, confirmed_of
from tasks.trials.make_candidate import refused
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant
from tasks.trials.measure_latency import halves_of, latency_of
from validators.errors import CandidateRefused
from validators.gates.catalog import judge_gates
from validators.gates.draws import judge_draw_spread
from validators.gates.verdict_rules import confidence_of_each, overall
from validators.job.candidate_name import decode
from validators.job.job import Job
from validators.records.artifact_paths import CONFIRMED
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy
from validators.records.run import Confirmed, Trial, Variant


@dataclass(frozen=True)
class ConfirmedTrials:
    """All trials, with the confirmation of those that were judged again, and the winner, if one passed."""

    trials: tuple[Trial, ...]
    winner: Trial | None = None


@step(CONFIRM)
def confirm_winner(run: LoadedRun, baseline: Accuracy, trials: tuple[Trial, ...]) -> ConfirmedTrials:
    """Return the best passing trial that passes again; simply the best if the job has nothing to judge it again by.

    Trials are judged again best first, at most `confirmation.candidates`, each at a confidence that holds for all together;
    after that on other draws of the calibration samples, if the job asks for them.
    """
    passing = rank_passing(run.job, trials)
    if not run.job.confirmation.share and not run.job.calibration.draws:
        return ConfirmedTrials(trials, passing[0] if passing else None)
    judged_data = judged_data_of(run, baseline)
    tried: dict[str, Trial] = {}
    halves = halves_of(trials) if run.job.gates.min_speedup_fp16 is not None else {}
    for trial in passing[: confirmations_left(run.job, trials)]:
        with run.clock.work("confirm the winner"), run.time_for_winner():
            try:
                again = trial
                if run.job.confirmation.share:
                    again = _judge_again(run, judged_data, _with_kept_samples(run, baseline, trial), halves)
                if again.outcome == "passed":
                    again = _with_draws(run, baseline, again)
            except CandidateRefused as error:
                again = refused(trial.candidate, error)
        tried[trial.candidate] = again
        against = [f"{verdict.gate}: {verdict.reason}" for verdict in again.against]
        log.info("confirming %s: %s", trial.candidate, "; ".join([str(again.outcome), *against]))
        if again.outcome == "passed":
            break
    after = tuple(tried.get(trial.candidate, trial) for trial in trials)
    return ConfirmedTrials(after, next((trial for trial in tried.values() if trial.outcome == "passed"), None))


def confirmations_left(job: Job, trials: tuple[Trial, ...]) -> int:
    """Return how many more trials may be judged again: the error that they share covers those of an earlier call, too."""
    return max(0, job.confirmation.candidates - sum(trial.confirmed is not None for trial in trials))


def _judge_again(run: LoadedRun, judged_data: JudgedData, trial: Trial, halves: Mapping[str, Variant]) -> Trial:
    """Return the trial with `confirmed_...` verdicts added, and their figures. `halves`: float16 variants by target.

    A decoder answers the kept prompts only if it passes on the kept samples, and is timed only if its answers pass, too.
    """
    job = run.job
    confidence = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
    measured, answers = confirmed_of(judged_data, trial, confidence)
    again = judge_gates(measured, CONFIRMED, confirming=True)
    if overall(again) == "passed" and job.gates.min_agreement is not None:
        assert trial.variant
        agreement, _ = agreement_with_baseline(run, trial.variant, confirmation=True)
        measured = replace(measured, agreement=agreement)
        again = judge_gates(measured, CONFIRMED, confirming=True)
    if overall(again) == "passed":
        half = halves.get(decode(trial.candidate).target)
        # As in the selection, float16 is not compared with itself.
        has_half = trial.beside_fp16 is not None and half is not None
        measured = replace(
            measured,
            latency=_measure_again(run, trial, confidence),
            beside_fp16=_measure_again(run, trial, confidence, half) if has_half else None,
        )
        again = judge_gates(measured, CONFIRMED, confirming=True)
    confirmed = Confirmed(
        n=answers.rows,
        confidence=confidence,
        baseline_value=answers.baseline_value,
        value=answers.value,
        drop=answers.drop,
        slices=answers.slices,
        latency=measured.latency,
        beside_fp16=measured.beside_fp16,
        agreement=measured.agreement,
    )
    everything = (*trial.verdicts, *again)
    return replace(trial, confirmed=confirmed, verdicts=everything, outcome=overall(everything))


def _with_draws(run: LoadedRun, baseline: Accuracy, trial: Trial) -> Trial:
    """Return the trial with its spread over draws of the calibration samples, and the verdict on it if the job has a gate."""
    draws = judge_draws(run, baseline, trial)
    verdict = None if draws is None else judge_draw_spread(draws, run.job.gates)
    everything = trial.verdicts if verdict is None else (*trial.verdicts, verdict)
    return replace(trial, draws=draws, verdicts=everything, outcome=overall(everything))


def _with_kept_samples(run: LoadedRun, baseline: Accuracy, trial: Trial) -> Trial:
    """Return the trial with the results on all samples: those that its selection left out are measured now."""
    known, variant = trial.accuracy, trial.variant
    assert known and variant
    rest = np.isnan(np.load(known.finite_path))
    if not rest.any():
        return trial
    reference = Reference(baseline, baseline_variant(run))
    every, _ = measure_accuracy(run, variant, reference, rest, known=known, alone=True)
    return replace(trial, accuracy=replace(every, value=known.value, n=known.n, sqnr=known.sqnr))


def _measure_again(run: LoadedRun, trial: Trial, confidence: float, beside: Variant | None = None) -> Latency:
    """Measure the trial's latency again beside the float16 variant `beside`, or beside the baseline."""
    assert trial.variant
    latency, _ = latency_of(
        run,
        beside or baseline_variant(run),
        trial.variant,
        run.job.measurement.points[0],
        confidence=confidence,
        purpose="confirmation",
    )
    return latency
