"""Comparison of the outputs of two implementations of one model, in which NaN hides nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def largest_difference(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the largest absolute difference; Inf where shapes differ or only one side has NaN or that infinity.

    NaN in the same places on both sides is agreement, and so is an infinity of the same sign.

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
    with np.errstate(invalid="ignore"):  # of infinities with the same sign, which are equal and left out
        differences = np.abs(first[unequal] - second[unequal])
    return float(np.where(np.isnan(differences), np.inf, differences).max(initial=0.0))


def largest_magnitude(values: NDArray[Any]) -> float:
    """Return the largest absolute value of those that are finite; 0 where none is, and for text.

    >>> largest_magnitude(np.array([-3.0, np.nan, -np.inf]))
    3.0
    """
    if values.dtype.kind not in "fiub":
        return 0.0
    numbers = values.astype(np.float64)
    return float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
