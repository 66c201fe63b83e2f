"""Decisions of a race: which candidates cannot pass the gates, and which cannot win any more."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from validators.records.measurements import Estimate

# One-sided confidence of each decision to stop a candidate.
CONFIDENCE = 0.99
# A candidate that is at most 3 % faster than the leader is not worth a full measurement.
WORTH = 1.03
# Least standard deviation between launches, of the logarithm of a speedup. Few launches may agree by chance.
LEAST_DEVIATION = 0.01

# Short measurements of each candidate, of one launch each. Two are the fewest that show how launches differ.
PROBES = 2
# Launches in which a finalist is measured in turn with the leader. One slow launch does not change their median.
# Of a normal distribution it varies as the mean of as many: the variance of the middle of three is 0.449 times that of each.
IN_TURN, _AS_MANY = 3, 1 / 0.449

# Batches of samples before the first look at a drop. Fewer say little about how batches differ.
FIRST_LOOK = 8


def looks_at(batches: int) -> tuple[int, ...]:
    """Return after how many of the batches to look at a drop: 8, 16, 32 and so on, as long as a quarter of them is left.

    >>> looks_at(10), looks_at(19), looks_at(63)
    ((), (8,), (8, 16, 32))
    """
    return tuple(count for step in range(20) if (count := FIRST_LOOK * 2**step) <= 0.75 * batches)


def least_mean(values: NDArray[np.float64], total: int, looks: int) -> float:
    """Return a lower bound for the mean of `total` values, given those of a random part, float64 `(part,)`.

    It is Student's bound with the correction for a finite population (W. G. Cochran, "Sampling Techniques", 1977, section
    2.6). It holds with `CONFIDENCE` for several `looks` together (Bonferroni). The standard deviation is taken as at least half
    of the mean, since a few values may agree by chance.
    """
    from scipy import stats

    part, mean = len(values), float(values.mean())
    deviation = max(float(values.std(ddof=1)), abs(mean) / 2)
    quantile = float(stats.t.ppf(1 - (1 - CONFIDENCE) / looks, part - 1))
    return mean - quantile * deviation * math.sqrt((1 - part / total) / part)


def run_finals(
    names: Iterable[str],
    *,
    rank: Callable[[str], float],
    stops: Callable[[str], bool],
    evaluate: Callable[[str], bool],
    time: Callable[[str], None],
) -> None:
    """Measure candidates in full one after the other, best first by `rank`, unless `stops` stops them.

    `evaluate` measures the accuracy of one and returns True if it passes. `time` measures its latency, after which `stops` may
    know a new leader. The first is finished before the next begins: a run that ends early has a verdict on the best.
    """
    for name in sorted(names, key=rank):
        if not stops(name) and evaluate(name):
            time(name)


@dataclass(frozen=True)
class _Speed:
    """Log speedup of one racer: its mean over launches, their number, and the log speedup of its best launch."""

    mean: float
    launches: int
    best: float
    is_sure: bool = True


@dataclass
class Speeds:
    """Measured speedups of the racers, with one variance between launches for all of them.

    Two launches give a variance of one degree of freedom, too few for a decision. The candidates of a run share the machine, so
    their launches are taken to differ equally. But a neighbour of a virtual machine may slow one of them for a whole launch. So
    the variance is a median over racers, which a few of those do not change, and a racer is stopped only if the best of its
    short launches is too slow.
    """

    _seen: dict[str, _Speed] = field(default_factory=dict)
    _short: dict[str, list[float]] = field(default_factory=dict)
    _full: list[tuple[float, int]] = field(default_factory=list)
    """Variances of full measurements, with their degrees of freedom."""

    def add_launch(self, name: str, speedup: Estimate) -> None:
        """Add a short measurement of one launch. A value without bounds, as of a disturbed measurement, decides nothing."""
        log = math.log(speedup.value)
        if speedup.low is None:
            self._seen.setdefault(name, _Speed(log, 1, log, is_sure=False))
            return
        logs = self._short.setdefault(name, [])
        logs.append(log)
        self._seen[name] = _Speed(float(np.mean(logs)), len(logs), max(logs))

    def add(self, name: str, speedup: Estimate, launches: int, confidence: float) -> None:
        """Add a full measurement; `speedup` has Student's bounds over its launches with this one-sided confidence.

        It replaces the value of the short launches; their variance counts as well. A value without bounds decides nothing.
        """
        from scipy import stats

        mean = math.log(speedup.value)
        self._seen[name] = _Speed(mean, launches, mean, is_sure=speedup.low is not None)
        if speedup.low is None or launches < 2:
            return
        half = mean - math.log(speedup.low)
        deviation = half * math.sqrt(launches) / float(stats.t.ppf(confidence, launches - 1))
        self._full.append((deviation**2, launches - 1))

    def __contains__(self, name: object) -> bool:
        return name in self._seen

    def value(self, name: str) -> float | None:
        """Return the latest measured speedup of a candidate, or None if it has none."""
        return math.exp(self._seen[name].mean) if name in self._seen else None

    def short_value(self, name: str) -> float | None:
        """Return the mean of a candidate's short launches, for comparison with others' of about the same time."""
        return math.exp(float(np.mean(self._short[name]))) if name in self._short else self.value(name)

    def is_below(self, name: str, bound: float) -> bool:
        """Return True if the speedup is below the bound with `CONFIDENCE`."""
        one = self._seen.get(name)
        if one is None or not one.is_sure:
            return False
        return one.best + self._margin(one.launches) < math.log(bound)

    def is_behind(self, name: str, leader: str) -> bool:
        """Return True if the candidate is less than `WORTH` times as fast as the leader with `CONFIDENCE`."""
        one, first = self._seen.get(name), self._seen.get(leader)
        if one is None or first is None or not one.is_sure or not first.is_sure:
            return False
        return one.best + self._margin(one.launches, first.launches) < first.mean + math.log(WORTH)

    def is_faster(self, ratio: float) -> bool:
        """Return True if a racer is faster than another with `CONFIDENCE`.

        `ratio` says how many times, by the median of `IN_TURN` launches in which they were measured in turn.
        """
        return math.log(ratio) > self._margin(_AS_MANY)

    def is_not_worth(self, ratio: float) -> bool:
        """Return True if a racer is less than `WORTH` times as fast as another with `CONFIDENCE`, by the same ratio."""
        return math.log(ratio) + self._margin(_AS_MANY) < math.log(WORTH)

    def _margin(self, *launches: float) -> float:
        """Return the half-width of the bound on a mean over launches, or on the difference of two, with the common variance.

        The log ratio of two racers in turn has the variance of that of a racer and the baseline.
        """
        from scipy import stats

        short = [(float(np.var(logs, ddof=1)), len(logs) - 1) for logs in self._short.values() if len(logs) > 1]
        variance, freedom = median_variance([*short, *self._full])
        if not freedom:
            return math.inf
        deviation = max(LEAST_DEVIATION, math.sqrt(variance))
        return float(stats.t.ppf(CONFIDENCE, freedom)) * deviation * math.sqrt(sum(1 / count for count in launches))


def median_variance(variances: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Return the weighted median of variances of normal samples, and its degrees of freedom; both are 0 without any.

    Each variance comes with its degrees of freedom, which are its weight, and is divided by the median of its distribution: so
    the result estimates a common variance, whatever a few of them are. A median knows about half as much as a mean.

    >>> variance, freedom = median_variance([(1.0, 1), (1.0, 1), (1.0, 1), (100.0, 1)])
    >>> round(variance, 2), freedom
    (2.2, 2.0)
    """
    from scipy import stats

    if not variances:
        return 0.0, 0.0
    ordered = sorted((variance * one / float(stats.chi2.median(one)), one) for variance, one in variances)
    weights = np.cumsum([one for _, one in ordered])
    middle = int(np.searchsorted(weights, weights[-1] / 2))
    return ordered[middle][0], max(1.0, float(weights[-1]) / 2)
