"""Steps 6 and 7: verdicts on every trial, and the best of those that pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.context import Given, Run, log
from tasks.measure.accuracy import drops
from tasks.ptq.graph import model_bytes
from tasks.step import step
from validators.accuracy_gates import judge_drop, judge_finite
from validators.coverage_gate import judge_coverage, judge_simulation
from validators.gates import overall
from validators.intervals import drop_interval
from validators.job import Job
from validators.measurements import Accuracy
from validators.records import Trial
from validators.resource_gates import judge_size, judge_speedup
from validators.verdicts import Verdict


@step("judge candidates", retried=False)
def judge_trials(run: Run, given: Given, baseline: Accuracy, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Every trial with its verdicts and outcome; a refused one stays as it is."""
    with run.clock.work("judge candidates"):
        size = model_bytes(given.source.onnx_path)
        judged = tuple(judge_trial(run.job, trial, baseline, size) for trial in trials)
    for trial in judged:
        failed = [f"{verdict.gate}: {verdict.reason}" for verdict in trial.verdicts if verdict.outcome != "pass"]
        log.info("%s %s%s", trial.candidate, trial.outcome, "".join(f"; {reason}" for reason in failed))
    return judged


def judge_trial(job: Job, trial: Trial, baseline: Accuracy, baseline_bytes: int) -> Trial:
    """One trial with its drop, verdicts and outcome."""
    if trial.variant is None or trial.accuracy is None or trial.coverage is None:
        return trial
    lost = drops(job.metric, np.load(baseline.scores_path), np.load(trial.accuracy.scores_path))
    drop, method = drop_interval(lost, job.gates.confidence, seed=job.seed)
    verdicts: list[Verdict | None] = [
        judge_drop(drop, job.gates, n=len(lost), method=method),
        judge_finite(_newly_bad(baseline, trial.accuracy), len(lost)),
        judge_speedup(trial.latency, job.gates, job.target) if trial.latency else None,
        judge_coverage(trial.candidate, trial.coverage, job.gates),
        judge_size(trial.variant, baseline_bytes, job.gates),
        judge_simulation(trial.variant),
    ]
    given = tuple(verdict for verdict in verdicts if verdict is not None)
    return replace(trial, drop=drop, verdicts=given, outcome=overall(given))


@step("choose the best", retried=False)
def choose_best(run: Run, trials: tuple[Trial, ...]) -> Trial | None:
    """The passing trial that is best by the job's objective; the other measure breaks ties."""
    passing = [trial for trial in trials if trial.outcome == "passed" and trial.latency and trial.variant]
    if not passing:
        return None
    by_latency = run.job.objective == "latency"

    def rank(trial: Trial) -> tuple[float, float]:
        assert trial.latency and trial.variant
        speed, size = -trial.latency.speedup.value, float(trial.variant.size_bytes)
        return (speed, size) if by_latency else (size, speed)

    best = min(passing, key=rank)
    log.info("best by %s: %s", run.job.objective, best.candidate)
    return best


def _newly_bad(baseline: Accuracy, variant: Accuracy) -> int:
    """How many samples have NaN or Inf where the baseline's outputs are finite."""
    before, after = (_finite(np.load(accuracy.outputs_path)) for accuracy in (baseline, variant))
    return int((before & ~after).sum())


def _finite(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
    return finite
