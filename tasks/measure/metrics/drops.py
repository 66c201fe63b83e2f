"""Value of any metric with its interval, and its drop against the baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Metric, Rows, Vector, are_scores
from tasks.measure.metrics.values import decibels_of, noise_share
from validators.errors import JobError
from validators.gates.clusters import clustered_drop_interval, worth_naming
from validators.gates.intervals import Clusters, drop_interval, paired_interval
from validators.job.job_gates import Gates
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
        span = _span_of(metric, baseline, variant)
        return _mean_interval(sign * (baseline - variant)[:, 0], confidence, clusters, span)

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
        wrong=metric.wrong(variant) if metric.wrong else None,
        moved=_moved(metric, baseline, variant),
    )
    if metric.drop_at_most is None or found.high is None or not math.isfinite(found.high):
        return found, method
    rise = metric.drop_at_most(baseline, clusters)
    bound, _ = paired_interval(
        baseline,
        variant,
        rise,
        confidence,
        seed=seed,
        clusters=clusters,
        wrong=metric.wrong(variant) if metric.wrong else None,
    )
    high = None if bound.high is None else max(found.high, bound.high)
    return replace(found, high=high), f"{method}; above, wider of it and of a bound without bias"


def _moved(metric: Metric, baseline: Rows, variant: Rows) -> NDArray[np.bool_] | None:
    if metric.moved:
        return metric.moved(baseline, variant)
    return metric.losses(baseline) != metric.losses(variant) if metric.losses else None


def estimate_value(
    metric: Metric, rows: Rows, confidence: float, *, seed: int, clusters: Clusters | None = None
) -> tuple[Estimate, str]:
    """Return the metric with a one-sided bound on either side, and the method, in the metric's own units.

    `rows` is float64 `(n, k)`; `clusters` groups samples that resemble each other. A mean of scores is judged by its drops from
    a score of 1, or of 0 where lower is better: for right and wrong answers Tango's upper bound is then that of Wilson's score
    interval (E. Wilson, J. Am. Statist. Assoc. 22, 1927). Other metrics get the jackknife of `paired_interval`.
    """
    clusters = worth_naming(clusters)
    if are_scores(rows):
        best, sign = (1.0, 1.0) if metric.higher_is_better else (0.0, -1.0)
        lost, method = _mean_interval(sign * (best - rows[:, 0]), confidence, clusters, _span_of(metric, rows))
        ends = (lost.high, lost.low) if metric.higher_is_better else (lost.low, lost.high)
        # For perplexity the mean is that of the losses.
        low, high = (None if end is None else metric.value(np.array([[best - sign * end]])) for end in ends)
        return Estimate(metric.value(rows), low, high), method

    return paired_interval(
        rows,
        rows,
        lambda _, drawn: metric.value(drawn),
        confidence,
        seed=seed,
        clusters=clusters,
        drops_without=partial(metric.without, rows) if metric.without else None,
        wrong=metric.wrong(rows) if metric.wrong else None,
        moved=np.ones(len(rows), np.bool_),  # no answer counts as unchanged
    )


def check_value_gates(metric: Metric, gates: Gates) -> None:
    """Check that the job bounds the metric itself on the right side, and that the metric has a value of its own.

    Raises:
        JobError: `min_metric` is set where lower values are better, or `max_metric` where higher ones are; or the value of the
            metric depends on the number of samples (`drop_at_most`), so that a bound would hold for that number alone.
    """
    fitting, other = ("min_metric", "max_metric") if metric.higher_is_better else ("max_metric", "min_metric")
    if getattr(gates, other) is not None:
        better = "higher" if metric.higher_is_better else "lower"
        raise JobError(
            found=f"`gates.{other}` with the metric {metric.name!r}, of which {better} values are better",
            expected=f"`gates.{fitting}`",
            fix=f"bound the metric by `{fitting}`",
        )
    is_biased = metric.drop_at_most is not None
    if getattr(gates, fitting) is not None and (is_biased or not metric.has_drop):
        raise JobError(
            found=f"`gates.{fitting}` with the metric {metric.name!r}",
            expected="a metric whose value depends neither on the number of samples nor on the baseline",
            fix=f"remove `{fitting}`; " + ("`max_drop` bounds the rise" if is_biased else "`min_sqnr_db` bounds it"),
        )


def _mean_interval(drops: Vector, confidence: float, clusters: Clusters | None, span: float) -> tuple[Estimate, str]:
    if clusters is None:
        return drop_interval(drops, confidence, span)
    return clustered_drop_interval(drops, clusters, confidence, span)


def _span_of(metric: Metric, *scores: Rows) -> float:
    """Return the largest possible drop of one score: that of the metric, or 1 if all scores are from 0 to 1, or inf."""
    if metric.span is not None:
        return metric.span
    are_shares = all(bool(((rows >= 0) & (rows <= 1)).all()) for rows in scores)
    return 1.0 if are_shares else math.inf


def count_flips(metric: Metric, baseline: Rows, variant: Rows) -> Flips | None:
    """Return the number of samples whose rows are worse, and of those whose rows are better, than the baseline's.

    For right and wrong answers these are the samples that only the baseline, or only the variant, has right. The result is
    None for a metric whose single rows are neither good nor bad. Both rows are float64 `(n, k)`.
    """
    before, after = row_losses(metric, baseline), row_losses(metric, variant)
    if before is None or after is None:
        return None
    return Flips(lost=int((after > before).sum()), gained=int((after < before).sum()), n=len(before))


def row_losses(metric: Metric, rows: Rows) -> Vector | None:
    """Return how bad each row `(n, k)` is, float64 `(n,)`, larger is worse; None if single rows are neither good nor bad."""
    if are_scores(rows):
        return (-1.0 if metric.higher_is_better else 1.0) * rows[:, 0]
    return metric.losses(rows) if metric.losses else None


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
