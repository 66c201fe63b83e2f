"""What a variant loses against the baseline, by any metric."""

from __future__ import annotations

import math

import numpy as np

from tasks.measure.metric import Metric, Rows, are_scores
from tasks.measure.values import decibels_of, noise_share
from validators.intervals import drop_interval, paired_interval
from validators.measurements import Estimate, Flips

NOT_FINITE = "none: the metric is NaN or Inf"


def estimate_drop(
    metric: Metric, baseline: Rows, variant: Rows, confidence: float, *, seed: int
) -> tuple[Estimate, str]:
    """The drop of the metric with a one-sided bound on either side, positive where the variant is worse, and the method.

    The rows are those of the same samples, in the same order. For perplexity the drop is in nats a token: 0.02 more are 2 %
    more perplexity, whatever the model's own; else in the metric's own units.
    """
    sign = 1.0 if metric.higher_is_better else -1.0
    if are_scores(baseline):
        return drop_interval(sign * (baseline - variant)[:, 0], confidence, seed=seed)

    def drop_of(before: Rows, after: Rows) -> float:
        return sign * (metric.value(before) - metric.value(after))

    if not math.isfinite(drop_of(baseline, variant)):
        return Estimate(math.nan, math.nan, math.nan), NOT_FINITE
    if np.array_equal(baseline, variant):
        return Estimate(0.0, 0.0, 0.0), "all rows equal"
    return paired_interval(baseline, variant, drop_of, confidence, seed=seed)


def count_flips(metric: Metric, baseline: Rows, variant: Rows) -> Flips | None:
    """How many rows are worse and how many better than the baseline's: for right and wrong answers, those that only the
    baseline has right and those that only the variant has. None for a metric whose rows are not good or bad by themselves."""
    if metric.losses is None:
        return None
    before, after = metric.losses(baseline), metric.losses(variant)
    return Flips(lost=int((after > before).sum()), gained=int((after < before).sum()), n=len(before))


def estimate_sqnr(rows: Rows, confidence: float, *, seed: int) -> Estimate:
    """The signal-to-quantization-noise ratio in dB of rows (signal, noise), with a one-sided bound on either side.

    It is bootstrapped as the share of noise, which is finite where a resample has no noise at all, and then put in decibels:
    the bounds of BCa follow any monotone transformation (B. Efron, "Better bootstrap confidence intervals", JASA 82, 1987).
    """
    share = noise_share(rows)
    if share == 0 or not math.isfinite(share):
        level = decibels_of(share)
        return Estimate(level, level, level)
    found, _ = paired_interval(rows, rows, lambda _, drawn: noise_share(drawn), confidence, seed=seed)
    assert found.low is not None and found.high is not None
    # Less noise is a higher ratio.
    return Estimate(decibels_of(found.value), decibels_of(found.high), decibels_of(found.low))
