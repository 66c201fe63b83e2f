"""Steps 6 and 7: verdicts on every trial, and the ranking of those that pass."""

from __future__ import annotations

import math
from dataclasses import replace

from tasks.ptq.graph.edits import model_bytes
from tasks.registry.champion_slot import place_of, rolled_back_variants
from tasks.registry.mlflow_registry import connect
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.trials.judge_on_samples import JudgedData, figures_of, measured_of
from validators.gates.agreement import estimate_agreement
from validators.gates.catalog import AnswerFigures, judge_gates
from validators.gates.verdict_rules import overall
from validators.job.job import Job
from validators.records.journal import RolledBack
from validators.records.latencies import point_labels
from validators.records.measurements import Accuracy
from validators.records.run import Trial
from validators.records.verdicts import Verdict


def judged_data_of(run: LoadedRun, baseline: Accuracy) -> JudgedData:
    """Return the data that the trials of a run are judged on.

    Raises:
        InfrastructureError: the registry, which records rollbacks, does not answer.
    """
    evidence = run.evidence
    size = model_bytes(run.source.onnx_path)
    rolled_back: dict[str, RolledBack] = {}
    if not run.job.source_is_file:
        with connect(run.tracking_uri) as client:
            rolled_back = rolled_back_variants(client, place_of(run.source.name, run.job.target))
    slices, clusters = evidence.evaluation.slices, evidence.clusters
    return JudgedData(run.job, baseline, size, evidence.confirmation, slices, rolled_back, clusters)


@step("judge candidates")
def judge_trials(run: LoadedRun, baseline: Accuracy, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return every trial with its verdicts and outcome; refused trials are unchanged."""
    judged_data = judged_data_of(run, baseline)
    with run.clock.work("judge candidates"):
        judged = tuple(judge_trial(judged_data, trial) for trial in trials)
    for trial in judged:
        if trial.is_stopped:
            continue
        failed = [f"{verdict.gate}: {verdict.reason}" for verdict in trial.against]
        log.info("%s %s%s", trial.candidate, trial.outcome, "".join(f"; {reason}" for reason in failed))
    return judged


def judge_trial(judged_data: JudgedData, trial: Trial) -> Trial:
    """Return one trial with its verdicts and outcome, judged on the samples that choose; its metric is for those samples."""
    if trial.refusal or trial.variant is None or trial.accuracy is None or trial.coverage is None:
        return trial
    answers = figures_of(judged_data, trial.accuracy, judged_data.selection, judged_data.job.gates.confidence)
    verdicts = _verdicts(judged_data, trial, answers)
    agreement = trial.agreement
    if agreement:
        agreement = replace(agreement, mean=estimate_agreement(agreement, judged_data.job.gates.confidence)[0])
    return replace(
        trial,
        agreement=agreement,
        accuracy=replace(trial.accuracy, value=answers.value, n=answers.rows, sqnr=answers.sqnr),
        drop=answers.drop,
        flips=answers.flips,
        slices=answers.slices,
        verdicts=verdicts,
        outcome=overall(verdicts),
    )


def fails_early(judged_data: JudgedData, trial: Trial) -> Trial | None:
    """Return a trial that fails by its file, kernels or sanity alone, with these verdicts; None if it does not."""
    verdicts = _verdicts(judged_data, trial, None)
    return replace(trial, verdicts=verdicts, outcome="failed") if overall(verdicts) == "failed" else None


def _verdicts(judged_data: JudgedData, trial: Trial, answers: AnswerFigures | None) -> tuple[Verdict, ...]:
    measured = measured_of(judged_data, trial, answers)
    return judge_gates(measured, point_labels(trial.latencies)[0] if trial.latencies else "")


def rank_passing(job: Job, trials: tuple[Trial, ...]) -> list[Trial]:
    """Return the passing trials, best first by the job's objective; the other measure breaks ties."""
    passing = [trial for trial in trials if trial.outcome == "passed" and trial.latency and trial.variant]
    by_latency = job.objective == "latency"

    def rank(trial: Trial) -> tuple[float, float]:
        assert trial.latency and trial.variant
        # A disturbed latency is no reason to prefer a trial.
        speed = math.inf if trial.latency.disturbance else -trial.latency.speedup.value
        size = float(trial.variant.size_bytes)
        return (speed, size) if by_latency else (size, speed)

    return sorted(passing, key=rank)
