"""Comparison of a variant's answers with the baseline's, on the samples that choose or on those that confirm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.drops import count_flips, estimate_drop, estimate_sqnr, estimate_value
from tasks.measure.metrics.metric import Metric, Rows
from tasks.run.user_functions import job_metric
from validators.errors import CandidateRefused
from validators.gates.catalog import AnswerFigures, Measured
from validators.gates.champion import judge_against_champion
from validators.gates.clusters import count_units, number_clusters
from validators.gates.intervals import Clusters
from validators.gates.race_rules import CONFIDENCE, least_mean, looks_at
from validators.gates.slices import slice_drops
from validators.gates.verdict_rules import EVALUATION
from validators.job.job import Job
from validators.plain_text import figure
from validators.records.journal import RolledBack
from validators.records.measurements import Accuracy, Estimate, SliceDrop
from validators.records.run import ChampionFigures, Trial, Variant
from validators.records.verdicts import Verdict
from validators.samples.datasets import Arrays

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class JudgedData:
    """Data that trials are judged on: the job's gates, the baseline, and the mask of samples kept for confirmation.

    `confirmation`, each of the `slices` and `clusters` (the number of each sample's cluster, if there are any) have shape
    `(samples,)`; `rolled_back` holds the marks of variants that were rolled back, by identity. `kept_metric` stands for the
    job's metric where its rows are already there, and the code that made them is not.
    """

    job: Job
    baseline: Accuracy
    baseline_bytes: int
    confirmation: Mask
    slices: Arrays
    rolled_back: Mapping[str, RolledBack] = field(default_factory=dict)
    clusters: NDArray[Any] | None = None
    kept_metric: Metric | None = None

    @cached_property
    def metric(self) -> Metric:
        """The metric of the job."""
        return self.kept_metric or job_metric(self.job)

    @cached_property
    def baseline_rows(self) -> Rows:
        """Rows from which the baseline's metric is computed."""
        return np.asarray(np.load(self.baseline.scores_path), dtype=np.float64)

    @property
    def selection(self) -> Mask:
        """Mask of the samples that choose."""
        return ~self.confirmation

    def mark_of(self, variant: Variant) -> RolledBack | None:
        """Return the mark of an earlier rollback: of the variant or, if that is all that is known, of its artifact."""
        return self.rolled_back.get(variant.identity) or self.rolled_back.get(variant.digest)


@dataclass
class DropWatch:
    """Looks at a candidate's drop while its accuracy is measured, and ends it once the drop gate cannot pass any more.

    Batches of `size` of the samples that choose arrive in a random order, since neighbours in a file may resemble each other.
    At each look a bound holds for the drop on all of them (see `race_rules.least_mean`), by the pseudo-values of the batches
    (J. W. Tukey's jackknife): for a mean these are the drops of the batches, and other metrics of samples have them as well.
    """

    judged_data: JudgedData
    size: int
    samples: NDArray[np.intp] = field(init=False)
    _seen: int = 0
    _batches: list[tuple[Rows, Rows]] = field(default_factory=list)

    def __post_init__(self) -> None:
        chosen = np.flatnonzero(self.judged_data.selection)
        batches = [chosen[start : start + self.size] for start in range(0, len(chosen), self.size)]
        order = np.random.default_rng(self.judged_data.job.seed).permutation(len(batches))
        self.samples = np.concatenate([batches[number] for number in order])

    def look(self, rows: Rows) -> None:
        """Add a batch's rows, float64 `(batch, k)`.

        Raises:
            CandidateRefused: `stopped`: with the stated confidence the drop on all samples is beyond the tolerance.
        """
        samples = self.samples[self._seen : self._seen + len(rows)]
        self._seen += len(rows)
        self._batches.append((self.judged_data.baseline_rows[samples], rows))
        count = -(-len(self.samples) // self.size)
        looks = looks_at(count)
        if len(self._batches) not in looks:
            return
        least = least_mean(self._pseudo_values(), count, len(looks))
        bound = self.judged_data.job.gates.drop_bound
        if least > bound:
            name, part = self.judged_data.metric.name, f"{self._seen} of {len(self.samples)} samples"
            raise CandidateRefused(
                kind="stopped",
                found=f"after {part}, {name} is worse by at least {figure(least)} with {CONFIDENCE:.0%} confidence, "
                f"where {figure(bound)} is allowed",
                expected="a drop within the tolerance",
                fix="see the whole drop with `search: all`",
            )

    def _pseudo_values(self) -> NDArray[np.float64]:
        count = len(self._batches)
        everything = self._drop_of(range(count))
        without = np.array([self._drop_of([one for one in range(count) if one != left]) for left in range(count)])
        return count * everything - (count - 1) * without

    def _drop_of(self, batches: Iterable[int]) -> float:
        metric = self.judged_data.metric
        before, after = (np.concatenate(rows) for rows in zip(*(self._batches[one] for one in batches), strict=True))
        return (1.0 if metric.higher_is_better else -1.0) * (metric.value(before) - metric.value(after))


def measured_of(judged_data: JudgedData, trial: Trial, answers: AnswerFigures | None) -> Measured:
    """Return what the gates read of a trial when it is judged on the samples that choose."""
    assert trial.variant and trial.coverage
    return Measured(
        job=judged_data.job,
        candidate=trial.candidate,
        variant=trial.variant,
        coverage=trial.coverage,
        baseline_bytes=judged_data.baseline_bytes,
        answers=answers,
        latency=trial.latency,
        beside_fp16=trial.beside_fp16,
        sanity=trial.sanity,
        agreement=trial.agreement,
        draws=trial.draws,
        rolled_back=judged_data.mark_of(trial.variant),
    )


def confirmed_of(judged_data: JudgedData, trial: Trial, confidence: float) -> tuple[Measured, AnswerFigures]:
    """Return what the gates read of a trial when it is judged again, on the samples kept for that, without its latency."""
    assert trial.variant and trial.accuracy and trial.coverage
    answers = figures_of(judged_data, trial.accuracy, judged_data.confirmation, confidence)
    measured = Measured(
        job=with_confidence(judged_data.job, confidence),
        candidate=trial.candidate,
        variant=trial.variant,
        answers=answers,
        coverage=trial.coverage,
        baseline_bytes=judged_data.baseline_bytes,
    )
    return measured, answers


def with_confidence(job: Job, confidence: float) -> Job:
    """Return the job with another confidence of its gates."""
    return job.model_copy(update={"gates": job.gates.model_copy(update={"confidence": confidence})})


def judge_beside(judged_data: JudgedData, trial: Trial, champion: ChampionFigures, source_digest: str) -> Verdict:
    """Judge a trial against the champion, on samples that did not choose the trial if the job keeps any.

    `source_digest` is that of the trial's source.
    """
    assert trial.variant and trial.accuracy
    job, step = judged_data.job, champion.accuracy.samples_a_row
    kept = judged_data.confirmation[::step]
    mask = kept if kept.any() else ~kept
    before, after = (np.load(one.scores_path)[mask] for one in (champion.accuracy, trial.accuracy))
    keys = judged_data.clusters
    clusters = None if keys is None else number_clusters(keys[::step][mask])
    drop, _ = estimate_drop(judged_data.metric, before, after, job.gates.confidence, seed=job.seed, clusters=clusters)
    return judge_against_champion(
        same_source=champion.source_digest == source_digest,
        drop=drop,
        speedup=champion.latency.speedup,
        size_ratio=trial.variant.size_bytes / champion.size_bytes,
        objective=job.objective,
        gates=job.gates,
        n=count_units(len(before), clusters),
        pairs=champion.latency.pairs,
        disturbance=champion.latency.disturbance,
    )


def figures_of(judged_data: JudgedData, accuracy: Accuracy, samples: Mask, confidence: float) -> AnswerFigures:
    """Compare a variant's answers with the baseline's on the samples of a mask, shape `(samples,)`.

    Bounds hold at the one-sided `confidence`.
    """
    metric, seed = judged_data.metric, judged_data.job.seed
    step = accuracy.samples_a_row
    mask = samples[::step]
    before, after = judged_data.baseline_rows[mask], np.load(accuracy.scores_path)[mask]
    clusters = _numbered(judged_data, samples, step)
    sqnr, sqnr_method = None, ""
    if accuracy.noise_path:
        noise = np.load(accuracy.noise_path)[samples]
        sqnr, sqnr_method = estimate_sqnr(noise, confidence, seed=seed, clusters=_numbered(judged_data, samples))
    bounds, bounds_method = None, ""
    gates = judged_data.job.gates
    if gates.min_metric is not None or gates.max_metric is not None:
        bounds, bounds_method = estimate_value(metric, after, confidence, seed=seed, clusters=clusters)
    drop, drop_method = None, ""
    slices: tuple[SliceDrop, ...] = ()
    if metric.has_drop:
        drop, drop_method = estimate_drop(metric, before, after, confidence, seed=seed, clusters=clusters)
        groups = {name: array[::step][mask] for name, array in judged_data.slices.items()}

        def estimate(group: Mask, each: float) -> tuple[Estimate, str]:
            of_group = None if clusters is None else clusters[group]
            return estimate_drop(metric, before[group], after[group], each, seed=seed, clusters=of_group)

        slices = slice_drops(groups, estimate, confidence, clusters=clusters)
    return AnswerFigures(
        rows=len(before),
        units=count_units(len(before), clusters),
        samples=int(samples.sum()),
        noise_units=count_units(int(samples.sum()), _numbered(judged_data, samples)),
        counted=EVALUATION if clusters is None else "clusters",
        baseline_value=metric.value(before),
        value=metric.value(after),
        drop=drop,
        drop_method=drop_method,
        flips=count_flips(metric, before, after),
        sqnr=sqnr,
        sqnr_method=sqnr_method,
        slices=slices,
        bounds=bounds,
        bounds_method=bounds_method,
        newly_bad=_newly_bad(judged_data.baseline, accuracy, samples),
    )


def _numbered(judged_data: JudgedData, samples: Mask, step: int = 1) -> Clusters | None:
    """Return the cluster of each row, with one row per `step` samples; None without clusters."""
    return None if judged_data.clusters is None else number_clusters(judged_data.clusters[::step][samples[::step]])


def _newly_bad(baseline: Accuracy, variant: Accuracy, samples: Mask) -> int:
    """Return the number of samples with NaN or Inf for which the baseline's outputs are finite."""
    before, after = (np.load(accuracy.finite_path) == 1 for accuracy in (baseline, variant))
    return int((before & ~after)[samples].sum())
