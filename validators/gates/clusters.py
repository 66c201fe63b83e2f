"""Confidence intervals of drops whose samples come in clusters: frames of a video, rows of a patient, windows of a document.

Samples of one cluster are correlated, so the number of clusters, not of samples, determines the precision.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.gates.intervals import (
    MIN_SAMPLES,
    NOT_FINITE,
    RESOLUTION,
    Clusters,
    Drops,
    effective_clusters,
    few_drops,
    mean_interval,
    score_interval,
    too_few_clusters,
    unseen_share,
)
from validators.records.measurements import Estimate


def number_clusters(keys: NDArray[Any]) -> Clusters:
    """Map cluster keys (shape `(n,)`, any sortable dtype) to numbers from 0 (shape `(n,)`, intp).

    >>> number_clusters(np.array(["b", "a", "b"])).tolist()
    [1, 0, 1]
    """
    return np.unique(keys, return_inverse=True)[1].reshape(-1)


def count_units(samples: int, clusters: Clusters | None) -> int:
    """Return the number of independent units: distinct clusters (`clusters` has shape `(n,)`), or `samples` without clusters.

    >>> count_units(3, None), count_units(3, np.array([0, 0, 1]))
    (3, 2)
    """
    return samples if clusters is None else len(np.unique(clusters))


def worth_naming(clusters: Clusters | None) -> Clusters | None:
    """Return the clusters (shape `(n,)`) renumbered from 0; None if there are none or each sample is its own cluster.

    >>> worth_naming(np.array([3, 1, 2])), worth_naming(np.array([3, 1, 3])).tolist()
    (None, [1, 0, 1])
    """
    if clusters is None:
        return None
    numbered = number_clusters(clusters)
    return numbered if len(numbered) and numbered.max() + 1 < len(numbered) else None


def clustered_drop_interval(
    drops: Drops, clusters: Clusters, confidence: float, span: float = math.inf
) -> tuple[Estimate, str]:
    """Return the mean of clustered paired drops with a one-sided bound on either side, and the name of the method.

    `drops` is float64 of shape `(n,)`, positive is worse; `clusters` is intp of shape `(n,)`, numbered from 0 without gaps.
    `span` is the largest possible drop.
    Each side's bound is the widest of

    - `mean_interval` of the jackknife pseudo-values of the clusters: the variance CR3 of R. Bell and D. McCaffrey, Survey
      Methodology 28, 2002, with the degrees of freedom of the clusters;
    - the score interval of right/wrong outcomes at the effective sample size, for drops of right/wrong outcomes (-1, 0, 1);
    - an allowance for clusters that were not drawn: up to Clopper and Pearson's bound of none seen, their share may deviate as
      far as the farthest cluster seen; with right/wrong outcomes they may be lost altogether;
    - if few samples differ at all: the allowance of `few_drops` at the effective number of clusters, for changes that come by
      whole clusters.

    Fewer than `MIN_SAMPLES` effective clusters get no interval. Drops that are not finite get NaN bounds.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # the check below catches an overflow
        mean = float(drops.mean()) if len(drops) else math.nan
    if not (math.isfinite(mean) and np.isfinite(drops).all()):
        return Estimate(math.nan, math.nan, math.nan), NOT_FINITE if len(drops) else "none: no samples"
    effective = effective_clusters(clusters)
    if effective < MIN_SAMPLES:
        return Estimate(mean), too_few_clusters(effective)
    words, pseudo = f"{clusters.max() + 1} clusters", _pseudo_values(drops, clusters)
    is_right_or_wrong = bool(np.isin(drops, (-1.0, 0.0, 1.0)).all())
    spread = float(np.ptp(pseudo)) > RESOLUTION * float(np.abs(pseudo).max())
    # Clusters of equal means are equal drops, whatever is within them.
    units = drops if spread else np.full(len(drops), mean)
    few = None if is_right_or_wrong else few_drops(units, effective, confidence, span)
    if isinstance(few, str):
        return Estimate(mean), f"{few} ({words})"
    if few and not spread:
        return Estimate(mean, mean - few.below, mean + few.above), f"{few.method} ({words})"
    low, high = mean_interval(pseudo, confidence) if spread else (mean, mean)
    middle = float(pseudo.mean()) if spread else mean
    ends = [(middle - low, high - middle)]
    farthest = 1.0 if is_right_or_wrong else float(np.abs(pseudo - pseudo.mean()).max())
    ends.append((unseen := unseen_share(effective, confidence) * farthest, unseen))
    if is_right_or_wrong:
        low, high = _score_interval(drops, pseudo, confidence)
        ends.append((mean - low, high - mean))
    elif few:
        ends.append((few.below, few.above))
    below, above = (max(side) for side in zip(*ends, strict=True))
    method = (
        f"{'widest of Tango,' if is_right_or_wrong else 'wider of'} Student and Hall by {words}, and clusters not seen"
    )
    return Estimate(mean, mean - below, mean + above), method


def _score_interval(drops: Drops, pseudo: Drops, confidence: float) -> tuple[float, float]:
    """Return the score interval at the effective sample size of the clusters.

    The effective sample size is n over the design effect, corrected for the finite degrees of freedom of the clusters (E. Korn
    and B. Graubard, Survey Methodology 24, 1998). `drops` has shape `(n,)`, `pseudo` `(clusters,)`.
    """
    from scipy import stats

    n, groups = len(drops), len(pseudo)
    of_samples, of_clusters = float(drops.var(ddof=1)) / n, float(pseudo.var(ddof=1)) / groups
    design = max(of_clusters / of_samples, 1.0) if of_samples else 1.0
    quantiles = float(stats.norm.ppf(confidence)), float(stats.t.ppf(confidence, groups - 1))
    size = n / design * (quantiles[0] / quantiles[1]) ** 2
    lost, gained = (float((drops == side).mean()) * size for side in (1, -1))
    return score_interval(lost, gained, size, confidence)


def _pseudo_values(drops: Drops, clusters: Clusters) -> Drops:
    """Return the jackknife's pseudo-value of the mean for each cluster, shape `(clusters,)`."""
    sizes, sums = np.bincount(clusters), np.bincount(clusters, drops)
    without = (sums.sum() - sums) / (len(drops) - sizes)
    return np.asarray(len(sizes) * drops.mean() - (len(sizes) - 1) * without, np.float64)
