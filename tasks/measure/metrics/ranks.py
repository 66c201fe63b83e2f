"""Ranks of any selection of samples by counting, so that a resample need not be sorted again."""

from __future__ import annotations

from bisect import bisect_right
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


def moved_rows(before: NDArray[np.float64], after: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return which rows left the order of the others, bool `(n,)`: those outside of a longest subset that kept its order.

    Both codes are `(n,)`. A row that moves shifts the codes of all that it passes; these did not move.

    >>> moved_rows(np.array([0.0, 2, 4, 6]), np.array([6.0, 0, 2, 4]))
    array([ True, False, False, False])
    """
    rows = np.lexsort((after, before))
    # Patience sorting: the smallest end of a kept subset of each size, its row, and the row before each.
    ends: list[float] = []
    last: list[int] = []
    earlier = np.full(len(rows), -1)
    for row, code in zip(rows.tolist(), after[rows].tolist(), strict=True):
        size = bisect_right(ends, code)
        ends[size : size + 1], last[size : size + 1] = [code], [row]
        earlier[row] = last[size - 1] if size else -1
    moved = np.ones(len(rows), np.bool_)
    row = last[-1] if last else -1
    while row >= 0:
        moved[row] = False
        row = int(earlier[row])
    return moved


def midranks(codes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ranks, from 1, of a selection of codes; both float64 `(n,)`. Ties share their mean rank.

    >>> midranks(np.array([3.0, 3.0, 0.0]))
    array([2.5, 2.5, 1. ])
    """
    whole = codes.astype(np.intp)
    counts = np.bincount(whole)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[whole], np.float64)
