"""Average precision of detections without each group of samples, by the rules of pycocotools (see `detection`)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.left_out.areas import Groups, Vector, counts_up_to, group_slices

RECALLS = np.linspace(0.0, 1.0, 101)


def average_precision_without(
    right: NDArray[np.bool_], group_of_detection: Groups, true_without: NDArray[np.int64]
) -> Vector:
    """Return the interpolated precision at 101 recalls without each group, `(groups,)`; NaN without true boxes.

    `right` `(m,)` tells which detections, best first, match a true box. `group_of_detection` `(m,)` is the group of their
    samples, and `true_without` `(groups,)` the number of true boxes without each group.

    Only right detections are looked at: precision falls at all others. A right detection of the left-out group stays in the
    list with a precision of 0, so that the best precision from there on is that of the next one.
    """
    groups, places = len(true_without), np.flatnonzero(right)
    own, width = group_of_detection[places], len(places)
    # The first right detection at or after each detection.
    following = np.searchsorted(places, np.arange(len(right)))
    found = np.empty(groups)
    for chosen in group_slices(groups, width):
        part = slice(chosen.start, chosen.stop)
        hits = np.arange(1, width + 1) - counts_up_to(np.arange(width), own, chosen, width)
        taken = places + 1 - counts_up_to(following, group_of_detection, chosen, width)
        precision = hits / (taken + np.spacing(1))
        ours = (own >= chosen.start) & (own < chosen.stop)
        precision[own[ours] - chosen.start, np.flatnonzero(ours)] = 0.0
        found[part] = _mean_precision(precision, hits, true_without[part])
    return np.where(true_without > 0, found, np.nan)


def _mean_precision(precision: NDArray[np.float64], hits: NDArray[np.int64], true: NDArray[np.int64]) -> Vector:
    """Return the mean of the best precisions at or after each recall; rows are groups, columns right detections."""
    groups, width = precision.shape
    best_after = np.zeros((groups, width + 1))
    best_after[:, :-1] = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    # One search for all groups: those of a group lie between its number times `width + 1` and the next group's.
    offsets = np.arange(groups)[:, None] * (width + 1)
    needed = np.minimum(np.stack([_hits_needed(int(one)) for one in true]), width + 1)
    first = np.searchsorted((hits + offsets).ravel(), (needed + offsets).ravel()).reshape(groups, len(RECALLS))
    columns = np.minimum(first - np.arange(groups)[:, None] * width, width)
    return np.asarray(np.take_along_axis(best_after, columns, axis=1).mean(axis=1), np.float64)


@lru_cache(maxsize=1024)
def _hits_needed(true: int) -> NDArray[np.int64]:
    """Return the least number of right detections, 1 or more, that reaches each recall of so many true boxes.

    >>> _hits_needed(2)[[0, 50, 51, 100]]
    array([1, 1, 2, 2])
    """
    return np.maximum(np.searchsorted(np.arange(true + 1) / max(true, 1), RECALLS), 1)
