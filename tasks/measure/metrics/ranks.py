"""Ranks of any selection of samples by counting, so that a resample need not be sorted again."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats


def order_codes(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return each column's order as whole numbers from 0, float64 `(n, k)`; ties share a code, NaN makes its column NaN.

    `values` is `(n, k)`. A code is twice the midrank minus 2, so that the codes of two models are comparable.

    >>> order_codes(np.array([[0.3], [0.1], [0.3]])).T
    array([[3., 0., 3.]])
    """
    ranks = stats.rankdata(values.astype(np.float64), axis=0, nan_policy="propagate")
    return np.asarray(2 * ranks - 2, np.float64)


def midranks(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks, from 1, of a selection of codes; both float64 `(n,)`. Ties share their mean rank.

    >>> midranks(np.array([3.0, 3.0, 0.0]))
    array([2.5, 2.5, 1. ])
    """
    whole = codes.astype(np.intp)
    counts = np.bincount(whole)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[whole], np.float64)
