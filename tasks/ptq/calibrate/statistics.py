"""Calibration statistics of a float tensor: extremes, counts and a histogram, exact in any order of the values.

Bins are 2**exponent wide and meet at zero. The width is the least at which every value fits, so that the histogram depends
on the values alone, not on their order or batches. A value that does not fit doubles the width: pairs of neighbouring bins
become one bin, without rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import CandidateRefused

# The largest magnitude lies in the outer half of its side, 2,048 to 4,096 bins from zero. The range methods therefore see
# at least the 2,048 magnitude bins of S. Migacz, "8-bit Inference with TensorRT" (GTC 2017), and a bin is at most a
# sixteenth of the scale of symmetric 8-bit integers. 64 KB per tensor.
DEFAULT_BINS = 8192
MIN_BINS = 2048

# Exponent of an empty histogram, and the least allowed: the reciprocal of the width is still a float32. Magnitudes below
# 2**-126 * bins / 2 get fewer bins; no quantizer has a scale for them.
MIN_EXPONENT = -126

# Values that `add` processes at once. Beside the values themselves it takes 12 bytes for each of them.
BLOCK_VALUES = 1 << 18

FORMAT_VERSION = 1


@dataclass(frozen=True, eq=False)
class TensorStatistics:
    """Statistics of one tensor's values.

    `minimum` and `maximum` are those of the finite values (inf and -inf if there are none). `finite` and `non_finite` count
    the values. `counts` is int64 `(bins,)`, read-only. With `half = bins / 2` and `width = 2**exponent`, bin `half + k` counts
    the values in `[k * width, (k + 1) * width)`; bin `half - 1 - k` counts their mirror image, without zero. -0.0 counts as
    0.0.
    """

    minimum: float
    maximum: float
    finite: int
    non_finite: int
    exponent: int
    counts: NDArray[np.int64]

    @property
    def bins(self) -> int:
        """Number of bins of both sides together."""
        return len(self.counts)

    @property
    def width(self) -> float:
        """Width of a bin, in units of the tensor."""
        return math.ldexp(1.0, self.exponent)

    @property
    def largest(self) -> float:
        """Largest magnitude, 0.0 if there is no finite value."""
        return max(-self.minimum, self.maximum, 0.0)


def empty(bins: int = DEFAULT_BINS) -> TensorStatistics:
    """Return the statistics of an empty tensor; `bins` is a power of two, at least 2,048.

    Raises:
        ValueError: another number of bins.
    """
    if bins < MIN_BINS or bins & (bins - 1):
        raise ValueError(f"{bins} bins: expected a power of two, at least {MIN_BINS}")
    return TensorStatistics(math.inf, -math.inf, 0, 0, MIN_EXPONENT, _frozen(np.zeros(bins, np.int64)))


def add(statistics: TensorStatistics, values: NDArray[Any]) -> TensorStatistics:
    """Return the statistics with `values` added: float16, float32 or float64 of any shape.

    `values` is not retained. A non-contiguous array is copied.

    Raises:
        TypeError: the dtype of `values` is another.

    >>> some = add(empty(), np.array([0.5, -1.0, np.nan], np.float32))
    >>> some.minimum, some.maximum, some.finite, some.non_finite
    (-1.0, 0.5, 2, 1)
    """
    if values.dtype not in (np.float16, np.float32, np.float64):
        raise TypeError(f"values of {values.dtype}: expected float16, float32 or float64")
    flat = values.reshape(-1)
    for start in range(0, flat.size, BLOCK_VALUES):
        statistics = _add_block(statistics, flat[start : start + BLOCK_VALUES])
    return statistics


def _add_block(statistics: TensorStatistics, block: NDArray[Any]) -> TensorStatistics:
    size = block.size
    if block.dtype == np.float16:
        block = block.astype(np.float32)  # scaling in float16 would overflow
    low, high = float(block.min()), float(block.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        block = block[np.isfinite(block)]
        low, high = float(block.min(initial=np.inf)), float(block.max(initial=-np.inf))
    exponent = _exponent(max(-low, high, 0.0), statistics.bins)
    counts = _count(block, max(exponent, statistics.exponent), statistics.bins)
    counts += _widened(statistics, max(exponent, statistics.exponent))
    return TensorStatistics(
        min(statistics.minimum, low + 0.0),  # -0.0 and 0.0 must give the same bits
        max(statistics.maximum, high + 0.0),
        statistics.finite + block.size,
        statistics.non_finite + size - block.size,
        max(exponent, statistics.exponent),
        _frozen(counts),
    )


def _exponent(largest: float, bins: int) -> int:
    """Return the least exponent at which `largest < bins / 2 * 2**exponent`."""
    return max(math.frexp(largest)[1] - (bins.bit_length() - 2), MIN_EXPONENT) if largest else MIN_EXPONENT


def _count(values: NDArray[Any], exponent: int, bins: int) -> NDArray[np.int64]:
    """Return the number of finite values in each bin, int64 `(bins,)`.

    Multiplying by a power of two rounds no value except tiny ones that underflow, and those truncate to 0 correctly.
    (`floor` would put an underflowed negative value on the positive side.) Truncation merges the two bins next to zero; the
    number of negative values separates them.
    """
    half = bins // 2
    scaled = values * values.dtype.type(math.ldexp(1.0, -exponent))
    index = scaled.astype(np.intp)
    index += half
    truncated = np.bincount(index, minlength=bins)
    counts = truncated.copy()
    counts[: half - 1] = truncated[1:half]
    counts[half - 1] = np.count_nonzero(values < 0) - counts[: half - 1].sum()
    counts[half] -= counts[half - 1]
    return counts


def _widened(statistics: TensorStatistics, exponent: int) -> NDArray[np.int64]:
    """Return the counts in bins of width `2**exponent`, which is at least their present width."""
    bins = statistics.bins
    # After that many doublings all values of one side are in the bin next to zero.
    doublings = min(exponent - statistics.exponent, bins.bit_length() - 2)
    if not doublings:
        return statistics.counts
    summed = statistics.counts.reshape(-1, 1 << doublings).sum(axis=1)
    outer = (bins - len(summed)) // 2
    return np.pad(summed, outer)


def _frozen(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    counts.flags.writeable = False
    return counts


def save_statistics(path: Path, statistics: Mapping[str, TensorStatistics]) -> None:
    """Write the statistics of a model's tensors, all with the same number of bins, to one .npz file.

    The file has the int64 scalar `version`; the arrays `tensors` (text), `minimum` and `maximum` (float64), `finite`,
    `non_finite` and `exponent` (int64), all of shape `(tensors,)`; and `counts` (int64 `(tensors, bins)`).
    """
    records = list(statistics.values())
    counts = np.stack([record.counts for record in records]) if records else np.zeros((0, DEFAULT_BINS), np.int64)
    with path.open("wb") as stream:
        np.savez_compressed(
            stream,
            version=np.int64(FORMAT_VERSION),
            tensors=np.array(list(statistics), np.str_),
            minimum=np.array([record.minimum for record in records], np.float64),
            maximum=np.array([record.maximum for record in records], np.float64),
            finite=np.array([record.finite for record in records], np.int64),
            non_finite=np.array([record.non_finite for record in records], np.int64),
            exponent=np.array([record.exponent for record in records], np.int64),
            counts=counts,
        )


def load_statistics(path: Path) -> dict[str, TensorStatistics]:
    """Read the statistics of a file that `save_statistics` wrote, by tensor name.

    Raises:
        CandidateRefused: `invalid`: the file is damaged, has another version, or its arrays contradict each other.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except OSError:
        raise  # a disk or path error says nothing about the content
    except Exception as error:  # numpy, zipfile and zlib raise a dozen unrelated classes on a damaged file
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _refuse(path, f"cannot be read: {reason}") from error
    version = arrays.pop("version", np.array(0)).tolist()
    if version != FORMAT_VERSION:
        raise _refuse(path, f"is of version {version!r}")
    _check(path, arrays)
    return {
        str(name): TensorStatistics(
            float(arrays["minimum"][place]),
            float(arrays["maximum"][place]),
            int(arrays["finite"][place]),
            int(arrays["non_finite"][place]),
            int(arrays["exponent"][place]),
            _frozen(arrays["counts"][place].copy()),
        )
        for place, name in enumerate(arrays["tensors"])
    }


def _check(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Refuse arrays that are missing, have another dtype or shape, or contradict each other."""
    kinds = {
        "tensors": "U",
        "minimum": "f",
        "maximum": "f",
        "finite": "i",
        "non_finite": "i",
        "exponent": "i",
        "counts": "i",
    }
    if set(arrays) != set(kinds):
        raise _refuse(path, f"has the arrays {sorted(arrays)}")
    rows = len(np.atleast_1d(arrays["tensors"]))
    for name, kind in kinds.items():
        array = arrays[name]
        shape = (rows, *array.shape[1:2]) if name == "counts" else (rows,)
        if array.dtype.kind != kind or array.shape != shape or array.ndim != len(shape):
            raise _refuse(path, f"has {name!r} as {array.dtype} of shape {array.shape} for {rows} tensors")
    if len(set(arrays["tensors"].tolist())) != rows:
        raise _refuse(path, "names a tensor twice")
    counts, finite = arrays["counts"], arrays["finite"]
    if counts.ndim != 2 or counts.shape[1] < MIN_BINS or counts.shape[1] & (counts.shape[1] - 1):
        raise _refuse(path, f"has counts of shape {counts.shape}")
    if (counts < 0).any() or (arrays["non_finite"] < 0).any() or (counts.sum(axis=1) != finite).any():
        raise _refuse(path, "has counts that do not add up")
    bounds = zip(
        arrays["minimum"].tolist(), arrays["maximum"].tolist(), arrays["exponent"].tolist(), finite, strict=True
    )
    for low, high, exponent, values in bounds:
        sound = -math.inf < low <= high < math.inf if values else (low, high) == (math.inf, -math.inf)
        if not sound or exponent != _exponent(max(-low, high, 0.0), counts.shape[1]):
            raise _refuse(path, f"has bins of 2**{exponent} for values from {low} to {high}")


def _refuse(path: Path, what: str) -> CandidateRefused:
    return CandidateRefused(
        kind="invalid",
        found=f"calibration statistics {path.name}: the file {what}",
        expected=f"a file of version {FORMAT_VERSION} as quantgate writes it",
        fix="remove the file, so that calibration runs again",
    )
