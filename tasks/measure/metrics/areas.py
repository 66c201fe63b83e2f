"""Order of scores by whole numbers, and areas under the ROC and precision-recall curves without each group of rows.

Order codes rank any selection of samples by counting, so that a resample need not be sorted again. For areas, `positive` `(n,)`
is True for rows of the class, `codes` `(n,)` orders the scores, and `group_of_row` `(n,)` numbers the groups. Rows of a group
from `groups` on are never left out. Results are `(groups,)`, NaN where no row of one kind is left.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Vector = NDArray[np.float64]
Groups = NDArray[np.intp]
Mask = NDArray[np.bool_]
# Cells (groups times thresholds) in memory at once: four arrays of this size stay in the processor's cache.
CELLS_AT_ONCE = 2**16


def group_slices(groups: int, width: int) -> list[range]:
    """Return consecutive ranges of groups of at most `CELLS_AT_ONCE` cells, `width` cells a group."""
    size = max(1, CELLS_AT_ONCE // max(1, width))
    return [range(start, min(start + size, groups)) for start in range(0, groups, size)]


def counts_up_to(place: Groups, group: Groups, chosen: range, width: int) -> NDArray[np.int64]:
    """Return how many members of each chosen group have a place up to 0, 1, ..., int64 `(chosen, width)`.

    `place` and `group` are `(m,)`; members whose place is `width` or more count nowhere.

    >>> counts_up_to(np.array([0, 2, 1]), np.array([0, 0, 1]), range(2), 3)
    array([[1, 1, 2],
           [0, 1, 1]])
    """
    inside = (group >= chosen.start) & (group < chosen.stop) & (place < width)
    cell = (group[inside] - chosen.start) * width + place[inside]
    counts = np.bincount(cell, minlength=len(chosen) * width).reshape(len(chosen), width)
    return np.cumsum(counts, axis=1, dtype=np.int64)


def roc_areas_without(positive: Mask, codes: Vector, group_of_row: Groups, groups: int) -> Vector:
    """Return the area under the ROC curve without each group.

    Of the pairs of a positive and a negative row that are in order, those with a row in the group are taken off.
    """
    above = np.empty(len(codes))
    ranks = stats.rankdata(codes)
    for side in (True, False):
        ours = positive == side
        # Rows of the other side below each row; a tie counts half.
        below = ranks[ours] - stats.rankdata(codes[ours])
        above[ours] = below if side else (len(codes) - ours.sum()) - below
    total = above[positive].sum()
    taken = np.bincount(group_of_row, above, minlength=groups)[:groups]
    positives = np.bincount(group_of_row, positive, minlength=groups)[:groups]
    sizes = np.bincount(group_of_row, minlength=groups)[:groups]
    # Pairs within a group were taken off twice. Ranks within groups: of all rows in the order of groups, then codes.
    joint = stats.rankdata(group_of_row * (2.0 * codes.max() + 2) + codes)
    sums = np.bincount(group_of_row, np.where(positive, joint, 0.0), minlength=groups)[:groups]
    counts = np.bincount(group_of_row, minlength=groups)
    first = (np.cumsum(counts) - counts)[:groups]  # rows of the groups before each
    within = sums - positives * first - positives * (positives + 1) / 2
    left = positive.sum() - positives
    pairs = left * (len(codes) - sizes - left)
    return np.where(pairs > 0, (total - taken + within) / np.where(pairs > 0, pairs, 1), np.nan)


def average_precisions_without(positive: Mask, codes: Vector, group_of_row: Groups, groups: int) -> Vector:
    """Return the average precision without each group.

    Precision is needed at the scores of positive rows alone. Only the counts of left-out rows differ from group to group.
    """
    scores, gained_at = np.unique(-codes[positive], return_inverse=True)
    # The first threshold, from the highest score on, that takes each row.
    place = np.searchsorted(scores, -codes)
    width, own = len(scores), group_of_row[positive]
    taken = np.cumsum(np.bincount(place, minlength=width)[:width])
    gained = np.bincount(gained_at, minlength=width)
    hits = np.cumsum(gained)
    left = positive.sum() - np.bincount(own, minlength=groups)[:groups]
    negatives = len(codes) - positive.sum() - np.bincount(group_of_row[~positive], minlength=groups)[:groups]
    sums = np.empty(groups)
    for chosen in group_slices(groups, width):
        hits_without = hits - counts_up_to(gained_at, own, chosen, width)
        taken_without = taken - counts_up_to(place, group_of_row, chosen, width)
        gained_without = np.diff(hits_without, axis=1, prepend=0)
        sums[chosen.start : chosen.stop] = (gained_without * (hits_without / np.maximum(taken_without, 1))).sum(axis=1)
    return np.where((left > 0) & (negatives > 0), sums / np.maximum(left, 1), np.nan)


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
