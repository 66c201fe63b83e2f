"""Statistics of each sample and input, computed in blocks so that no large array is copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from validators.samples.datasets import Arrays
from validators.samples.drift import Vector

# Values per block: 1 MB as float64, which fits into a core's cache. Blocks four times as large took four times as long.
BLOCK_VALUES = 2**17
# Values of a statistic that differ by less than this fraction of the input's usual size differ by rounding only.
RESOLUTION = 1e-5
MAGNITUDE_STATISTICS = ("mean", "std", "min", "max", "share of zeros")
COUNT_STATISTICS = ("mean", "share of zeros", "length")

# Kind of an input, guessed from dtype and values: it decides which statistics describe a sample.
Kind = Literal["magnitude", "index", "mask", "other"]


def kind_of(array: NDArray[Any]) -> Kind:
    """Return the kind of an input (shape `(n, ...)`, any dtype).

    - `magnitude`: floats, and 8-bit integers (pixels or sound): near values have a similar meaning.
    - `mask`: booleans, and integers that are all 0 or 1: they mark the entries of another input that count.
    - `index`: other integers, such as tokens or categories: 0 is padding, and the distance of values means nothing.
    - `other`: values that no model computes with, such as strings.

    >>> import numpy as np
    >>> kind_of(np.array([[3, 0]], np.uint8)), kind_of(np.array([[3, 0]])), kind_of(np.array([[1, 0]]))
    ('magnitude', 'index', 'mask')
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" or (kind in "iu" and size == 1):
        return "magnitude"
    if kind == "b":
        return "mask"
    if kind in "iu":
        return "mask" if not array.size or (array.min() >= 0 and array.max() <= 1) else "index"
    return "other"


def measure_samples(inputs: Arrays, rows: NDArray[np.intp] | None = None) -> dict[str, Vector]:
    """Return statistics of each sample by `input.statistic`: float64 of shape `(n,)`, or `(len(rows),)` if `rows` is given.

    Each input has shape `(n, ...)`. Magnitudes (`kind_of`) have mean, std (of the population), min, max
    and share of zeros. Indices and masks have mean, share of zeros and length, the number of nonzero entries. Inputs of other
    kinds, or without entries, have none. If a sample holds NaN or Inf, or a statistic overflows, its values are NaN.

    >>> measure_samples({"ids": np.array([[5, 7, 0, 0]])})
    {'ids.mean': array([3.]), 'ids.share of zeros': array([0.5]), 'ids.length': array([2.])}
    """
    table: dict[str, Vector] = {}
    for name, array in inputs.items():
        kind = kind_of(array)
        if kind != "other" and array[0].size:
            magnitude = kind == "magnitude"
            names = MAGNITUDE_STATISTICS if magnitude else COUNT_STATISTICS
            measure = _measure_magnitudes if magnitude else _measure_counts
            columns = np.concatenate([measure(block) for _, block in blocks_of(array, rows)], axis=1)
            table |= {f"{name}.{statistic}": column for statistic, column in zip(names, columns, strict=True)}
    return table


def count_nonfinite(array: NDArray[Any]) -> NDArray[np.int64]:
    """Count the NaN and Inf values of each sample of an array of shape `(n, ...)`; int64 of shape `(n,)`."""
    return np.concatenate([(~np.isfinite(block)).sum(axis=1, dtype=np.int64) for _, block in blocks_of(array)])


def differs_from_first(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return 1 for each sample of an array of shape `(n, ...)` that differs from the first, else 0; int64 of shape `(n,)`.

    >>> differs_from_first(np.array([[1, 2], [1, 2], [2, 2]]))
    array([0, 0, 1])
    """
    first = array[:1].reshape(1, -1)
    return np.concatenate([(block != first).any(axis=1).astype(np.int64) for _, block in blocks_of(array)])


def align(
    calibration: Mapping[str, Vector], reference: Mapping[str, Vector]
) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Round the statistics of magnitudes in both tables to one grid, about 1e-5 of the input's size in the reference.

    The tables map a statistic to a vector of shape `(n,)` and `(m,)`. Many inputs are normalized sample by sample: their mean
    is zero and their std one, up to rounding. Without the grid, files written by two programs would differ in every sample, too
    little for a model to notice. The size of an input is the median over samples of its largest magnitude, which a few outliers
    do not move.
    """
    rounded = dict(calibration), dict(reference)
    for name in calibration:
        stem, _, statistic = name.rpartition(".")
        if f"{stem}.std" not in reference or statistic == "share of zeros":
            continue
        sizes = np.maximum(np.abs(reference[f"{stem}.min"]), np.abs(reference[f"{stem}.max"]))
        sizes = sizes[np.isfinite(sizes)]
        if sizes.size and (size := float(np.median(sizes))) > 0:
            # A power of two keeps round values such as 1.0 exact.
            step = 2.0 ** np.floor(np.log2(size * RESOLUTION))
            for table in rounded:
                table[name] = np.round(table[name] / step) * step
    return rounded


def blocks_of(
    array: NDArray[Any], rows: NDArray[np.intp] | None = None, values: int = BLOCK_VALUES
) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Yield blocks of samples, shape `(k, entries)`, of about so many values, each with its slice of `rows` (None: all)."""
    entries = math.prod(array.shape[1:])
    size = max(1, values // max(1, entries))
    for start in range(0, len(array) if rows is None else len(rows), size):
        part = slice(start, start + size)
        block = array[part if rows is None else rows[part]]
        yield part, block.reshape(len(block), entries)


def _measure_magnitudes(block: NDArray[Any]) -> Vector:
    with np.errstate(invalid="ignore", over="ignore"):
        values = block.astype(np.float64)
        columns = np.stack(
            [
                values.mean(axis=1),
                values.std(axis=1),
                values.min(axis=1),
                values.max(axis=1),
                (values == 0).mean(axis=1),
            ]
        )
    columns[:, ~np.isfinite(columns).all(axis=0)] = np.nan
    return columns


def _measure_counts(block: NDArray[Any]) -> Vector:
    used = np.count_nonzero(block, axis=1)
    return np.stack([block.mean(axis=1, dtype=np.float64), 1 - used / block.shape[1], used.astype(np.float64)])
