"""Drift between two sets of values: population stability index and Kolmogorov-Smirnov test."""

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
    """Reference values for one statistic of the calibration samples.

    `edges` are the inner bin edges; `reference_counts`, one longer, are the reference's counts in the bins. `p_value` is that
    of the Kolmogorov-Smirnov test, corrected for the number of statistics compared together.
    """

    statistic: str
    edges: tuple[float, ...]
    reference_counts: tuple[int, ...]
    p_value: float


def compare(calibration: Mapping[str, Vector], reference: Mapping[str, Vector]) -> tuple[Comparison, ...]:
    """Prepare the comparison of every statistic (vectors of shape `(n,)` and `(m,)` by name; NaN means no value).

    A statistic without any value on one side is omitted. The p-value is that of the two-sample Kolmogorov-Smirnov test in its
    asymptotic version: the exact test is slow at thousands of samples and no different above about 50. Ties make the test
    conservative. The p-values are corrected by the procedure of Benjamini and Hochberg, "Controlling the false discovery
    rate", Journal of the Royal Statistical Society B 57(1), 1995, so that few of the reported drifts are due to chance. The
    procedure holds for positively dependent statistics such as these (Benjamini and Yekutieli 2001).
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
    """Return the inner edges, ascending, of right-closed bins that each hold about a tenth of `reference` (shape `(m,)`).

    A value that equals several deciles gets its own bin. If it shared one with its neighbours, a statistic that is constant in
    the reference (no zeros in any sample) could move without leaving its bin.

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
    """Count the finite `values` (shape `(n,)`) in each of the `len(edges) + 1` right-closed bins.

    >>> count_in_bins(np.array([-1.0, 0.0, 0.5, 1.0, 7.0]), (0.0, 1.0))
    (2, 2, 1)
    """
    places = np.searchsorted(np.asarray(edges), _finite(values), side="left")
    return tuple(int(count) for count in np.bincount(places, minlength=len(edges) + 1))


def measure_psi(counts: Sequence[int], reference_counts: Sequence[int]) -> float:
    """Return the population stability index of binned counts: the sum over bins of (p - q) * ln(p / q) for shares p and q.

    Source: N. Siddiqi, "Credit Risk Scorecards" (Wiley, 2006); it is the symmetric Kullback-Leibler divergence. A bin that is
    empty on one side would give infinity; it counts as half a sample, the usual adjustment for weights of evidence. The other
    usual adjustment, a share of 1e-4, is not used: one of ten bins left empty by chance would add 0.69, more than most real
    shifts. A bin that is empty on both sides is ignored.

    >>> round(measure_psi((30, 70), (50, 50)), 4)  # -0.2 * ln(0.6) + 0.2 * ln(1.4)
    0.1695
    """
    p, q = np.asarray(counts, np.float64), np.asarray(reference_counts, np.float64)
    used = (p > 0) | (q > 0)
    p, q = np.maximum(p[used], 0.5) / p.sum(), np.maximum(q[used], 0.5) / q.sum()
    return float(((p - q) * np.log(p / q)).sum())


def expect_psi_by_chance(counts: Sequence[int], reference_counts: Sequence[int]) -> float:
    """Return the average index of two samples of one distribution: (B - 1) * (1/n + 1/m).

    n and m are the sample counts, B the number of bins with a sample on either side. Source: B. Yurdakul and J. Naranjo,
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
    """Return the signs of drift: "PSI" if the index less its chance average exceeds its bound, "KS" if the p-value is too low.

    Each sign compensates for the other's weakness. The index is noisy in small samples: 64 against 2,000 of one distribution
    average 0.15. That average is therefore subtracted before the job's bound applies; the rest exceeds 0.5 by chance in about
    1 of 10,000 draws. The p-value accounts for chance exactly, but in large samples it reports shifts that matter to no
    quantization range. One sign is therefore a warning, both are a refusal.

    >>> find_signs((40, 0), (1000, 1000), 0.2, max_psi=0.5, min_p_value=0.001)
    ('PSI',)
    """
    above_chance = measure_psi(counts, reference_counts) - expect_psi_by_chance(counts, reference_counts)
    signs = ("PSI",) if above_chance > max_psi else ()
    return (*signs, "KS") if p_value < min_p_value else signs


def _finite(values: Vector) -> Vector:
    return values[np.isfinite(values)]
