"""The range to quantize a tensor in, from its calibration statistics.

A range `(low, high)` is what the integers stand for from the least to the greatest, in units of the tensor; values outside
are clipped. It holds 0, which every kernel needs to represent exactly; symmetric, it is `(-high, high)`; it is `(0.0, 0.0)` if
there was nothing but zeros. What a histogram does not tell, values inside of a bin, counts as spread evenly over it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tasks.ptq.calibrate.statistics import TensorStatistics
from validators.errors import CandidateRefused

Method = Literal["minmax", "percentile", "entropy", "mse"]
METHODS: tuple[Method, ...] = get_args(Method)
Range = tuple[float, float]
Floats = NDArray[np.float64]
# Of ranges as two arrays of ends, in bins, what each costs.
Cost = Callable[[Floats, Floats], Floats]

DEFAULT_PERCENT = 99.99

# The search for the ends of a range. An end starts as the extreme and shrinks by `COARSE` at a time to a 256th of it, which
# spans outliers of that size; then the best is searched around, in `FINE_STEPS` to each side, `FINE_ROUNDS` times.
COARSE_ONE_END = 2 ** (1 / 8)
COARSE_TWO_ENDS = 2 ** (1 / 2)
SMALLEST_SHARE = 1 / 256
FINE_STEPS = 4
FINE_ROUNDS = 3

# Ends of the windows that the symmetric entropy tries; then all those next to the best.
ENTROPY_WINDOWS = 1024

# What an empty bin holds of Q where outliers are added to P, in values: there the divergence would be infinite, so that one
# far outlier would forbid every range but the whole. The figure is that of `smooth_distribution` in ONNX Runtime and MXNet.
EMPTY_BIN_VALUES = 1e-4

# Elements of the arrays of one step: what fits a cache, whatever the number of levels.
CHUNK_ELEMENTS = 1 << 18


def find_range(
    statistics: TensorStatistics, method: Method, *, levels: int, symmetric: bool, percent: float = DEFAULT_PERCENT
) -> Range:
    """The range that a method finds for a quantizer of `levels` integers, such as 255 (-127 to 127) or 256.

    `minmax` and `percentile` do not depend on `levels`, and only `percentile` depends on `percent`.

    Raises:
        CandidateRefused: `invalid`: there is no finite value.
        ValueError: fewer than 3 levels, or `percent` outside of 50 to 100.

    >>> from tasks.ptq.calibrate.statistics import add, empty
    >>> find_range(add(empty(), np.array([-1.0, 3.0])), "minmax", levels=255, symmetric=True)
    (-3.0, 3.0)
    """
    if levels < 3:
        raise ValueError(f"{levels} levels: expected at least 3")
    if not statistics.finite:
        raise CandidateRefused(
            kind="invalid",
            found=f"a tensor with {statistics.non_finite} values, none of them finite",
            expected="finite values, to find a range for",
            fix="leave the tensor in float, or calibrate with samples that reach it",
        )
    match method:
        case "minmax":
            return minmax_range(statistics, symmetric=symmetric)
        case "percentile":
            return percentile_range(statistics, percent, symmetric=symmetric)
        case "entropy":
            return entropy_range(statistics, levels, symmetric=symmetric)
        case "mse":
            return mse_range(statistics, levels, symmetric=symmetric)


def minmax_range(statistics: TensorStatistics, *, symmetric: bool) -> Range:
    """From the least to the greatest value."""
    if symmetric:
        return -statistics.largest, statistics.largest
    return min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)


def percentile_range(statistics: TensorStatistics, percent: float, *, symmetric: bool) -> Range:
    """The range that leaves out `100 - percent` in a hundred values.

    Symmetric, it keeps `percent` of the magnitudes; else it leaves out half of the rest at either end.

    Raises:
        ValueError: `percent` outside of 50 to 100.
    """
    if not 50 <= percent <= 100:
        raise ValueError(f"percentile {percent}: expected 50 to 100")
    half = statistics.bins // 2
    share = percent / 100
    if symmetric:
        magnitudes = statistics.counts[half:] + statistics.counts[:half][::-1]
        return _inside(statistics, (0.0, _quantile(magnitudes, share) * statistics.width), symmetric=True)
    high = _quantile(statistics.counts, (1 + share) / 2) - half
    low = half - _quantile(statistics.counts[::-1], (1 + share) / 2)
    return _inside(statistics, (low * statistics.width, high * statistics.width), symmetric=False)


def _quantile(counts: NDArray[np.int64], share: float) -> float:
    """Where, in bins from the first, a share of the counts lies below."""
    cumulated = np.concatenate([[0], np.cumsum(counts)])
    wanted = share * cumulated[-1]
    place = min(max(int(np.searchsorted(cumulated, wanted)) - 1, 0), len(counts) - 1)
    return float(place + (wanted - cumulated[place]) / max(counts[place], 1))


def _inside(statistics: TensorStatistics, found: Range, *, symmetric: bool) -> Range:
    """The range as far as there are values, with 0 in it."""
    least, most = minmax_range(statistics, symmetric=symmetric)
    low, high = max(min(found[0], 0.0), least), min(max(found[1], 0.0), most)
    return (-high, high) if symmetric else (low, high)


def entropy_range(statistics: TensorStatistics, levels: int, *, symmetric: bool) -> Range:
    """The range whose quantized histogram diverges least from the histogram with its outliers (Kullback and Leibler).

    S. Migacz, "8-bit Inference with TensorRT" (GTC 2017), pages 38 and 39: symmetric, of magnitudes, with a level for zero
    and for each positive integer, over numbers of bins from there on. Asymmetric, which the source leaves open, the same
    divergence of the histogram with its signs and of all levels, for the ends that a search finds.

    The bins next to zero count as their neighbours do, as in NVIDIA's pytorch-quantization (`calib/histogram.py`): zeros, of
    which a ReLU makes most of a tensor, lose nothing in any range, and as a peak they would ask for the narrowest.
    """
    half = statistics.bins // 2
    if symmetric:
        magnitudes = statistics.counts[half:] + statistics.counts[:half][::-1]
        magnitudes[0] = magnitudes[1]
        end = _entropy_end(magnitudes, (levels + 1) // 2)
        return _inside(statistics, (0.0, end * statistics.width), symmetric=True)
    counts = statistics.counts.copy()
    counts[half - 1 : half + 1] = counts[half - 2], counts[half + 1]

    def cost(low: Floats, high: Floats) -> Floats:
        starts = half - np.where(low < 0, np.floor(-low) + 1, 0).astype(np.int64)
        ends = half + np.where(high > 0, np.floor(high) + 1, 0).astype(np.int64)
        return divergences(counts, starts, ends, levels)

    return _search(statistics, cost, symmetric=False)


def _entropy_end(magnitudes: NDArray[np.int64], groups: int) -> float:
    """How many bins from zero diverge least; all of them if there are no more than groups, and nothing to merge."""
    bins = len(magnitudes)
    last = bins - int(np.argmax(magnitudes[::-1] > 0))
    stride = max(last // ENTROPY_WINDOWS, 1)
    ends = np.arange(last, groups - 1, -stride)
    if not len(ends) or not magnitudes.any():
        return float(bins)
    best = int(ends[np.argmin(divergences(magnitudes, np.zeros_like(ends), ends, groups))])
    ends = np.arange(min(best + stride - 1, last), max(best - stride, groups - 1), -1)
    return float(ends[np.argmin(divergences(magnitudes, np.zeros_like(ends), ends, groups))])


def divergences(counts: NDArray[np.int64], starts: NDArray[np.int64], ends: NDArray[np.int64], groups: int) -> Floats:
    """The Kullback-Leibler divergence of quantizing bins `starts[i]` to `ends[i]` (not included) in `groups` levels.

    `counts` has shape `(bins,)`, `starts` and `ends` `(windows,)`. P is the counts of the window, with those outside added to
    its first and last bin. Q spreads the counts of each level, without those outside, over its bins that are not empty. It
    is inf for a window of fewer bins than levels, or of none but empty ones.

    >>> counts = np.array([1, 0, 2, 3, 5, 3, 1, 7])  # the example of page 37: Q = [2, 0, 2, 2, 4, 4, 4, 4]
    >>> divergences(counts, np.array([0]), np.array([8]), 2).round(4).tolist()
    [0.1503]
    """
    rows = max(CHUNK_ELEMENTS // groups, 1)
    sums = _Sums(counts)
    chunks = [slice(start, start + rows) for start in range(0, len(starts), rows)]
    return np.concatenate([sums.divergences(starts[chunk], ends[chunk], groups) for chunk in chunks])


class _Sums:
    """Prefix sums over bins, from which a divergence takes as many steps as there are levels rather than bins."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts.astype(np.float64)
        self._total = float(self._counts.sum())
        self._below = _prefix(self._counts)
        self._occupied = _prefix((self._counts > 0).astype(np.float64))
        self._entropy = _prefix(_x_log_x(self._counts))

    def divergences(self, starts: NDArray[np.int64], ends: NDArray[np.int64], groups: int) -> Floats:
        sizes = ends - starts
        edges = starts[:, None] + np.arange(groups + 1) * sizes[:, None] // groups
        merged = np.diff(self._below[edges], axis=1)
        spread = merged / np.maximum(np.diff(self._occupied[edges], axis=1), 1)  # Q, not normalized
        inside = self._below[ends] - self._below[starts]
        # With P and Q normalized, sum P log(P / Q) = (sum p log p - sum p log q) / total + log(inside / total).
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.log(np.where(merged > 0, spread, 1.0))
            gain = self._entropy[ends] - self._entropy[starts] - (merged * logs).sum(axis=1)
            for place, level, outside in (
                (starts, 0, self._below[starts]),
                (ends - 1, -1, self._total - self._below[ends]),
            ):
                here = self._counts[np.clip(place, 0, len(self._counts) - 1)]
                q_log = np.where(here > 0, logs[:, level], np.log(EMPTY_BIN_VALUES))
                gain += _x_log_x(here + outside) - _x_log_x(here) - outside * q_log
            found = gain / self._total + np.log(inside / self._total)
        return np.where((sizes >= groups) & (inside > 0), found, np.inf)


def mse_range(statistics: TensorStatistics, levels: int, *, symmetric: bool) -> Range:
    """The range of least expected squared error of quantizing, that is of clipping and of rounding.

    The quantizer is that of ONNX: a step of the range over `levels - 1`, zero moved to the nearest integer, values rounded
    to the nearest level and clipped.
    """
    moments = _Moments(statistics)

    def cost(low: Floats, high: Floats) -> Floats:
        rows = max(CHUNK_ELEMENTS // levels, 1)
        chunks = [slice(start, start + rows) for start in range(0, len(low), rows)]
        return np.concatenate([moments.squared_errors(low[chunk], high[chunk], levels) for chunk in chunks])

    return _search(statistics, cost, symmetric=symmetric)


class _Moments:
    """Sums of 1, x and x**2 over all values up to a point, in bins from zero, with values spread evenly inside of a bin."""

    def __init__(self, statistics: TensorStatistics) -> None:
        half = statistics.bins // 2
        self._counts = statistics.counts.astype(np.float64)
        self._left = np.arange(-half, half, dtype=np.float64)
        self._sums = [
            _prefix(self._counts * mean) for mean in (1.0, self._left + 0.5, self._left**2 + self._left + 1 / 3)
        ]

    def squared_errors(self, low: Floats, high: Floats, levels: int) -> Floats:
        """The sum over all values of the squared error of quantizing, for each range `(low[i], high[i])`."""
        step = (high - low) / (levels - 1)
        zero = np.round(-low / step)
        # Values nearest to a level lie between two midpoints; beyond the last level, they are clipped to it.
        levels_at = (np.arange(levels) - zero[:, None]) * step[:, None]
        midpoints = levels_at[:, 1:] - step[:, None] / 2
        half = len(self._left) // 2
        ends = np.full((len(low), 1), float(half))
        zeroth, first, second = self._up_to(np.concatenate([-ends, midpoints, ends], axis=1))
        errors = (
            np.diff(second, axis=1) - 2 * levels_at * np.diff(first, axis=1) + levels_at**2 * np.diff(zeroth, axis=1)
        )
        return np.asarray(errors.sum(axis=1))

    def _up_to(self, points: Floats) -> list[Floats]:
        half = len(self._left) // 2
        points = np.clip(points, -half, half)
        bins = np.minimum(np.floor(points).astype(np.intp) + half, len(self._left) - 1)
        left, part = self._left[bins], points - self._left[bins]
        zeroth = self._counts[bins] * part
        inside = (zeroth, zeroth * (left + part / 2), zeroth * (left * (left + part) + part**2 / 3))
        return [sums[bins] + more for sums, more in zip(self._sums, inside, strict=True)]


def _search(statistics: TensorStatistics, cost: Cost, *, symmetric: bool) -> Range:
    """The range of least cost: of a coarse grid over one or both ends, then of finer ones around the best.

    `cost` takes ends in bins. Of equal costs the widest range wins.
    """
    least, most = (end / statistics.width for end in minmax_range(statistics, symmetric=symmetric))
    if least == most:
        return 0.0, 0.0
    ratio = COARSE_TWO_ENDS if least and most and not symmetric else COARSE_ONE_END
    coarse = ratio ** -np.arange(0.0, np.log(1 / SMALLEST_SHARE) / np.log(ratio) + 1)
    whole = np.ones(1)
    low_shares, high_shares = coarse if least and not symmetric else whole, coarse if most else whole
    for _ in range(1 + FINE_ROUNDS):
        lows, highs = (grid.ravel() for grid in np.meshgrid(low_shares, high_shares, indexing="ij"))
        best = int(np.argmin(cost(-highs * most if symmetric else lows * least, highs * most)))
        low_share, high_share = lows[best], highs[best]
        around = ratio ** np.linspace(1, -1, 2 * FINE_STEPS + 1)
        ratio **= 1 / FINE_STEPS
        low_shares, high_shares = (
            np.minimum(share * around, 1.0) if len(shares) > 1 else whole
            for share, shares in ((low_share, low_shares), (high_share, high_shares))
        )
    low, high = low_share * least * statistics.width, high_share * most * statistics.width
    return (-float(high), float(high)) if symmetric else (float(low), float(high))


def _prefix(values: Floats) -> Floats:
    """The sums of the first 0, 1, 2, ... values."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _x_log_x(values: Floats) -> Floats:
    return values * np.log(np.where(values > 0, values, 1.0))
