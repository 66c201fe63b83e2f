"""Confidence intervals of what a variant loses, from paired samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from validators.measurements import Estimate

Drops = NDArray[np.float64]
# One row of figures a sample, shape (n, k), from any subset of which a metric can be reckoned.
Rows = NDArray[np.float64]
BOOTSTRAP_RESAMPLES = 9999


def drop_interval(drops: Drops, confidence: float, *, seed: int) -> tuple[Estimate, str]:
    """The mean of paired drops (shape `(n,)`, positive is worse) with a one-sided bound on either side, and the method.

    Drops of right/wrong outcomes (-1, 0, 1) get Tango's score interval for a difference of paired proportions; any others
    the bias-corrected and accelerated bootstrap (Efron 1987; scipy.stats.bootstrap). Drops that are not all finite have no
    interval: NaN, which no gate lets pass.
    """
    mean = float(drops.mean())
    if not np.isfinite(drops).all():
        return Estimate(math.nan, math.nan, math.nan), "none: the metric is NaN or Inf on some samples"
    if np.isin(drops, (-1.0, 0.0, 1.0)).all():
        low, high = tango_interval(int((drops == 1).sum()), int((drops == -1).sum()), len(drops), confidence)
        return Estimate(mean, low, high), "paired score interval (Tango)"
    if np.ptp(drops) == 0:
        return Estimate(mean, mean, mean), "all drops equal"
    interval = stats.bootstrap(
        (drops,),
        np.mean,
        n_resamples=BOOTSTRAP_RESAMPLES,
        confidence_level=2 * confidence - 1,  # two-sided, so that each end holds with the one-sided confidence
        method="BCa",
        batch=100,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(mean, float(interval.low), float(interval.high)), "BCa bootstrap"


def paired_interval(
    baseline: Rows, variant: Rows, drop_of: Callable[[Rows, Rows], float], confidence: float, *, seed: int
) -> tuple[Estimate, str]:
    """The drop of a metric that is no mean over samples, with a one-sided bound on either side, and the method.

    `drop_of` gives it for any rows of both, which are resampled together, sample by sample.
    """

    def drop(indices: NDArray[np.int64]) -> float:
        return drop_of(baseline[indices], variant[indices])

    everything = np.arange(len(baseline))
    value = drop(everything)
    interval = stats.bootstrap(
        (everything,),
        drop,
        n_resamples=BOOTSTRAP_RESAMPLES,
        confidence_level=2 * confidence - 1,
        method="BCa",
        vectorized=False,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Estimate(value, float(interval.low), float(interval.high)), "paired BCa bootstrap"


def tango_interval(lost: int, gained: int, n: int, confidence: float) -> tuple[float, float]:
    """Score bounds of the difference of two paired proportions, `(lost - gained) / n`; each one-sided at `confidence`.

    `lost` counts samples that only the baseline has right, `gained` those that only the variant has. Source: T. Tango,
    "Equivalence test and confidence interval for the difference in proportions for the paired-sample design", Statistics in
    Medicine 17 (1998), equations 5 to 9. The bound is where the score statistic equals the normal quantile.

    >>> [round(bound, 4) for bound in tango_interval(9, 3, 32, 0.975)]
    [-0.0271, 0.3897]
    """
    z = float(stats.norm.ppf(confidence))
    observed = (lost - gained) / n

    def score(delta: float) -> float:
        # Maximum likelihood estimate of the second discordant probability under difference `delta`.
        a = 2.0 * n
        b = -lost - gained + (2 * n - lost + gained) * delta
        c = -gained * delta * (1 - delta)
        p = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = n * (2 * p + delta * (1 - delta))
        return (lost - gained - n * delta) / math.sqrt(variance) if variance > 0 else 0.0

    edge = 1 - 1e-12
    upper = optimize.brentq(lambda delta: score(delta) + z, observed, edge) if observed < edge else 1.0
    lower = optimize.brentq(lambda delta: score(delta) - z, -edge, observed) if observed > -edge else -1.0
    return float(lower), float(upper)
