"""Steps 6 and 7: verdicts on every trial, and the order of those that pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
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
from validators.measurements import Accuracy, Estimate
from validators.records import Trial
from validators.resource_gates import judge_size, judge_speedup
from validators.verdicts import Verdict

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Ground:
    """What trials are judged on: the job's gates, the baseline, and the rows that had no say in the choice."""

    job: Job
    baseline: Accuracy
    baseline_bytes: int
    confirmation: Mask

    @cached_property
    def baseline_rows(self) -> NDArray[np.float64]:
        """What the metric is reckoned from, one row a sample."""
        return np.asarray(np.load(self.baseline.scores_path), dtype=np.float64)


def ground_of(run: Run, given: Given, baseline: Accuracy) -> Ground:
    """The ground of a run."""
    return Ground(run.job, baseline, model_bytes(given.source.onnx_path), given.evidence.confirmation)


@step("judge candidates", retried=False)
def judge_trials(run: Run, given: Given, baseline: Accuracy, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Every trial with its verdicts and outcome; a refused one stays as it is."""
    ground = ground_of(run, given, baseline)
    with run.clock.work("judge candidates"):
        judged = tuple(judge_trial(ground, trial) for trial in trials)
    for trial in judged:
        failed = [f"{verdict.gate}: {verdict.reason}" for verdict in trial.verdicts if verdict.outcome != "pass"]
        log.info("%s %s%s", trial.candidate, trial.outcome, "".join(f"; {reason}" for reason in failed))
    return judged


def judge_trial(ground: Ground, trial: Trial) -> Trial:
    """One trial with its drop, verdicts and outcome, on the samples that choose."""
    if trial.variant is None or trial.accuracy is None or trial.coverage is None:
        return trial
    job = ground.job
    drop, on_answers = judge_answers(ground, trial.accuracy, ~ground.confirmation, job.gates.confidence)
    verdicts: list[Verdict | None] = [
        *on_answers,
        judge_speedup(trial.latency, job.gates, job.target) if trial.latency else None,
        judge_coverage(trial.candidate, trial.coverage, job.gates),
        judge_size(trial.variant, ground.baseline_bytes, job.gates),
        judge_simulation(trial.variant),
    ]
    given = tuple(verdict for verdict in verdicts if verdict is not None)
    return replace(trial, drop=drop, verdicts=given, outcome=overall(given))


def judge_answers(
    ground: Ground, accuracy: Accuracy, mask: Mask, confidence: float
) -> tuple[Estimate, tuple[Verdict, ...]]:
    """The drop on the rows of a mask, and the gates on what the variant answers there."""
    job = ground.job
    rows = np.load(accuracy.scores_path)
    lost = drops(job.metric, ground.baseline_rows[mask], rows[mask])
    drop, method = drop_interval(lost, confidence, seed=job.seed)
    return drop, (
        judge_drop(drop, job.gates, n=len(lost), method=method),
        judge_finite(_newly_bad(ground.baseline, accuracy, mask), len(lost)),
    )


def rank_passing(job: Job, trials: tuple[Trial, ...]) -> list[Trial]:
    """The passing trials, best first by the job's objective; the other measure breaks ties."""
    passing = [trial for trial in trials if trial.outcome == "passed" and trial.latency and trial.variant]
    by_latency = job.objective == "latency"

    def rank(trial: Trial) -> tuple[float, float]:
        assert trial.latency and trial.variant
        speed, size = -trial.latency.speedup.value, float(trial.variant.size_bytes)
        return (speed, size) if by_latency else (size, speed)

    return sorted(passing, key=rank)


def _newly_bad(baseline: Accuracy, variant: Accuracy, mask: Mask) -> int:
    """How many samples of the mask have NaN or Inf where the baseline's outputs are finite."""
    before, after = (_finite(np.load(accuracy.outputs_path)) for accuracy in (baseline, variant))
    return int((before & ~after)[mask].sum())


def _finite(outputs: NDArray[Any]) -> NDArray[np.bool_]:
    finite: NDArray[np.bool_] = np.isfinite(outputs).reshape(len(outputs), -1).all(axis=1)
    return finite
