"""Confidence intervals of what a variant loses, from paired samples."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from validators.records.measurements import Estimate

Drops = NDArray[np.float64]
# One row of figures a sample, shape (n, k), from any subset of which a metric can be reckoned.
Rows = NDArray[np.float64]
# The cluster of each sample, shape (n,): numbers from 0 without gaps. Samples of one cluster resemble each other.
Clusters = NDArray[np.intp]

# Fewer cannot show how skewed they are: even of 8 exponential drops the truth is beyond a 95 % bound in 8 % of draws.
MIN_SAMPLES = 8
# Below this many samples that differ at all, their spread says less than that others like them may not have been drawn.
FEW_DIFFERENT = 10
# All drops the same say something only if a share of others as large as this would have shown.
LARGEST_UNSEEN_SHARE = 0.05
# The most groups that the jackknife leaves out in turn, one sample each up to that many: the spread of so many is known to
# 5 %, and each costs a look at all samples.
JACKKNIFE_GROUPS = 250
# A kurtosis is at most about the number of samples, which would leave no more than two.
LEAST_FREEDOM = 3
# Rows that stand for what a sample may become, where too few have changed to tell.
PROBED_ROWS = 16

NOT_FINITE = "none: the metric is NaN or Inf on some samples"
TOO_FEW = f"none: fewer than {MIN_SAMPLES} samples"


def drop_interval(drops: Drops, confidence: float) -> tuple[Estimate, str]:
    """The mean of paired drops (shape `(n,)`, positive is worse) with a one-sided bound on either side, and the method.

    Drops of right/wrong outcomes (-1, 0, 1) get Tango's score interval for a difference of paired proportions; any others
    `mean_interval`. Drops that are not all finite have no interval: NaN, which no gate lets pass. Where there are too few to
    tell anything the bounds are absent, which every gate calls inconclusive.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # an overflow is not finite, and is found to be so
        mean = float(drops.mean()) if len(drops) else math.nan
    if not (math.isfinite(mean) and np.isfinite(drops).all()):
        return Estimate(math.nan, math.nan, math.nan), NOT_FINITE if len(drops) else "none: no samples"
    if np.isin(drops, (-1.0, 0.0, 1.0)).all():
        low, high = tango_interval(int((drops == 1).sum()), int((drops == -1).sum()), len(drops), confidence)
        return Estimate(mean, low, high), "paired score interval (Tango)"
    if len(drops) < MIN_SAMPLES:
        return Estimate(mean), TOO_FEW
    if (drops == drops[0]).all():
        enough = (1 - LARGEST_UNSEEN_SHARE) ** len(drops) <= 1 - confidence
        return (
            (Estimate(mean, mean, mean), "all drops equal")
            if enough
            else (Estimate(mean), "none: few drops, all equal")
        )
    low, high = mean_interval(drops, confidence)
    unseen = _unseen_drops(drops, confidence)
    if unseen:
        low, high = min(low, mean - unseen[0]), max(high, mean + unseen[1])
        return Estimate(mean, low, high), "wider of Student, Hall and exact counts of the few that differ"
    return Estimate(mean, low, high), "wider of Student and Hall (skewness)"


def mean_interval(values: Drops, confidence: float) -> tuple[float, float]:
    """One-sided bounds of the mean of values (shape `(n,)`, not all equal): the wider of Student's and Hall's, on each side.

    Student's is too short on the side of the long tail. Hall's takes the skewness out by a cubic transformation of Student's
    statistic, g(T) = T + v (T^2 / 3 + 1 / 6) + v^2 T^3 / 27 with v = skewness / sqrt(n), which has an inverse (P. Hall, "On
    the removal of skewness by transformation", J. R. Statist. Soc. B 54, 1992); the skewness is the one that sample size
    biases less (D. Joanes and C. Gill, The Statistician 47, 1998). Both with the degrees of freedom that a variance has when
    tails are heavy, 2 n / (kurtosis - 1), where those are fewer than n - 1 (by its variance: G. Box, Biometrika 40, 1953; F.
    Satterthwaite, Biometrics Bulletin 2, 1946). What each lets through, beside BCa: `benchmarks/verdict_errors.py`.

    >>> [round(end, 3) for end in mean_interval(np.array([0, 0, 1, 2, 2, 4, 5, 18.0]), 0.95)]
    [-0.52, 18.88]
    """
    n, mean = len(values), float(values.mean())
    away = values - mean
    scale = float(np.abs(away).max())
    away /= scale  # so that no power of it overflows
    error = scale * float(away.std(ddof=1)) / math.sqrt(n)
    variance = float(away.var())
    skewness = float((away**3).mean()) / variance**1.5 * math.sqrt(n * (n - 1)) / (n - 2)
    kurtosis = float((away**4).mean()) / variance**2
    # Light tails (below 3, those of the normal distribution) earn no more than n - 1.
    freedom = min(n - 1, max(2 * n / max(kurtosis - 1, 2.0), LEAST_FREEDOM))
    t = float(stats.t.ppf(confidence, freedom))
    below = max(t, _without_skewness(t, skewness, n)) * error
    above = max(t, -_without_skewness(-t, skewness, n)) * error
    return mean - below, mean + above


def _without_skewness(x: float, skewness: float, n: int) -> float:
    """The inverse of Hall's transformation at `x`."""
    if abs(skewness) < 1e-6:
        return x
    v = skewness / math.sqrt(n)
    return float((np.cbrt(1 + v * (x - v / 6)) - 1) * 3 / v)


def _unseen_drops(drops: Drops, confidence: float) -> tuple[float, float] | None:
    """How far below and above the mean the truth may lie when all but a few drops are the same; None for other drops.

    Few drops that differ may, by chance, lack those that count. Their share on either side is at most Clopper and Pearson's
    (Biometrika 26, 1934) bound, and each as large as the largest seen.
    """
    values, counts = np.unique(drops, return_counts=True)
    n, most = len(drops), int(counts.max())
    if not is_few(n - most, n):
        return None
    away = drops - values[counts.argmax()]
    largest = float(np.abs(away).max())
    below, above = (
        unseen_count(int(count), n, confidence) * largest / n for count in ((away < 0).sum(), (away > 0).sum())
    )
    return below, above


def is_few(different: float, n: float) -> bool:
    """Say whether so few samples differ that those that count may not have been drawn."""
    return different < FEW_DIFFERENT and different < n / 2


def unseen_count(count: float, n: float, confidence: float) -> float:
    """By how many of `n` the upper bound of Clopper and Pearson exceeds a count.

    >>> round(unseen_count(0, 1000, 0.95), 2), round(unseen_count(9, 1000, 0.95), 2)
    (2.99, 6.65)
    """
    return n * float(stats.beta.ppf(confidence, count + 1, n - count)) - count


def paired_interval(
    baseline: Rows,
    variant: Rows,
    drop_of: Callable[[Rows, Rows], float],
    confidence: float,
    *,
    seed: int,
    clusters: Clusters | None = None,
) -> tuple[Estimate, str]:
    """The drop of a metric that is no mean over samples, with a one-sided bound on either side, and the method.

    `drop_of` gives it for any rows of both, of which the same are left out. Bounds are those of `mean_interval` for the
    jackknife's pseudo-values (R. Miller, "The jackknife: a review", Biometrika 61, 1974), of groups picked at random where
    there are many samples; right for functions of sums (F1, error rates) and for U-statistics (AUROC; J. Arvesen, Ann. Math.
    Statist. 40, 1969), not for quantiles. Where few samples differ at all, others may change as much as any of them could:
    the count of those not seen is bounded as for means. A drop that is not finite has no interval: NaN, which no gate lets
    pass; one that is undefined without some samples has no bounds.

    With `clusters` (the cluster of each row) whole clusters are left out, and count as samples do without; those that were not
    drawn may be as far off as the farthest of those that were.
    """
    n, rng = len(baseline), np.random.default_rng(seed)
    count = n if clusters is None else effective_clusters(clusters)
    with np.errstate(all="ignore"):  # 0/0 is found by its result
        value = float(drop_of(baseline, variant))
        if not math.isfinite(value):
            return Estimate(math.nan, math.nan, math.nan), NOT_FINITE
        if count < MIN_SAMPLES:
            return Estimate(value), TOO_FEW if clusters is None else too_few_clusters(count)
        units = np.arange(n) if clusters is None else clusters
        pseudo = _pseudo_values(baseline, variant, drop_of, value, units, rng)
        different = int((baseline != variant).any(axis=1).sum()) * (count / n)
        few = is_few(different, count)
        reach = _largest_change(baseline, variant, drop_of, rng) * n / count if few else 0.0
    if not (np.isfinite(pseudo).all() and math.isfinite(reach)):
        return Estimate(value), "none: the metric is undefined without some of the samples"
    mean = float(pseudo.mean())
    low, high = mean_interval(pseudo, confidence) if np.ptp(pseudo) else (mean, mean)
    unseen = unseen_count(different, count, confidence) * reach if few else 0.0
    if clusters is not None:
        unseen = max(unseen, unseen_share(count, confidence) * float(np.abs(pseudo - mean).max()))
    below, above = max(mean - low, unseen), max(high - mean, unseen)
    of = "" if clusters is None else f" of {clusters.max() + 1} clusters"
    words = f"jackknife{of}, wider of Student and Hall{' and of changes not seen' if few else ''}, seed {seed}"
    return Estimate(value, value - below, value + above), words


def _pseudo_values(
    baseline: Rows,
    variant: Rows,
    drop_of: Callable[[Rows, Rows], float],
    value: float,
    units: Clusters,
    rng: np.random.Generator,
) -> Drops:
    """One for each group of units left out, shape `(groups,)`. Groups have equally many units (samples, or whole clusters:
    `units` has that of each row); a rest smaller than a group is always in."""
    n = int(units.max()) + 1
    size = math.ceil(n / JACKKNIFE_GROUPS)
    groups = n // size
    # At random: neighbours in a file that is sorted would be more alike than samples are.
    group_of = np.empty(n, np.intp)
    group_of[rng.permutation(n)] = np.arange(n) // size
    group_of_row = group_of[units]
    without = np.empty(groups)
    for group in range(groups):
        kept = group_of_row != group
        without[group] = drop_of(baseline[kept], variant[kept])
    return groups * value - (groups - 1) * without


def _largest_change(
    baseline: Rows, variant: Rows, drop_of: Callable[[Rows, Rows], float], rng: np.random.Generator
) -> float:
    """The largest change of the drop when one sample's row of the variant becomes as another's; Inf where it is undefined."""
    places = np.unique(variant, axis=0, return_index=True)[1]
    chosen = rng.choice(places, min(len(places), PROBED_ROWS), replace=False)
    value, changed, largest = drop_of(baseline, variant), variant.copy(), 0.0
    for place in chosen:
        for other in chosen:
            changed[place] = variant[other]
            change = abs(drop_of(baseline, changed) - value)
            largest = max(largest, change if math.isfinite(change) else math.inf)
        changed[place] = variant[place]
    return largest


def effective_clusters(clusters: Clusters) -> float:
    """Return how many clusters of equal size tell as much as these: n^2 / sum of squared sizes (L. Kish, "Survey Sampling",
    1965).

    >>> effective_clusters(np.array([0, 0, 1, 1])), round(effective_clusters(np.array([0, 0, 0, 1])), 2)
    (2.0, 1.6)
    """
    sizes = np.bincount(clusters).astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0


def unseen_share(count: float, confidence: float) -> float:
    """Return the largest share of clusters of which none may have been drawn (Clopper and Pearson's bound of none seen).

    >>> round(unseen_share(149, 0.95), 4)
    0.0199
    """
    return float(1 - (1 - confidence) ** (1 / count))


def too_few_clusters(effective: float) -> str:
    """Say why so few effective clusters have no interval."""
    return f"none: {effective:.1f} clusters of equal weight, fewer than {MIN_SAMPLES}"


def tango_interval(lost: float, gained: float, n: float, confidence: float) -> tuple[float, float]:
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
