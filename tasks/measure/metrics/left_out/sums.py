"""Ratios of sums without each group of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ratios_without(rows: NDArray[np.float64], group_of_row: NDArray[np.intp], groups: int) -> NDArray[np.float64]:
    """Return the mean over columns of the ratio of sums (`mean_of_ratios`) without each group, `(groups,)`.

    `rows` are numerators, then denominators, `(n, 2 k)`. Sums of whole numbers are exact. NaN where no column counts.

    >>> ratios_without(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), np.array([0, 0, 1]), 2)
    array([0.5       , 0.66666667])
    """
    order = np.argsort(group_of_row, kind="stable")
    present, starts = np.unique(group_of_row[order], return_index=True)
    is_left_out = present < groups
    sums = np.zeros((groups, rows.shape[1]))
    sums[present[is_left_out]] = np.add.reduceat(rows[order], starts, axis=0)[is_left_out]
    above, below = np.split(rows.sum(axis=0) - sums, 2, axis=1)
    counted = below != 0
    ratios = np.where(counted, above / np.where(counted, below, 1.0), 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(ratios.sum(axis=1) / counted.sum(axis=1), np.float64)
