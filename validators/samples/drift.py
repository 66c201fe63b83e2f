"""Whether two samples of a number come from one distribution: population stability index and Kolmogorov-Smirnov test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]
PSI_BINS = 10


@dataclass(frozen=True)
class Comparison:
    """What one statistic of the calibration samples is held against.

    `edges` are the inner bin edges and `reference_counts`, one longer, what the reference has between them. `p_value` is that
    of the Kolmogorov-Smirnov test, corrected for the number of statistics that were compared together.
    """

    statistic: str
    edges: tuple[float, ...]
    reference_counts: tuple[int, ...]
    p_value: float


def compare(calibration: Mapping[str, Vector], reference: Mapping[str, Vector]) -> tuple[Comparison, ...]:
    """Prepare the comparison of every statistic (vectors of shape `(n,)` and `(m,)` by name; NaN means no value).

    A statistic without any value on either side is left out. The p-value is that of the two-sample Kolmogorov-Smirnov test
    (asymptotic: the exact one is slow at thousands of samples and no different from about 50 on; conservative with ties),
    corrected by the procedure of Benjamini and Hochberg, "Controlling the false discovery rate", Journal of the Royal
    Statistical Society B 57(1), 1995: among the statistics then called drifted, few are so by chance. It holds for statistics
    that rise and fall together, as these do (Benjamini and Yekutieli 2001).
    """
    pairs = {
        name: (_finite(values), _finite(reference[name]))
        for name, values in calibration.items()
        if np.isfinite(values).any() and np.isfinite(reference[name]).any()
    }
    if not pairs:
        return ()
    raw = [float(stats.ks_2samp(values, other, method="asymp").pvalue) for values, other in pairs.values()]
    corrected = stats.false_discovery_control(raw, method="bh")
    comparisons = []
    for (name, (_, other)), p_value in zip(pairs.items(), corrected, strict=True):
        edges = find_edges(other)
        comparisons.append(Comparison(name, edges, count_in_bins(other, edges), float(p_value)))
    return tuple(comparisons)


def find_edges(reference: Vector) -> tuple[float, ...]:
    """Inner edges, ascending, of right-closed bins that hold about a tenth of `reference` (shape `(m,)`) each.

    A value that several deciles fall on gets a bin of its own: were it to share one with its neighbours, a statistic that is
    constant in the reference (no zeros in any sample) could move without leaving its bin.

    >>> find_edges(np.arange(1.0, 101.0))
    (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0, 80.0, 90.0)
    >>> find_edges(np.ones(50))
    (0.9999999999999999, 1.0)
    """
    deciles = np.quantile(reference, np.arange(1, PSI_BINS) / PSI_BINS, method="inverted_cdf")
    values, times = np.unique(deciles, return_counts=True)
    lower = np.nextafter(values[times > 1], -np.inf)
    return tuple(float(edge) for edge in np.union1d(values, lower))


def count_in_bins(values: Vector, edges: Sequence[float]) -> tuple[int, ...]:
    """How many of `values` (shape `(n,)`, NaN left out) lie in each of the `len(edges) + 1` right-closed bins.

    >>> count_in_bins(np.array([-1.0, 0.0, 0.5, 1.0, 7.0]), (0.0, 1.0))
    (2, 2, 1)
    """
    places = np.searchsorted(np.asarray(edges), _finite(values), side="left")
    return tuple(int(count) for count in np.bincount(places, minlength=len(edges) + 1))


def measure_psi(counts: Sequence[int], reference_counts: Sequence[int]) -> float:
    """The population stability index of binned counts: the sum over bins of (p - q) * ln(p / q), p and q being the shares.

    Source: N. Siddiqi, "Credit Risk Scorecards" (Wiley, 2006); it is the symmetric Kullback-Leibler divergence. A bin that is
    empty on one side would give infinity, so that an empty bin counts as half a sample, the adjustment that is usual for
    weights of evidence. The other usual one, a share of 1e-4, was rejected: a bin out of ten that chance left empty would
    add 0.69, more than most real shifts. A bin that is empty on both sides says nothing.

    >>> round(measure_psi((30, 70), (50, 50)), 4)  # -0.2 * ln(0.6) + 0.2 * ln(1.4)
    0.1695
    """
    p, q = np.asarray(counts, np.float64), np.asarray(reference_counts, np.float64)
    used = (p > 0) | (q > 0)
    p, q = np.maximum(p[used], 0.5) / p.sum(), np.maximum(q[used], 0.5) / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


def expect_psi_by_chance(counts: Sequence[int], reference_counts: Sequence[int]) -> float:
    """The index that two samples of one distribution have on average: (B - 1) * (1/n + 1/m).

    n and m are the sample counts, B the bins that are not empty on both sides. Source: B. Yurdakul and J. Naranjo,
    "Statistical properties of the population stability index", Journal of Risk Model Validation 14(4), 2020: without a shift,
    PSI / (1/n + 1/m) tends to a chi-square variable with B - 1 degrees of freedom.

    >>> round(expect_psi_by_chance([4] * 10, [200] * 10), 3)  # 9 * (1 / 40 + 1 / 2000)
    0.23
    """
    used = sum(1 for p, q in zip(counts, reference_counts, strict=True) if p or q)
    return (used - 1) * (1 / sum(counts) + 1 / sum(reference_counts))


def find_signs(
    counts: Sequence[int], reference_counts: Sequence[int], p_value: float, *, max_psi: float, min_p_value: float
) -> tuple[str, ...]:
    """The signs of drift, of two: the index less its average by chance is above its bound, the p-value below its own.

    Each has a weakness that the other lacks. The index is noisy in small samples: 64 against 2,000 of one distribution have
    0.15 on average, which is why that average is taken off before the bound of the job is applied; the rest then passes 0.5
    by chance in about 1 of 10,000 draws. The p-value is exact about chance, but in large samples it calls shifts that matter
    to no quantization range. One sign is therefore a warning, both are a refusal.

    >>> find_signs((40, 0), (1000, 1000), 0.2, max_psi=0.5, min_p_value=0.001)
    ('PSI',)
    """
    above_chance = measure_psi(counts, reference_counts) - expect_psi_by_chance(counts, reference_counts)
    signs = ("PSI",) if above_chance > max_psi else ()
    return (*signs, "KS") if p_value < min_p_value else signs


def _finite(values: Vector) -> Vector:
    return values[np.isfinite(values)]
