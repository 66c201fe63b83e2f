"""Drop of a variant against the baseline, for any metric."""

from __future__ import annotations

import math
from dataclasses import replace

from tasks.measure.metrics.metric import Metric, Rows, Vector, are_scores
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
    """Return the drop of the metric with a one-sided bound on either side, and the method; positive if the variant is worse.

    Both rows, float64 `(n, k)`, are of the same samples in the same order. `clusters` groups samples that resemble each other;
    without it all are independent. For perplexity the drop is in nats per token: 0.02 more is 2 % more perplexity for any
    model. Otherwise it is in the metric's own units.
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

    def drops_without(group_of_row: Clusters, groups: int) -> Vector:
        assert metric.without is not None
        return sign * (metric.without(baseline, group_of_row, groups) - metric.without(variant, group_of_row, groups))

    found, method = paired_interval(
        baseline,
        variant,
        drop_of,
        confidence,
        seed=seed,
        clusters=clusters,
        drops_without=drops_without if metric.without else None,
    )
    if metric.drop_at_most is None or found.high is None or not math.isfinite(found.high):
        return found, method
    bound, _ = paired_interval(
        baseline, variant, metric.drop_at_most(baseline, clusters), confidence, seed=seed, clusters=clusters
    )
    high = None if bound.high is None else max(found.high, bound.high)
    return replace(found, high=high), f"{method}; above, wider of it and of a bound without bias"


def count_flips(metric: Metric, baseline: Rows, variant: Rows) -> Flips | None:
    """Return the number of samples whose rows are worse, and of those whose rows are better, than the baseline's.

    For right and wrong answers these are the samples that only the baseline, or only the variant, has right. The result is
    None for a metric whose single rows are neither good nor bad. Both rows are float64 `(n, k)`.
    """
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
    """Return the signal-to-quantization-noise ratio in dB with a one-sided bound on either side, and the method.

    `rows` are (signal, noise) energies, float64 `(n, 2)`. The interval is computed for the share of noise, which stays finite
    when samples have no noise. In decibels its ends swap.
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
