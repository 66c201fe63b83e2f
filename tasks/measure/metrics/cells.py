"""Metrics of outputs with a class per cell: tokens of a text, pixels of an image, steps of a series."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.chance import of_frequent_cells
from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, as_rows, misfit, ratio_of_sums
from validators.errors import JobError
from validators.samples.datasets import TensorSpec
from validators.samples.labels import IGNORED, LabelSpec

# Outputs of class indices do not tell how many classes there are; each takes two columns of every row.
MAP_CLASSES = 256
_MAPS = "scores (n, classes, ...) or (n, ..., classes), class indices (n, ...), or with a threshold one value per cell"

Cells = NDArray[np.int64]


def _expects_tokens(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    if output.dtype.startswith("float") and len(shape) == 3 and shape[2] > 1:
        return LabelSpec("class_maps", maps=((shape[1:2], shape[2]),))
    if "int" in output.dtype and len(shape) == 2:
        return LabelSpec("class_maps", maps=((shape[1:], 0),))
    expected = "scores of shape (samples, tokens, classes), or class indices of shape (samples, tokens)"
    raise misfit("token_accuracy", output, shape, expected)


def _expected_maps(metric: str, threshold: float | None, output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    """Return the label shapes that fit the output: one map per position that the class axis may have.

    The labels decide between them (see `_predicted`), so equal shapes would be ambiguous.
    """
    if not output.dtype.startswith("float"):
        if output.dtype == "str" or len(shape) < 2:
            raise misfit(metric, output, shape, _MAPS)
        return LabelSpec("class_maps", maps=((shape[1:], MAP_CLASSES),))
    if len(shape) < 2 or (threshold is None and (len(shape) == 2 or 1 in (shape[1], shape[-1]))):
        raise misfit(metric, output, shape, f"{_MAPS}; `metric_threshold` is 0 for a logit, 0.5 for a probability")
    maps = [] if threshold is None else [(shape[1:], 2)]
    if len(shape) > 2:
        first, last = (shape[2:], max(2, shape[1])), (shape[1:-1], max(2, shape[-1]))
        if first[0] == last[0]:
            raise misfit(metric, output, shape, "a number of classes that differs from the size of the map")
        maps += [first, last]
    return LabelSpec("class_maps", maps=tuple(maps))


def _predicted(outputs: Outputs, labels: Labels, threshold: float | None) -> tuple[Cells, int]:
    """Return the class of each cell, int64 with the shape of `labels`, and the number of classes.

    The number is 1 for one value per cell, which is class 1 above the threshold, and 0 if it is unknown.
    """
    cells, is_float = labels.shape[1:], outputs.dtype.kind == "f"
    if outputs.shape[1:] == cells and not is_float:
        return outputs.astype(np.int64), 0
    axis = 1 if outputs.shape[2:] == cells else -1
    if outputs.shape[1:] == cells or outputs.shape[axis] == 1:
        return (outputs > threshold).reshape(labels.shape).astype(np.int64), 1
    return outputs.argmax(axis=axis).astype(np.int64), outputs.shape[axis]


def cell_accuracy(name: str, threshold: float | None) -> Metric:
    """Return the metric `token_accuracy` or `pixel_accuracy`: the share of right cells among those that count.

    Rows are (right cells, cells whose label is not IGNORED); the metric is the ratio of their sums.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        found, _classes = _predicted(outputs, labels, threshold)
        counted = labels != IGNORED
        axes = tuple(range(1, labels.ndim))
        return as_rows(((found == labels) & counted).sum(axis=axes), counted.sum(axis=axes))

    expects = _expects_tokens if name == "token_accuracy" else partial(_expected_maps, name, threshold)
    return ratio_of_sums(name, rows, expects, version=str(threshold), chance=of_frequent_cells)


def overlap(name: str, threshold: float | None) -> Metric:
    """Return the metric `iou` or `dice`: the overlap of predicted and true regions, over the cells of all samples together.

    It is the mean over the classes that occur among labels or predictions; outputs of one value per cell have class 1 alone.
    IoU is I / U and Dice 2 I / (I + U), with I the cells that have the class in both, U those that have it in either (P.
    Jaccard, 1901; L. R. Dice, Ecology 26, 1945). Rows are the numerators of all classes, then their denominators.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        both, either = _overlaps(*_predicted(outputs, labels, threshold), labels)
        return as_rows(both, either) if name == "iou" else as_rows(2 * both, both + either)

    expects = partial(_expected_maps, name, threshold)
    return ratio_of_sums(name, rows, expects, version=str(threshold))


def _overlaps(found: Cells, classes: int, labels: Labels) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each sample's cells that have a class in prediction and label, and in either; both int64 `(n, classes)`."""
    n, width = len(labels), {0: MAP_CLASSES, 1: 2}.get(classes, classes)
    if found.size and not 0 <= found.min() <= found.max() < width:
        raise JobError(
            found=f"a class index {found.min() if found.min() < 0 else found.max()} in the output",
            expected=f"class indices from 0 to {width - 1}",
            fix="name an `output` of scores per class, or use the metric `pixel_accuracy`",
        )
    first = np.arange(n).reshape(n, *[1] * (labels.ndim - 1)) * width
    true, counted = labels.astype(np.int64), labels != IGNORED

    def count(which: NDArray[np.bool_], of: Cells) -> NDArray[np.int64]:
        return np.bincount((first + of)[which], minlength=n * width).reshape(n, width)

    both = count(counted & (found == true), true)
    either = count(counted, true) + count(counted, found) - both
    # With one value per cell, the background is no class of its own.
    return (both[:, 1:], either[:, 1:]) if classes == 1 else (both, either)
