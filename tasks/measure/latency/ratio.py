"""Statistics of blocks: the ratio of two sides with its interval, and percentiles that the sample count supports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from validators.records.latencies import Tail
from validators.records.measurements import Estimate

Samples = NDArray[np.float64]


def ratio_estimate(ratios: Sequence[Sequence[float]], confidence: float) -> Estimate:
    """Return the geometric mean over launches of the median pair ratio, with one-sided bounds on either side.

    `ratios` holds a list per launch. Each bound holds with the one-sided `confidence`. Blocks of a launch share its processes,
    with their memory layout and placement, so they are not independent samples. The interval is therefore Student's over the
    launches' logarithms (T. Kalibera and R. Jones, "Rigorous benchmarking in reasonable time", ISMM 2013: executions above
    iterations). The median is used because single blocks stray far. Simulation (docs/latency.md) ruled out two alternatives.
    Student's interval over all blocks errs two to four times as often as stated where launches differ. The bootstrap that draws
    launches and blocks within them (A. Davison and D. Hinkley, Bootstrap Methods and their Application, 1997, section 3.8)
    counts the noise of blocks twice and is up to 1.5 times as wide. With a single launch, the interval is over its blocks and
    holds for that launch only; a single block gives none.

    >>> ratio_estimate([[2.0, 2.0], [2.0, 2.0]], 0.95)
    Estimate(value=2.0, low=2.0, high=2.0)
    >>> ratio_estimate([[2.0]], 0.95)
    Estimate(value=2.0, low=None, high=None)
    """
    logs = _launch_logs(ratios) if len(ratios) > 1 else np.log(ratios[0])
    mean = float(logs.mean())
    if len(logs) < 2:
        return Estimate(round(math.exp(mean), 12))
    half = float(students_quantile(confidence, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs)))
    value, low, high = (round(math.exp(x), 12) for x in (mean, mean - half, mean + half))
    return Estimate(value, low, high)


def students_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's distribution, for a probability above 0.5 and whole degrees of freedom.

    Its probabilities are finite sums for whole degrees (M. Abramowitz and I. Stegun, Handbook of Mathematical Functions, 26.7.3
    and 26.7.4); they are inverted by bisection. scipy has it too, but takes longer to import than a launch to start, and a
    machine that is only measured need not have it.

    >>> round(students_quantile(0.95, 5), 6), round(students_quantile(0.975, 2), 6)
    (2.015048, 4.302653)
    """
    low, high = 0.0, math.pi / 2
    for _ in range(100):
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < 2 * probability - 1 else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """Return the probability of a value within `sqrt(freedom) * tan(angle)` of zero."""
    cosine = math.cos(angle)
    if freedom % 2:
        term, total = cosine, 0.0
        for index in range(2, freedom, 2):
            total += term
            term *= cosine * cosine * index / (index + 1)
        return 2 / math.pi * (angle + math.sin(angle) * total)
    term, total = 1.0, 0.0
    for index in range(1, freedom, 2):
        total += term
        term *= cosine * cosine * index / (index + 1)
    return math.sin(angle) * total


def central_ratio(ratios: Sequence[Sequence[float]]) -> float:
    """Return the geometric mean over launches of the median over blocks, without an interval.

    >>> central_ratio([[1.0, 4.0], [8.0, 9.0, 1.0]])
    4.0
    """
    return round(math.exp(float(_launch_logs(ratios).mean())), 12)


def _launch_logs(ratios: Sequence[Sequence[float]]) -> Samples:
    return np.array([float(np.median(np.log(blocks))) for blocks in ratios])


def tail_of(
    baseline: Sequence[Samples],
    variant: Sequence[Samples],
    quantile: float,
    confidence: float,
    *,
    is_disturbed: bool = False,
) -> Tail:
    """Return a percentile of the variant and its ratio to the baseline's, each with one-sided bounds on either side.

    `baseline` and `variant` hold the samples of each launch, float64 `(n,)` in milliseconds. The interval is that of
    `ratio_estimate`, with the percentile of a launch in place of its median: requests of a launch share its processes, and slow
    requests come in bursts, so that pooled samples are not independent. The percentile of a launch is the median-unbiased one
    (R. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50, 1996, definition 8);
    numpy's default is too low in a tail. Each launch must support the percentile, see `samples_needed`. Simulation
    (docs/latency.md) ruled out the jackknife of the pooled percentile.

    A launch with too few requests of a side gives no value; a single launch, or a disturbed comparison, gives no bounds.
    """
    needed = samples_needed(quantile)
    counts = [min(map(len, launches)) for launches in (baseline, variant)]
    before, after = (
        np.array([np.quantile(samples, quantile, method="median_unbiased") for samples in launches])
        for launches in (baseline, variant)
    )

    def estimate(values: Samples) -> Estimate:
        found = ratio_estimate([[value] for value in values.tolist()], confidence)
        return Estimate(found.value) if is_disturbed else found

    return Tail(
        needed=needed,
        requests=counts[1],
        baseline_requests=counts[0],
        ms=estimate(after) if counts[1] >= needed else None,
        ratio=estimate(after / before) if min(counts) >= needed else None,
    )


def percentile(samples: Samples, quantile: float) -> float | None:
    """Return the quantile of pooled samples, float64 `(n,)`, or None if their count cannot support it.

    >>> percentile(np.arange(100.0), 0.99) is None
    True
    """
    return float(np.quantile(samples, quantile)) if len(samples) >= samples_needed(quantile) else None


def samples_needed(quantile: float, confidence: float = 0.99) -> int:
    """Return the smallest sample count at which, with `confidence`, at least two samples lie beyond the quantile.

    This is the early-stopping rule of MLPerf Inference (LoadGen) with one discarded sample.

    >>> samples_needed(0.99), samples_needed(0.999)
    (662, 6636)
    """
    count = math.ceil(math.log(1 - confidence) / math.log(quantile))  # count for one sample beyond: a lower limit
    # The binomial probability of at most one sample beyond.
    while quantile**count + count * (1 - quantile) * quantile ** (count - 1) > 1 - confidence:
        count += 1
    return count
