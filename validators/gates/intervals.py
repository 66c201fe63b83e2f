"""Confidence intervals of a variant's metric drop, from paired samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from validators.gates.reach import FEW_DIFFERENT, Wrong, is_few, reach_of
from validators.records.measurements import Estimate

Drops = NDArray[np.float64]
# One row of figures per sample, shape (n, k); a metric can be computed from any subset of the rows.
Rows = NDArray[np.float64]
# The cluster of each sample, shape (n,): numbers from 0 without gaps. Samples of one cluster are correlated.
Clusters = NDArray[np.intp]
# The drop without each group of rows, shape (groups,), from the group of each row and the number of groups.
DropsWithout = Callable[[Clusters, int], Drops]

# Fewer samples cannot show their skewness: even with 8 exponential drops the truth exceeds a 95 % bound in 8 % of draws.
MIN_SAMPLES = 8
# Equal drops are evidence only if a share this large of other drops would have shown up in the draw.
LARGEST_UNSEEN_SHARE = 0.05
# Upper limit on jackknife groups; up to this many samples, each is a group. The spread of 250 is known to 5 %, and each group
# costs one pass over all samples.
JACKKNIFE_GROUPS = 250
# A kurtosis can reach about the number of samples, which would leave only two degrees of freedom.
LEAST_FREEDOM = 3
# Values closer than this, relative to their size, differ by rounding only.
RESOLUTION = 1e-12

NOT_FINITE = "none: the metric is NaN or Inf on some samples"
SCORE_INTERVAL = "paired score interval (Tango), or exact counts where few differ"
TOO_FEW = f"none: fewer than {MIN_SAMPLES} samples"
_TOO_FEW_DIFFER = f"none: fewer than {MIN_SAMPLES} samples differ, and the metric has no largest drop"


def drop_interval(drops: Drops, confidence: float, span: float = math.inf) -> tuple[Estimate, str]:
    """Return the mean of paired drops with a one-sided bound on either side, and the name of the method.

    `drops` is float64 of shape `(n,)`, positive is worse. Drops of right/wrong outcomes (-1, 0, 1) get
    `score_interval`, a difference of paired proportions; all others get `mean_interval`, widened by `few_drops` if few differ.
    `span` is the largest possible drop. Drops that are not all finite get NaN bounds, which pass no gate. Too few drops get no
    bounds, which every gate judges inconclusive.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the check below catches an overflow
        mean = float(drops.mean()) if len(drops) else math.nan
    if not (math.isfinite(mean) and np.isfinite(drops).all()):
        return Estimate(math.nan, math.nan, math.nan), NOT_FINITE if len(drops) else "none: no samples"
    if np.isin(drops, (-1.0, 0.0, 1.0)).all():
        low, high = score_interval(int((drops == 1).sum()), int((drops == -1).sum()), len(drops), confidence)
        return Estimate(mean, low, high), SCORE_INTERVAL
    if len(drops) < MIN_SAMPLES:
        return Estimate(mean), TOO_FEW
    few = few_drops(drops, len(drops), confidence, span)
    if few is None:
        low, high = mean_interval(drops, confidence)
        return Estimate(mean, low, high), "wider of Student and Hall (skewness)"
    if isinstance(few, str):
        return Estimate(mean), few
    low, high = (mean, mean) if (drops == drops[0]).all() else mean_interval(drops, confidence)
    return Estimate(mean, min(low, mean - few.below), max(high, mean + few.above)), few.method


def mean_interval(values: Drops, confidence: float) -> tuple[float, float]:
    """Return one-sided bounds of a mean: on each side the wider of Student's and Hall's. `values`: shape `(n,)`, not all equal.

    Student's interval is too short on the side of the long tail. Hall's removes the skewness by an invertible cubic
    transformation of Student's statistic, g(T) = T + v (T^2 / 3 + 1 / 6) + v^2 T^3 / 27 with v = skewness / sqrt(n) (P. Hall,
    "On the removal of skewness by transformation", J. R. Statist. Soc. B 54, 1992). The skewness estimator is the one that
    sample size biases less (D. Joanes and C. Gill, The Statistician 47, 1998). Both intervals use the degrees of freedom of a
    variance under heavy tails, 2 n / (kurtosis - 1), if those are fewer than n - 1 (G. Box, Biometrika 40, 1953; F.
    Satterthwaite, Biometrics Bulletin 2, 1946). `benchmarks/verdict_errors.py` measures the error rates of each, and of BCa.

    >>> [round(end, 3) for end in mean_interval(np.array([0, 0, 1, 2, 2, 4, 5, 18.0]), 0.95)]
    [-0.52, 18.88]
    """
    from scipy import stats

    n, mean = len(values), float(values.mean())
    away = values - mean
    scale = float(np.abs(away).max())
    away /= scale  # keeps the powers below from overflowing
    error = scale * float(away.std(ddof=1)) / math.sqrt(n)
    variance = float(away.var())
    skewness = float((away**3).mean()) / variance**1.5 * math.sqrt(n * (n - 1)) / (n - 2)
    kurtosis = float((away**4).mean()) / variance**2
    # A kurtosis below the normal distribution's 3 (light tails) gives no more than n - 1 degrees of freedom.
    freedom = min(n - 1, max(2 * n / max(kurtosis - 1, 2.0), LEAST_FREEDOM))
    t = float(stats.t.ppf(confidence, freedom))
    below = max(t, _without_skewness(t, skewness, n)) * error
    above = max(t, -_without_skewness(-t, skewness, n)) * error
    return mean - below, mean + above


def _without_skewness(x: float, skewness: float, n: int) -> float:
    """Return the inverse of Hall's transformation at `x`."""
    if abs(skewness) < 1e-6:
        return x
    v = skewness / math.sqrt(n)
    return float((np.cbrt(1 + v * (x - v / 6)) - 1) * 3 / v)


class FewDrops(NamedTuple):
    """Allowance below and above the mean of drops of which few differ, and the name of the method."""

    below: float
    above: float
    method: str


def few_drops(drops: Drops, units: float, confidence: float, span: float) -> FewDrops | str | None:
    """Return the allowance for differences that were not drawn if all but a few drops are equal.

    `drops` has shape `(n,)`; `units` is the effective number of independent ones among them, at most n. The share of drops that
    differ on either side is at most Clopper and Pearson's bound (Biometrika 26, 1934), each by as much as `span`. Without a
    finite span the largest difference seen takes its place, and fewer than `MIN_SAMPLES` of them do not show it: they get the
    reason why there are no bounds. No interval for a mean of values without bounds holds for every distribution (R. Bahadur
    and L. Savage, Ann. Math. Statist. 27, 1956): if none of enough drops differs, equality is believed, so that a variant
    with the baseline's answers can pass.
    """
    values, counts = np.unique(drops, return_counts=True)
    away = drops - values[counts.argmax()]
    each = units / len(drops)
    lower, higher = (each * float(np.count_nonzero(side)) for side in (away < 0, away > 0))
    if not is_few(lower + higher, units):
        return None
    if not math.isfinite(span):
        if not lower + higher:
            enough = (1 - LARGEST_UNSEEN_SHARE) ** units <= 1 - confidence
            return FewDrops(0.0, 0.0, "all drops equal") if enough else "none: few drops, all equal"
        if lower + higher < MIN_SAMPLES:
            return _TOO_FEW_DIFFER
        span = float(np.abs(away).max())
    below, above = (unseen_count(count, units, confidence) * span / units for count in (lower, higher))
    return FewDrops(below, above, "wider of Student, Hall and exact counts of the few that differ")


def unseen_count(count: float, n: float, confidence: float) -> float:
    """Return how far Clopper and Pearson's upper bound exceeds a count out of `n`.

    >>> round(unseen_count(0, 1000, 0.95), 2), round(unseen_count(9, 1000, 0.95), 2)
    (2.99, 6.65)
    """
    from scipy import stats

    return n * float(stats.beta.ppf(confidence, count + 1, n - count)) - count


def paired_interval(
    baseline: Rows,
    variant: Rows,
    drop_of: Callable[[Rows, Rows], float],
    confidence: float,
    *,
    seed: int,
    clusters: Clusters | None = None,
    drops_without: DropsWithout | None = None,
    wrong: Wrong | None = None,
    moved: NDArray[np.bool_] | None = None,
) -> tuple[Estimate, str]:
    """Return the drop of a metric that is not a mean over samples, with a one-sided bound on either side, and the method.

    `baseline` and `variant` are float64 of shape `(n, k)`; `drop_of` computes the drop from the same subset of rows of both.
    `drops_without` computes it without each group of rows, all groups at once; by default `drop_of` does so group by group.
    The bounds are those of `mean_interval` on the jackknife pseudo-values (R. Miller, "The jackknife: a review", Biometrika
    61, 1974); many samples are left out in random groups, drawn with `seed`. This is valid for functions of sums (F1, error
    rates) and for U-statistics (AUROC; J. Arvesen, Ann. Math. Statist. 40, 1969), not for quantiles.

    Only samples that can move the metric count: of recall, those of its class (`validators.gates.reach`). `wrong` are the rows
    of `variant` if every answer were wrong, `moved` (bool, `(n,)`) tells whose answers differ. If few of them moved it, or
    their pseudo-values do not differ, unseen ones may change by as much as any could; their count is bounded as for means.
    Without `wrong` fewer than `MIN_SAMPLES` that moved do not show how far any could: there are no bounds then.
    A drop that is not finite gets NaN bounds, which pass no gate. A drop that is undefined without some samples gets no bounds.

    With `clusters` (intp, shape `(n,)`) the jackknife leaves out whole clusters, and clusters replace samples in all counts.
    Clusters that were not drawn may deviate as far as the farthest one drawn.
    """
    n, rng = len(baseline), np.random.default_rng(seed)
    count = n if clusters is None else effective_clusters(clusters)
    with np.errstate(all="ignore"):  # the finiteness checks catch 0/0
        value = float(drop_of(baseline, variant))
        if not math.isfinite(value):
            return Estimate(math.nan, math.nan, math.nan), NOT_FINITE
        if count < MIN_SAMPLES:
            return Estimate(value), TOO_FEW if clusters is None else too_few_clusters(count)
        units = np.arange(n) if clusters is None else clusters
        pseudo = _pseudo_values(drops_without or _one_by_one(drop_of, baseline, variant), value, units, rng)
        mean = float(pseudo.mean())
        alike = float(np.ptp(pseudo)) <= RESOLUTION * float(np.abs(pseudo).max())
        enough = math.log(1 - confidence) / math.log(1 - LARGEST_UNSEEN_SHARE)
        reach = reach_of(baseline, variant, drop_of, units, rng, wrong=wrong, moved=moved, alike=alike, enough=enough)
    if not np.isfinite(pseudo).all():
        return Estimate(value), "none: the metric is undefined without some of the samples"
    few = alike or is_few(reach.moved, reach.units)
    if reach.units < MIN_SAMPLES or (few and not reach.largest):
        return Estimate(value), _too_few_movers(reach.units, clusters)
    if few and wrong is None and 0 < reach.moved < MIN_SAMPLES:
        return Estimate(value), _TOO_FEW_DIFFER
    if few and not math.isfinite(reach.largest):
        return Estimate(value), "none: the metric is undefined if one sample is answered otherwise"
    low, high = (mean, mean) if alike else mean_interval(pseudo, confidence)
    unseen = unseen_count(0 if alike else reach.moved, reach.units, confidence) * reach.largest if few else 0.0
    if clusters is not None:
        unseen = max(unseen, unseen_share(count, confidence) * float(np.abs(pseudo - mean).max()))
    below, above = max(mean - low, unseen), max(high - mean, unseen)
    of = "" if clusters is None else f" of {clusters.max() + 1} clusters"
    words = f"jackknife{of}, wider of Student and Hall{' and of changes not seen' if few else ''}, seed {seed}"
    if reach.units < count / 2:
        words += f"; about {reach.units:.0f} {'samples' if clusters is None else 'clusters'} decide"
    # The mean of the pseudo-values is the estimate without its bias of first order, as average precision has one.
    return Estimate(value, min(value, mean) - below, max(value, mean) + above), words


def _too_few_movers(units: float, clusters: Clusters | None) -> str:
    what = "samples" if clusters is None else "clusters of equal weight"
    return f"none: the metric rests on about {units:.0f} {what}, fewer than {MIN_SAMPLES}"


def _one_by_one(drop_of: Callable[[Rows, Rows], float], baseline: Rows, variant: Rows) -> DropsWithout:
    def drops_without(group_of_row: Clusters, groups: int) -> Drops:
        kept = (group_of_row != group for group in range(groups))
        return np.array([drop_of(baseline[rows], variant[rows]) for rows in kept])

    return drops_without


def _pseudo_values(drops_without: DropsWithout, value: float, units: Clusters, rng: np.random.Generator) -> Drops:
    """Return the jackknife pseudo-value of each group of units that is left out, shape `(groups,)`.

    All groups have the same number of units: samples, or whole clusters; `units` (shape `(n,)`) holds the unit of each row. A
    remainder smaller than a group is never left out.
    """
    n = int(units.max()) + 1
    size = math.ceil(n / JACKKNIFE_GROUPS)
    groups = n // size
    # Random groups: neighbours in a sorted file are more alike than random samples.
    group_of = np.empty(n, np.intp)
    group_of[rng.permutation(n)] = np.arange(n) // size
    return groups * value - (groups - 1) * drops_without(group_of[units], groups)


def effective_clusters(clusters: Clusters) -> float:
    """Return the effective number of clusters: n^2 / sum of squared sizes (L. Kish, "Survey Sampling", 1965).

    It is the number of clusters of equal size with the same information. `clusters` is intp of shape `(n,)`.

    >>> effective_clusters(np.array([0, 0, 1, 1])), round(effective_clusters(np.array([0, 0, 0, 1])), 2)
    (2.0, 1.6)
    """
    sizes = np.bincount(clusters).astype(np.float64)
    return float(sizes.sum() ** 2 / (sizes**2).sum()) if len(sizes) else 0.0


def unseen_share(count: float, confidence: float) -> float:
    """Return the largest share of clusters that a draw of `count` may have missed (Clopper and Pearson's bound of none seen).

    >>> round(unseen_share(149, 0.95), 4)
    0.0199
    """
    return float(1 - (1 - confidence) ** (1 / count))


def too_few_clusters(effective: float) -> str:
    """Return the reason why so few effective clusters get no interval."""
    return f"none: {effective:.1f} clusters of equal weight, fewer than {MIN_SAMPLES}"


def score_interval(lost: float, gained: float, n: float, confidence: float) -> tuple[float, float]:
    """Return bounds of a difference of paired proportions, `(lost - gained) / n`: Tango's, or wider ones where few differ.

    With few discordant samples Tango's bound is too short: at 90 % none is seen in 19 % of draws from it. The exact bound on
    the lost (C. Clopper and E. Pearson, Biometrika 26, 1934), less the gained, is then taken if it is wider.

    >>> [round(bound, 4) for bound in score_interval(0, 0, 100, 0.9)]
    [-0.0228, 0.0228]
    """
    low, high = tango_interval(lost, gained, n, confidence)
    if lost + gained >= FEW_DIFFERENT:
        return low, high
    observed = (lost - gained) / n
    exact_low, exact_high = (unseen_count(count, n, confidence) / n for count in (gained, lost))
    return min(low, observed - exact_low), max(high, observed + exact_high)


def tango_interval(lost: float, gained: float, n: float, confidence: float) -> tuple[float, float]:
    """Return score bounds of a difference of paired proportions, `(lost - gained) / n`; each one-sided at `confidence`.

    `lost` counts samples that only the baseline answers right, `gained` those that only the variant does. At the bound the
    score statistic equals the normal quantile. Source: T. Tango, "Equivalence test and confidence interval for the difference
    in proportions for the paired-sample design", Statistics in Medicine 17 (1998), equations 5 to 9.

    >>> [round(bound, 4) for bound in tango_interval(9, 3, 32, 0.975)]
    [-0.0271, 0.3897]
    """
    from scipy import optimize, stats

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
