"""Clipping ranges of a tensor, computed from its calibration statistics.

A range `(low, high)` holds the real values of the least and the greatest integer; values outside are clipped. It contains 0,
which every kernel must represent exactly. A symmetric range is `(-high, high)`. The range of an all-zero tensor is
`(0.0, 0.0)`. Values are assumed to be spread evenly within a histogram bin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.ptq.calibrate.statistics import TensorStatistics
from validators.errors import CandidateRefused

Range = tuple[float, float]
Floats = NDArray[np.float64]
# Cost of each range, given the arrays of low and high ends in bins.
Cost = Callable[[Floats, Floats], Floats]

# Search for the ends of a range. An end starts at the extreme and shrinks by a `COARSE` factor down to a 256th of it, which
# covers outliers of that size. Then `FINE_ROUNDS` finer grids, of `FINE_STEPS` to each side, surround the best.
COARSE_ONE_END = 2 ** (1 / 8)
COARSE_TWO_ENDS = 2 ** (1 / 2)
SMALLEST_SHARE = 1 / 256
FINE_STEPS = 4
FINE_ROUNDS = 3

# Window ends that the symmetric entropy method tries, before all ends next to the best.
ENTROPY_WINDOWS = 1024

# Count that Q gets in an empty bin to which P's outliers were added. With zero the divergence would be infinite, and one far
# outlier would forbid every range but the whole. The value is that of `smooth_distribution` in ONNX Runtime and MXNet.
EMPTY_BIN_VALUES = 1e-4

# Elements per array of one step, so that the arrays fit the cache for any number of levels.
CHUNK_ELEMENTS = 1 << 18


def find_range(statistics: TensorStatistics, method: str, *, levels: int, symmetric: bool) -> Range:
    """Return the clipping range that a method finds for a quantizer of `levels` integers, such as 255 (-127 to 127) or 256.

    Raises:
        CandidateRefused: `invalid`: there is no finite value.
        ValueError: fewer than 3 levels.

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
    return METHODS[method](statistics, levels, symmetric=symmetric)


def minmax_range(statistics: TensorStatistics, _levels: int = 0, *, symmetric: bool) -> Range:
    """Return the range from the least to the greatest value, widened to contain 0."""
    if symmetric:
        return -statistics.largest, statistics.largest
    return min(statistics.minimum, 0.0), max(statistics.maximum, 0.0)


def percentile_range(statistics: TensorStatistics, _levels: int = 0, *, percent: float, symmetric: bool) -> Range:
    """Return the range that clips `100 - percent` percent of the values.

    A symmetric range keeps `percent` of the magnitudes. An asymmetric one clips half of the rest at either end.

    Raises:
        ValueError: `percent` outside 50 to 100.
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
    """Return the position, in bins from the first, below which a share of the counts lies."""
    cumulated = np.concatenate([[0], np.cumsum(counts)])
    wanted = share * cumulated[-1]
    place = min(max(int(np.searchsorted(cumulated, wanted)) - 1, 0), len(counts) - 1)
    return float(place + (wanted - cumulated[place]) / max(counts[place], 1))


def _inside(statistics: TensorStatistics, found: Range, *, symmetric: bool) -> Range:
    """Return the range cut to the values that occur, and containing 0."""
    least, most = minmax_range(statistics, symmetric=symmetric)
    low, high = max(min(found[0], 0.0), least), min(max(found[1], 0.0), most)
    return (-high, high) if symmetric else (low, high)


def entropy_range(statistics: TensorStatistics, levels: int, *, symmetric: bool) -> Range:
    """Return the range of least Kullback-Leibler divergence between the histogram with outliers and its quantization.

    Symmetric ranges follow S. Migacz, "8-bit Inference with TensorRT" (GTC 2017), pages 38 and 39: a histogram of
    magnitudes, one level for zero and for each positive integer, windows of at least that many bins. The source leaves
    asymmetric ranges open: they take the same divergence of the signed histogram over all levels, and search both ends.

    The bins next to zero get the counts of their neighbours, as in NVIDIA's pytorch-quantization (`calib/histogram.py`).
    After a ReLU most values are zeros. They are exact in any range, but as a peak they would favour the narrowest.
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
    """Return the window end, in bins from zero, of least divergence; all bins if `groups` levels need no merging."""
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
    """Return the Kullback-Leibler divergence of each window `starts[i]:ends[i]`, quantized to `groups` levels.

    `counts` is int64 `(bins,)`, `starts` and `ends` are int64 `(windows,)`, the result is float64 `(windows,)`. P is the
    counts of the window, with the outside counts added to its first and last bin. Q spreads the counts of each level,
    without the outside ones, evenly over its non-empty bins. The divergence is inf for a window with fewer bins than
    levels, or with empty bins only.

    >>> counts = np.array([1, 0, 2, 3, 5, 3, 1, 7])  # the example of page 37: Q = [2, 0, 2, 2, 4, 4, 4, 4]
    >>> divergences(counts, np.array([0]), np.array([8]), 2).round(4).tolist()
    [0.1503]
    """
    rows = max(CHUNK_ELEMENTS // groups, 1)
    sums = _Sums(counts)
    chunks = [slice(start, start + rows) for start in range(0, len(starts), rows)]
    return np.concatenate([sums.divergences(starts[chunk], ends[chunk], groups) for chunk in chunks])


class _Sums:
    """Prefix sums over bins, with which a divergence takes one step per level rather than per bin."""

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
    """Return the range of least mean squared quantization error, clipping and rounding together.

    The quantizer is that of ONNX: the scale is the range over `levels - 1`, the zero point is rounded to an integer, and
    values are rounded to the nearest level and clipped.
    """
    moments = _Moments(statistics)

    def cost(low: Floats, high: Floats) -> Floats:
        rows = max(CHUNK_ELEMENTS // levels, 1)
        chunks = [slice(start, start + rows) for start in range(0, len(low), rows)]
        return np.concatenate([moments.squared_errors(low[chunk], high[chunk], levels) for chunk in chunks])

    return _search(statistics, cost, symmetric=symmetric)


class _Moments:
    """Sums of 1, x and x**2 over all values up to a point, in bins from zero, with values spread evenly within a bin."""

    def __init__(self, statistics: TensorStatistics) -> None:
        half = statistics.bins // 2
        self._counts = statistics.counts.astype(np.float64)
        self._left = np.arange(-half, half, dtype=np.float64)
        self._sums = [
            _prefix(self._counts * mean) for mean in (1.0, self._left + 0.5, self._left**2 + self._left + 1 / 3)
        ]

    def squared_errors(self, low: Floats, high: Floats, levels: int) -> Floats:
        """Return the total squared quantization error of each range `(low[i], high[i])`, float64 `(ranges,)`."""
        step = (high - low) / (levels - 1)
        zero = np.round(-low / step)
        # The values nearest to a level lie between two midpoints. Values beyond the last level are clipped to it.
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
    """Return the range of least cost on a coarse grid over one or both ends, refined by finer grids around the best.

    `cost` takes the ends in bins. Of equal costs the widest range wins.
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
    """Return the sums of the first 0, 1, 2, ... values."""
    return np.concatenate([np.zeros(1), np.cumsum(values)])


def _x_log_x(values: Floats) -> Floats:
    return values * np.log(np.where(values > 0, values, 1.0))


# By the words of `validators.job.methods.RANGES`: from statistics and the number of levels.
METHODS: Mapping[str, Callable[..., Range]] = {
    "mse": mse_range,
    "minmax": minmax_range,
    "entropy": entropy_range,
    "percentile": partial(percentile_range, percent=99.99),
    "p99.9": partial(percentile_range, percent=99.9),
    "p99.999": partial(percentile_range, percent=99.999),
}
