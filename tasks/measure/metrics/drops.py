"""What a variant loses against the baseline, by any metric."""

from __future__ import annotations

import math

from tasks.measure.metrics.metric import Metric, Rows, are_scores
from tasks.measure.metrics.values import decibels_of, noise_share
from validators.gates.clusters import clustered_drop_interval, worth_naming
from validators.gates.intervals import Clusters, drop_interval, paired_interval
from validators.records.measurements import Estimate, Flips


def estimate_drop(
    metric: Metric,
    baseline: Rows,
    variant: Rows,
    confidence: float,
    *,
    seed: int,
    clusters: Clusters | None = None,
) -> tuple[Estimate, str]:
    """The drop of the metric with a one-sided bound on either side, positive where the variant is worse, and the method.

    The rows are those of the same samples, in the same order. `clusters` says which of them resemble each other; without it all
    are independent. For perplexity the drop is in nats a token: 0.02 more are 2 % more perplexity, whatever the model's own;
    else in the metric's own units.
    """
    sign = 1.0 if metric.higher_is_better else -1.0
    clusters = worth_naming(clusters)
    if are_scores(baseline):
        drops = sign * (baseline - variant)[:, 0]
        return (
            drop_interval(drops, confidence)
            if clusters is None
            else clustered_drop_interval(drops, clusters, confidence)
        )

    def drop_of(before: Rows, after: Rows) -> float:
        return sign * (metric.value(before) - metric.value(after))

    return paired_interval(baseline, variant, drop_of, confidence, seed=seed, clusters=clusters)


def count_flips(metric: Metric, baseline: Rows, variant: Rows) -> Flips | None:
    """How many rows are worse and how many better than the baseline's: for right and wrong answers, those that only the
    baseline has right and those that only the variant has. None for a metric whose rows are not good or bad by themselves."""
    if are_scores(baseline):
        sign = -1.0 if metric.higher_is_better else 1.0
        before, after = sign * baseline[:, 0], sign * variant[:, 0]
    elif metric.losses is None:
        return None
    else:
        before, after = metric.losses(baseline), metric.losses(variant)
    return Flips(lost=int((after > before).sum()), gained=int((after < before).sum()), n=len(before))


def estimate_sqnr(
    rows: Rows, confidence: float, *, seed: int, clusters: Clusters | None = None
) -> tuple[Estimate, str]:
    """The signal-to-quantization-noise ratio in dB of rows (signal, noise), with a one-sided bound on either side, and the
    method.

    The interval is that of the share of noise, which some samples without any noise leave finite; decibels turn its ends over.
    """
    share = noise_share(rows)
    if share == 0 or not math.isfinite(share):
        level = decibels_of(share)
        return Estimate(
            level, level, level
        ), "no noise" if share == 0 else "none: no signal, or noise that is not finite"
    found, method = paired_interval(
        rows, rows, lambda _, drawn: noise_share(drawn), confidence, seed=seed, clusters=worth_naming(clusters)
    )
    low, high = (None if end is None else decibels_of(max(end, 0.0)) for end in (found.high, found.low))
    return Estimate(decibels_of(share), low, high), f"share of noise, {method}"
