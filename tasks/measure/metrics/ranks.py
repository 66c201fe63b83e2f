"""Ranks of any selection of samples by counting: a resample need not be sorted again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def order_codes(values: NDArray[Any]) -> NDArray[np.float64]:
    """Each column's order as whole numbers from 0, float64 `(n, k)`; ties share one, NaN makes its column NaN.

    They are twice the midrank less 2, so that those of two models can be held against each other.

    >>> order_codes(np.array([[0.3], [0.1], [0.3]])).T
    array([[3., 0., 3.]])
    """
    ranks = stats.rankdata(values.astype(np.float64), axis=0, nan_policy="propagate")
    return np.asarray(2 * ranks - 2, np.float64)


def midranks(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1 of a selection of codes, shape `(n,)`; ties share the mean of theirs.

    >>> midranks(np.array([3.0, 3.0, 0.0]))
    array([2.5, 2.5, 1. ])
    """
    whole = codes.astype(np.intp)
    counts = np.bincount(whole)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[whole], np.float64)
