"""Mean average precision of object detection, as pycocotools computes it for boxes of all sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.areas import Groups, counts_up_to, group_slices
from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, Vector, Wrong, as_rows, misfit
from validators.errors import JobError
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

# A detection is x1, y1, x2, y2, score, class; padding has class -1.
COLUMNS, PADDING = 6, -1.0
# Detections kept per sample, best first, if the model does not fix their number; and of one class, as in pycocotools.
MOST, MOST_OF_CLASS = 300, 100
THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)

Boxes = NDArray[np.float64]


def mean_average_precision(name: Literal["map", "map50"]) -> Metric:
    """Return the metric `map`, the mean over overlaps of 0.5 to 0.95 in steps of 0.05, or `map50`, at 0.5 alone.

    Labels are `(n, boxes, 5)`: x1, y1, x2, y2, class; padding is NaN. Rows are the number D of detections per sample, then D
    scores, D classes and D numbers whose bit i tells whether the detection is right at overlap i, then the classes of the true
    boxes; padding is -1 (T.-Y. Lin et al., "Microsoft COCO", ECCV 2014; the rules are those of pycocotools' COCOeval).
    """
    levels = len(THRESHOLDS) if name == "map" else 1

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        return np.stack([_row(found, true) for found, true in zip(outputs, labels, strict=True)])

    value, without = partial(_value, levels=levels), partial(_without, levels=levels)
    return Metric(name, rows, value, _expects, _missed, join=join_detections, without=without, wrong=_nothing_found)


def _expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    if len(shape) != 3 or shape[2] != COLUMNS:
        raise misfit("map", output, shape, f"outputs that `output` lists: {_FORMS}")
    return LabelSpec("boxes")


_FORMS = (
    "[boxes (n, m, 4), scores (n, m), labels (n, m)]; [boxes (n, m, 4), scores (n, m, classes)]; [boxes (n, m, 4), "
    "scores (n, classes, m), indices (k, 3)] of NonMaxSuppression; one output (n, m, 6) of x1, y1, x2, y2, score, class; "
    "one (k, 7) of sample, x1, y1, x2, y2, class, score; or with a fixed batch of 1 [boxes (k, 4), scores (k), labels (k)]"
)


def join_detections(outputs: Sequence[NDArray[Any]], n: int) -> Boxes:
    """Return the detections of `n` samples from the outputs of one batch, float64 `(n, m, 6)`.

    Fewer are padded to `MOST` per sample: their number may depend on values and differ from batch to batch.

    Raises:
        JobError: the outputs have none of the known forms.
    """
    arrays = [np.asarray(array, np.float64) for array in outputs]
    shapes = [array.shape for array in arrays]
    match [array.ndim for array in arrays]:
        case [3] if shapes[0][0] == n and shapes[0][2] == COLUMNS:
            return _filled(arrays[0])
        case [2] if shapes[0][1] == COLUMNS + 1:
            sample, box, label, score = np.split(arrays[0], [1, 5, 6], axis=1)
            return _padded(sample[:, 0], np.hstack([box, score, label]), n)
        case [3, 3] if shapes[0] == (n, shapes[1][1], 4):
            best = arrays[1].max(axis=2), arrays[1].argmax(axis=2)
            return _filled(np.dstack([arrays[0], *best]))
        case [3, 3, 2] if shapes[0] == (n, shapes[1][2], 4) and shapes[2][1:] == (3,):
            sample, label, place = arrays[2].astype(np.intp).T
            chosen = arrays[0][sample, place], arrays[1][sample, label, place], label
            return _padded(sample, np.column_stack(chosen), n)
        case [3, 2 | 3, 2 | 3] if shapes[0][0] == n and shapes[0][2] == 4 and _are_one_a_box(shapes):
            return _filled(np.dstack([arrays[0], *(array.reshape(shapes[0][:2]) for array in arrays[1:])]))
        case [2, 1, 1] if n == 1 and shapes[0][1] == 4 and shapes[1] == shapes[2] == shapes[0][:1]:
            return _padded(np.zeros(len(arrays[0])), np.column_stack(arrays), n)
    raise JobError(
        found=f"outputs of shapes {', '.join(map(str, shapes))} for {n} samples",
        expected=_FORMS,
        fix="list boxes, scores and labels in this order in `output`; export a model without sample numbers with "
        "a fixed batch of 1",
    )


def _are_one_a_box(shapes: Sequence[tuple[int, ...]]) -> bool:
    return all(shape in (shapes[0][:2], (*shapes[0][:2], 1)) for shape in shapes[1:])


def _filled(found: Boxes) -> Boxes:
    """Return detections `(n, m, 6)` with padding up to `MOST` per sample."""
    return np.pad(found, ((0, 0), (0, max(0, MOST - found.shape[1])), (0, 0)), constant_values=PADDING)


def _padded(sample: Vector | NDArray[np.intp], found: Boxes, n: int) -> Boxes:
    """Return the best detections of each sample; `sample` `(k,)` numbers the sample of each of `found` `(k, 6)`."""
    padded = np.full((n, MOST, COLUMNS), PADDING)
    for number in range(n):
        own = found[sample == number]
        best = own[np.argsort(-own[:, 4], kind="stable")[:MOST]]
        padded[number, : len(best)] = best
    return padded


def _row(found: Boxes, true: Boxes) -> Vector:
    """Return the row of one sample from detections `(m, 6)` and true boxes `(boxes, 5)`."""
    found = found[np.argsort(-found[:, 4], kind="stable")]
    score, label, right = found[:, 4].copy(), found[:, 5].copy(), np.zeros(len(found))
    classes = np.where(np.isnan(true[:, 4]), PADDING, true[:, 4])
    for one in np.unique(label[label >= 0]):
        places = np.flatnonzero(label == one)
        label[places[MOST_OF_CLASS:]] = PADDING
        places = places[:MOST_OF_CLASS]
        right[places] = _matches(_overlaps_of(found[places, :4], true[classes == one, :4]))
    return np.concatenate([[len(found)], score, label, right, classes])


def _overlaps_of(found: Boxes, true: Boxes) -> Boxes:
    """Return the intersection over union of boxes x1, y1, x2, y2, `(m, 4)` and `(g, 4)`, as `(m, g)`."""
    corners = np.minimum(found[:, None, 2:], true[None, :, 2:]), np.maximum(found[:, None, :2], true[None, :, :2])
    both = np.clip(corners[0] - corners[1], 0, None).prod(axis=2)
    areas = [(boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1]) for boxes in (found, true)]
    either = areas[0][:, None] + areas[1][None, :] - both
    with np.errstate(invalid="ignore"):
        return np.asarray(both / np.where(either > 0, either, 1.0), np.float64)


def _matches(overlaps: Boxes) -> Vector:
    """Return for each detection, best first, a number whose bit i is 1 if it matches a true box at overlap `THRESHOLDS[i]`.

    A detection takes the free box with the largest overlap; of equal ones the last.
    """
    m, g = overlaps.shape
    bits = np.zeros(m)
    free = np.ones((len(THRESHOLDS), g), np.bool_)
    levels = np.arange(len(THRESHOLDS))
    for place in np.flatnonzero(overlaps.max(axis=1, initial=0.0) >= THRESHOLDS[0]):
        open_to = np.where(free & (overlaps[place] >= THRESHOLDS[:, None]), overlaps[place], -1.0)
        taken = g - 1 - open_to[:, ::-1].argmax(axis=1)
        matched = open_to[levels, taken] >= 0
        free[levels[matched], taken[matched]] = False
        bits[place] = float((2 ** levels[matched]).sum())
    return bits


def _split(rows: Rows) -> list[Rows]:
    """Return the scores, classes and matches of the detections, and the classes of the true boxes."""
    width = int(rows[0, 0])
    return np.split(rows[:, 1:], [width, 2 * width, 3 * width], axis=1)


def _missed(rows: Rows) -> Vector:
    """Return how many matches, of all detections at all overlaps, each sample lacks: less than none."""
    bits = _split(rows)[2].astype(np.intp)
    return np.asarray(-((bits[..., None] >> np.arange(len(THRESHOLDS))) & 1).sum(axis=(1, 2)), np.float64)


def _nothing_found(rows: Rows) -> Wrong:
    """Return rows whose detections match no true box; samples are of one kind by the rarest class of their true boxes."""
    scores, labels, bits, true = _split(rows)
    classes, counts = np.unique(true[true >= 0], return_counts=True)
    rarest = np.full(len(rows), len(classes))
    for one in np.argsort(-counts, kind="stable"):
        rarest[(true == classes[one]).any(axis=1)] = one
    return Wrong(as_rows(rows[:, 0], scores, labels, np.zeros_like(bits), true), rarest)


@dataclass(frozen=True)
class _Detections:
    """Detections of one class in all samples, best first: the matches as bits and the row; and the true boxes of each row."""

    bits: NDArray[np.intp]
    row: NDArray[np.intp]
    true: NDArray[np.int64]


def _by_class(rows: Rows) -> Iterator[_Detections]:
    """Yield the detections of each class that has true boxes."""
    score, label, right, true = _split(rows)
    kept = label >= 0
    row, own, bits = np.nonzero(kept)[0], label[kept].astype(np.intp), right[kept].astype(np.intp)
    # Stable: equal scores stay in the order of samples, as in pycocotools.
    order = np.lexsort((-score[kept], own))
    row, own, bits = row[order], own[order], bits[order]
    present = np.unique(true[true >= 0]).astype(np.intp)
    starts, ends = np.searchsorted(own, present), np.searchsorted(own, present, side="right")
    for one, start, end in zip(present, starts, ends, strict=True):
        yield _Detections(bits[start:end], row[start:end], (true == one).sum(axis=1))


def _value(rows: Rows, levels: int) -> float:
    """Return the mean of the average precision over overlaps and over the classes with true boxes; NaN without any."""
    found = [
        _average_precision((one.bits >> np.arange(levels)[:, None]) & 1, int(one.true.sum())) for one in _by_class(rows)
    ]
    return float(np.mean(found)) if found else float("nan")


def _without(rows: Rows, group_of_row: NDArray[np.intp], groups: int, *, levels: int) -> Vector:
    """Return `_value` without each group of rows."""
    found = []
    for one in _by_class(rows):
        left_out = np.bincount(group_of_row, one.true, minlength=groups)[:groups].astype(np.int64)
        group, true = group_of_row[one.row], int(one.true.sum()) - left_out
        found += [_average_precision_without((one.bits >> level) & 1 == 1, group, true) for level in range(levels)]
    counted = ~np.isnan(found)
    return np.asarray(np.where(counted, found, 0.0).sum(axis=0) / counted.sum(axis=0), np.float64)


def _average_precision(right: NDArray[np.intp], true: int) -> float:
    """Return the mean interpolated precision at 101 recalls, of detections `(levels, m)`, best first, and `true` boxes."""
    if not right.shape[1]:
        return 0.0
    hits = right.cumsum(axis=1)
    precision = hits / (np.arange(1, right.shape[1] + 1) + np.spacing(1))
    best_after = np.zeros((len(right), right.shape[1] + 1))
    best_after[:, :-1] = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = hits / true
    places = [np.searchsorted(of_level, RECALLS) for of_level in recall]
    return float(np.mean([one[place] for one, place in zip(best_after, places, strict=True)]))


def _average_precision_without(
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
