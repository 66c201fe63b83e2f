"""Samples as numbers: a few statistics of each sample and input, read in blocks so that no large array is copied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.samples.datasets import Arrays
from validators.samples.drift import Vector
from validators.samples.input_kinds import kind_of

# Values held as float64 at a time: 1 MB, which a core's cache holds. Blocks four times as large took four times as long.
BLOCK_VALUES = 2**17
# Two values of a statistic that differ by less than this fraction of the input's usual size are rounding, no difference.
RESOLUTION = 1e-5
MAGNITUDE_STATISTICS = ("mean", "std", "min", "max", "share of zeros")
COUNT_STATISTICS = ("mean", "share of zeros", "length")


def measure_samples(inputs: Arrays, rows: NDArray[np.intp] | None = None) -> dict[str, Vector]:
    """Statistics of each sample by `input.statistic`, as float64 of shape `(n,)`, or `(len(rows),)` for some rows.

    Magnitudes (`validators.samples.input_kinds`): mean, std (of the population), min, max, share of zeros. Indices and
    masks: mean, share of zeros, and length, the number of entries that are not zero. Inputs of other kinds, or without
    entries, have none. Where a sample holds NaN or Inf, or a statistic overflows, its values are NaN.

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
            columns = np.concatenate([measure(block) for block in _blocks(array, rows)], axis=1)
            table |= {f"{name}.{statistic}": column for statistic, column in zip(names, columns, strict=True)}
    return table


def count_nonfinite(array: NDArray[Any]) -> NDArray[np.int64]:
    """How many values of each sample are NaN or Inf; int64 of shape `(n,)`."""
    return np.concatenate([(~np.isfinite(block)).sum(axis=1, dtype=np.int64) for block in _blocks(array, None)])


def differs_from_first(array: NDArray[Any]) -> NDArray[np.int64]:
    """1 for each sample that is not equal to the first, else 0; int64 of shape `(n,)`.

    >>> differs_from_first(np.array([[1, 2], [1, 2], [2, 2]]))
    array([0, 0, 1])
    """
    first = array[:1].reshape(1, -1)
    return np.concatenate([(block != first).any(axis=1).astype(np.int64) for block in _blocks(array, None)])


def align(
    calibration: Mapping[str, Vector], reference: Mapping[str, Vector]
) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Both tables with the statistics of magnitudes rounded to one grid, about 1e-5 of the input's size in the reference.

    Many inputs are normalized sample by sample, so that their mean is zero and their std one but for rounding. Unrounded,
    files written by two programs would then differ in every sample, by nothing that a model could see. The size of an input
    is the median over samples of its largest magnitude, which a few outliers do not move.
    """
    rounded = dict(calibration), dict(reference)
    for name in calibration:
        stem, _, statistic = name.rpartition(".")
        if f"{stem}.std" not in reference or statistic == "share of zeros":
            continue
        sizes = np.maximum(np.abs(reference[f"{stem}.min"]), np.abs(reference[f"{stem}.max"]))
        sizes = sizes[np.isfinite(sizes)]
        if sizes.size and (size := float(np.median(sizes))) > 0:
            # A power of two, so that round values such as 1.0 stay what they are.
            step = 2.0 ** np.floor(np.log2(size * RESOLUTION))
            for table in rounded:
                table[name] = np.round(table[name] / step) * step
    return rounded


def _blocks(array: NDArray[Any], rows: NDArray[np.intp] | None) -> Iterator[NDArray[Any]]:
    """Blocks of samples, each of shape `(k, values)`: views of `array`, or copies of the rows that are asked for."""
    count = len(array) if rows is None else len(rows)
    size = max(1, BLOCK_VALUES // max(1, array[0].size))
    for start in range(0, count, size):
        block = array[start : start + size] if rows is None else array[rows[start : start + size]]
        yield block.reshape(len(block), -1)


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
