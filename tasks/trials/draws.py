"""Step 7, between: the candidate that is about to win, made again from other draws of the calibration samples.

Accuracy may hang on which samples happened to calibrate a variant. A draw takes as many of the job's calibration samples, with
replacement (B. Efron, "Bootstrap Methods: Another Look at the Jackknife", Annals of Statistics 7, 1979), so that each sample is
missing in about a third of the draws. The promoted file is never one of a draw: it is the one that was judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.evidence.sequences import take_rows
from tasks.measure.metrics.metric import Metric, Rows, are_scores
from tasks.ptq.calibrate.fixed_ranges import read_fixed_ranges
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.user_functions import job_metric
from tasks.trials.build_engine import with_engine
from tasks.trials.materials import variant_from_store
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant
from validators.digests import digest_values
from validators.errors import CandidateRefused
from validators.gates.clusters import number_clusters
from validators.gates.draws import estimate_spread
from validators.gates.verdict_rules import confidence_of_each
from validators.job.candidate_name import decode
from validators.plain_text import figure
from validators.records.measurements import Accuracy, Draws, Estimate, RangeSpread
from validators.records.run import Trial
from validators.samples.datasets import Samples

# Groups of evaluation samples by which their part of the variance is estimated, and tensors that the record names.
GROUPS = 50
MOST_TENSORS = 10


def judge_draws(run: LoadedRun, baseline: Accuracy, trial: Trial) -> Draws | None:
    """Return the spread of a candidate over draws of the calibration samples; None if the job or the candidate has none.

    Raises:
        CandidateRefused: the candidate cannot be made or measured with some draw.
    """
    if not run.job.calibration.draws or not run.job.is_calibrated(trial.candidate):
        return None
    samples = run.evidence.calibration
    assert trial.accuracy and samples  # a calibrated candidate has samples
    metric, seed = job_metric(run.job), run.job.seed
    reference = Reference(baseline, baseline_variant(run))
    rows, ranges = [], []
    for number in range(run.job.calibration.draws):
        drawn = replace(run, evidence=replace(run.evidence, calibration=draw(samples, seed, number)))
        made, _ = variant_from_store(drawn, decode(trial.candidate))
        if made.variant is None:
            assert made.refusal is not None
            raise CandidateRefused(
                kind="invalid",
                found=f"with draw {number + 1} of the calibration samples: {made.refusal.reason}",
                expected="a candidate that can be made from any draw of the samples",
                fix="calibrate with more samples",
            )
        accuracy, _ = measure_accuracy(drawn, with_engine(drawn, made.variant), reference, alone=True)
        log.info("draw %d of %d: %s %s", number + 1, run.job.calibration.draws, accuracy.metric, figure(accuracy.value))
        rows.append(np.asarray(np.load(accuracy.scores_path), np.float64))
        ranges.append(read_fixed_ranges(made.variant.path))
    before, own = (np.asarray(np.load(one.scores_path), np.float64) for one in (baseline, trial.accuracy))
    clusters = run.evidence.clusters
    keys = np.arange(len(before)) if clusters is None else clusters[:: baseline.samples_a_row]
    # As many candidates as the job confirms may be tried until one passes.
    confidence = confidence_of_each(run.job.gates.confidence, run.job.confirmation.candidates)
    spread, noise = spread_between(metric, rows, keys, confidence, seed=seed)
    sign = 1.0 if metric.higher_is_better else -1.0
    drop, *drops = (sign * (_figure(metric, before) - _figure(metric, one)) for one in (own, *rows))
    return Draws(drop, tuple(drops), spread, noise, confidence, len(samples), _widest(ranges))


def spread_between(
    metric: Metric, rows: Sequence[Rows], keys: NDArray[Any], confidence: float, *, seed: int
) -> tuple[Estimate, float]:
    """Return the standard deviation of a metric between draws, and the noise that it is free of; see `estimate_spread`.

    `rows`, float64 `(n, k)` of each draw, are of the same evaluation samples; `keys`, shape `(n,)`, name their clusters.
    """
    groups = _groups(keys, seed)
    return estimate_spread(np.array([_pseudo_values(metric, one, groups) for one in rows]), confidence)


def draw(samples: Samples, seed: int, number: int) -> Samples:
    """Return as many samples, drawn with replacement; whole groups or sequences of them, where the data has any."""
    rng = np.random.default_rng((seed, number))
    keys = np.arange(len(samples)) // (samples.steps or 1) if samples.clusters is None else samples.clusters
    members = number_clusters(keys)
    by_member = np.split(np.argsort(members, kind="stable"), np.cumsum(np.bincount(members))[:-1])
    rows = np.concatenate([by_member[one] for one in rng.integers(0, len(by_member), len(by_member))])
    taken = take_rows(samples, rows)
    return replace(taken, file=replace(taken.file, digest=digest_values(samples.file.digest, "draw", rows.tolist())))


def _figure(metric: Metric, rows: Rows) -> float:
    """Return the metric of rows in the units of its drop: for perplexity nats."""
    return float(rows.mean()) if are_scores(rows) else metric.value(rows)


def _groups(keys: NDArray[Any], seed: int) -> NDArray[np.intp]:
    """Deal the clusters of rows, whose `keys` have shape `(rows,)`, into at most `GROUPS` groups of equal number."""
    members = number_clusters(keys)
    order = np.random.default_rng(seed).permutation(members.max() + 1)
    return (order % min(GROUPS, len(order)))[members]


def _pseudo_values(metric: Metric, rows: Rows, groups: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the jackknife's pseudo-value of each group, shape `(groups,)`; of a mean and groups of one size, its means."""
    count = int(groups.max()) + 1
    without = np.array([_figure(metric, rows[groups != one]) for one in range(count)])
    return count * _figure(metric, rows) - (count - 1) * without


def _widest(ranges: Sequence[Mapping[str, tuple[float, float]]]) -> tuple[RangeSpread, ...]:
    """Return the tensors, with a range in every draw, whose ranges differ most in width."""
    names = [name for name in ranges[0] if all(name in found for found in ranges)]
    widths = {name: [found[name][1] - found[name][0] for found in ranges] for name in names}
    ratios = {name: max(found) / min(found) for name, found in widths.items() if min(found) > 0}
    widest = sorted(ratios, key=lambda name: -ratios[name])[:MOST_TENSORS]
    return tuple(RangeSpread(name, ratios[name]) for name in widest)
