"""Comparison of the outputs of two implementations of one model, with NaN and infinities accounted for."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def largest_difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest absolute difference of two arrays; Inf if shapes differ or only one side has a NaN or an infinity.

    NaN at the same position on both sides counts as equal, and so does an infinity of the same sign. Text gives 0 if equal,
    else Inf.

    >>> largest_difference(np.array([1.0, np.nan]), np.array([1.5, np.nan]))
    0.5
    >>> largest_difference(np.array([1.0, 2.0]), np.array([1.0, np.nan]))
    inf
    """
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return 0.0 if np.array_equal(one, other) else float("inf")
    first, second = one.astype(np.float64), other.astype(np.float64)
    unequal = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    with np.errstate(invalid="ignore"):
        differences = np.abs(first[unequal] - second[unequal])
    return float(np.where(np.isnan(differences), np.inf, differences).max(initial=0.0))


def largest_magnitude(values: NDArray[Any]) -> float:
    """Return the largest finite absolute value of an array; 0 if there is none, and for text.

    >>> largest_magnitude(np.array([-3.0, np.nan, -np.inf]))
    3.0
    """
    if values.dtype.kind not in "fiub":
        return 0.0
    numbers = values.astype(np.float64)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))


def relative_distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the root mean square of the difference of two float arrays of equal shape, as a share of the first one's.

    NaN and infinities on one side alone make it Inf.

    >>> relative_distance(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    0.1
    """
    first, second = one.astype(np.float64), other.astype(np.float64)
    unequal = ~((first == second) | (np.isnan(first) & np.isnan(second)))
    with np.errstate(invalid="ignore"):
        apart = np.sqrt(np.square(first - second)[unequal].sum())
    whole = np.sqrt(np.square(first[np.isfinite(first)]).sum())
    if not apart:
        return 0.0
    return float(apart / whole) if np.isfinite(apart) and whole else float("inf")
