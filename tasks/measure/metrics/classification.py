"""Metrics of class scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.areas import average_precisions_without, midranks, order_codes, roc_areas_without
from tasks.measure.metrics.chance import of_frequent_classes, of_permutations
from tasks.measure.metrics.metric import (
    Labels,
    Metric,
    Outputs,
    Rows,
    Vector,
    Wrong,
    as_rows,
    flat,
    mean_of_scores,
    misfit,
    values_a_sample,
)
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec


def _classes(metric: str, *, least: int = 2, distinct: int = 1) -> Callable[[TensorSpec, tuple[int, ...]], LabelSpec]:
    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) != 2 or shape[1] < 2:
            raise misfit(metric, output, shape, "an output of shape (samples, classes) with at least 2 classes")
        if shape[1] < least:
            raise misfit(metric, output, shape, f"more than {least - 1} classes: with fewer, every answer is right")
        return LabelSpec("classes", classes=shape[1], distinct=distinct)

    return expects


def _accuracy(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    return as_rows(outputs.argmax(axis=-1) == labels)


def _top5(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    assert labels is not None
    best = np.argpartition(outputs, -5, axis=-1)[:, -5:]
    return as_rows((best == labels[:, None]).any(axis=-1))


def _agreement(outputs: Outputs, _: Labels | None, reference: Outputs | None) -> Rows:
    baseline = outputs if reference is None else reference
    return as_rows(outputs.argmax(axis=-1) == baseline.argmax(axis=-1))


def _unlabelled(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    _classes("agreement")(output, shape)
    return LabelSpec("any", required=False)


_RIGHT = partial(Metric, value=mean_of_scores, is_right_or_wrong=True)
ACCURACY = _RIGHT("accuracy", _accuracy, expects=_classes("accuracy"), chance=of_frequent_classes(1))
TOP5 = _RIGHT("top5", _top5, expects=_classes("top5", least=6), chance=of_frequent_classes(5))
AGREEMENT = _RIGHT("agreement", _agreement, expects=_unlabelled, reads_reference=True)


# Memory grows with the highest class. Vocabularies have fewer tokens.
MOST_CLASSES = 1 << 22


def f1_of_classes(rows: Rows) -> NDArray[np.float64]:
    """Return the F1 of each class, float64 `(classes,)`, from rows (true class, predicted class), float64 `(n, 2)`.

    Classes go up to the highest that occurs; a class that does not occur has NaN. F1 is 2 TP / (2 TP + FP + FN) (C. J. van
    Rijsbergen, "Information Retrieval", 1979, chapter 7).

    >>> f1_of_classes(np.array([[0.0, 0.0], [2.0, 0.0]])).round(3)
    array([0.667,   nan, 0.   ])
    """
    count = int(rows.max()) + 1
    if count > MOST_CLASSES or rows.min() < 0:
        raise ValueError(
            f"found classes {rows.min():g} to {rows.max():g}; expected whole numbers from 0 below {MOST_CLASSES}"
        )
    true, predicted = rows.astype(np.intp).T
    hits = np.bincount(true[true == predicted], minlength=count)
    either = np.bincount(true, minlength=count) + np.bincount(predicted, minlength=count)
    # 0 / 0 gives NaN on purpose, for classes without any sample.
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * hits / either, np.float64)


def _f1_macro(rows: Rows) -> float:
    """Return the mean F1 of the classes among labels or predictions, as scikit-learn's `f1_score(average="macro")`."""
    return float(np.nanmean(f1_of_classes(rows))) if len(rows) else math.nan


def _f1_positive(rows: Rows) -> float:
    """Return the F1 of class 1; 0 if it occurs neither among labels nor predictions, as in scikit-learn."""
    found = f1_of_classes(rows) if len(rows) else np.empty(0)
    return float(np.nan_to_num(found[1])) if len(found) > 1 else 0.0


def _other_class(rows: Rows) -> Wrong:
    """Return rows that predict the class before the true one; for class 0, class 1."""
    true = rows[:, 0]
    return Wrong(as_rows(true, np.where(true == 0, 1, true - 1)), true.astype(np.intp))


def _true_and_predicted(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    assert labels is not None
    return as_rows(labels, outputs.argmax(axis=-1))


_CHOSEN = partial(
    Metric,
    losses=lambda rows: np.asarray(rows[:, 0] != rows[:, 1], np.float64),
    wrong=_other_class,
    chance=of_permutations,
)
F1_MACRO = _CHOSEN("f1_macro", _true_and_predicted, _f1_macro, _classes("f1_macro"))


def _share_of_one(column: int, rows: Rows) -> float:
    """Return the share of rows with class 1 in both columns among those with it in this one; 0 without any, as in scikit-learn.

    Among true ones it is recall, TP / (TP + FN), among predicted ones precision, TP / (TP + FP).
    """
    ones = rows[rows[:, column] == 1]
    return float((ones[:, 1 - column] == 1).mean()) if len(ones) else 0.0


def of_class_one(name: str, threshold: float | None) -> Metric:
    """Return F1, precision or recall of class 1, for two class scores, or for one value per sample (above `threshold`)."""

    def rows(outputs: Outputs, labels: Labels | None, reference: Outputs | None) -> Rows:
        if values_a_sample(outputs.shape) == 2:
            return _true_and_predicted(outputs, labels, reference)
        assert labels is not None and threshold is not None
        return as_rows(labels, flat(outputs)[:, 0] > threshold)

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) > 2 or values_a_sample(shape) not in (1, 2):
            raise misfit(name, output, shape, "2 classes, or one value per sample; use `f1_macro` for more classes")
        if values_a_sample(shape) == 1 and threshold is None:
            needed = "`metric_threshold`, above which the value of a sample means class 1: 0 for a logit, 0.5 for a probability"
            raise misfit(name, output, shape, needed)
        return LabelSpec("classes", classes=2)

    return _CHOSEN(name, rows, _OF_CLASS_ONE[name], expects, version=str(threshold))


_OF_CLASS_ONE: dict[str, Callable[[Rows], float]] = {
    "f1_binary": _f1_positive,
    "precision_binary": partial(_share_of_one, 1),
    "recall_binary": partial(_share_of_one, 0),
}


def _label_and_order(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    """Return rows (label, order codes of the scores).

    Two classes give one column, the difference of their scores, which has the order of the softmax probability.
    """
    assert labels is not None
    scores = flat(outputs)
    if scores.shape[1] == 2:
        with np.errstate(invalid="ignore"):  # infinite scores give NaN, which fails every gate
            scores = scores[:, 1:] - scores[:, :1]
    return as_rows(labels, order_codes(scores))


def _one_against_rest(rows: Rows, area: Callable[[NDArray[np.bool_], Vector], float]) -> float:
    """Return the mean over classes of `area`, each against the rest by its own scores; with one column of scores, of class 1.

    Classes that no row or every row has do not count; the result is NaN if no class counts.
    """
    if not np.isfinite(rows).all():
        return math.nan
    classes = [1] if rows.shape[1] == 2 else range(rows.shape[1] - 1)
    areas = []
    for column, index in enumerate(classes, start=1):
        positive = rows[:, 0] == index
        if 0 < int(positive.sum()) < len(rows):
            areas.append(area(positive, rows[:, column]))
    return float(np.mean(areas)) if areas else math.nan


AreasWithout = Callable[[NDArray[np.bool_], Vector, NDArray[np.intp], int], Vector]


def _without(areas: AreasWithout) -> Callable[[Rows, NDArray[np.intp], int], Vector]:
    """Return the function that computes `_one_against_rest` without each group of rows."""

    def without(rows: Rows, group_of_row: NDArray[np.intp], groups: int) -> Vector:
        classes = [1] if rows.shape[1] == 2 else range(rows.shape[1] - 1)
        found = [
            areas(rows[:, 0] == index, rows[:, column], group_of_row, groups)
            for column, index in enumerate(classes, start=1)
            if 0 < np.count_nonzero(rows[:, 0] == index) < len(rows)
        ]
        counted = ~np.isnan(found)
        return np.asarray(np.where(counted, found, 0.0).sum(axis=0) / counted.sum(axis=0), np.float64)

    return without


def _auroc(rows: Rows) -> float:
    """Return the area under the ROC curve by the sum of ranks (Hanley and McNeil, Radiology 143, 1982)."""

    def area(positive: NDArray[np.bool_], codes: Vector) -> float:
        count = int(positive.sum())
        total = float(midranks(codes)[positive].sum())
        return (total - count * (count + 1) / 2) / (count * (len(rows) - count))

    return _one_against_rest(rows, area)


def _average_precision(positive: NDArray[np.bool_], codes: Vector) -> float:
    """Return the sum of precisions, each weighted by the recall that its score adds, as scikit-learn's."""
    whole = codes.astype(np.intp)
    gained, taken = np.bincount(whole, positive)[::-1], np.bincount(whole)[::-1]
    scored = taken > 0
    precision = np.cumsum(gained)[scored] / np.cumsum(taken)[scored]
    return float((gained[scored] * precision).sum() / positive.sum())


def _order_lost(rows: Rows) -> Vector:
    """Return how low the label's own class ranks each sample; with one column, how high a sample of class 0 ranks."""
    label = rows[:, 0].astype(np.intp)
    if rows.shape[1] == 2:
        return np.where(label == 1, -rows[:, 1], rows[:, 1])
    return np.asarray(-rows[np.arange(len(rows)), 1 + label], np.float64)


def _worst_order(*, of_others: bool) -> Callable[[Rows], Wrong]:
    """Return the function of rows whose own class ranks lowest and, with `of_others`, all others highest.

    One column of scores is that of class 1. The area under the precision-recall curve rests on the samples of a class; that
    any other one can rise above them is no evidence about these.
    """

    def wrong(rows: Rows) -> Wrong:
        label, codes = rows[:, 0].astype(np.intp), rows[:, 1:]
        own = np.arange(codes.shape[1]) + (codes.shape[1] == 1) == label[:, None]
        return Wrong(as_rows(label, np.where(own, codes.min(axis=0), codes.max(axis=0) if of_others else codes)), label)

    return wrong


def _ranked(metric: str) -> Callable[[TensorSpec, tuple[int, ...]], LabelSpec]:
    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) <= 2 and values_a_sample(shape) == 1:
            return LabelSpec("classes", classes=2, distinct=2)
        return _classes(metric, distinct=2)(output, shape)

    return expects


_AREA = partial(Metric, rows=_label_and_order, losses=_order_lost, scope="kept", chance=of_permutations)
AUROC = _AREA(
    "auroc",
    value=_auroc,
    expects=_ranked("auroc"),
    without=_without(roc_areas_without),
    wrong=_worst_order(of_others=True),
)
PR_AUC = _AREA(
    "pr_auc",
    # The area under the precision-recall curve as average precision, without interpolation.
    value=lambda rows: _one_against_rest(rows, _average_precision),
    expects=_ranked("pr_auc"),
    without=_without(average_precisions_without),
    wrong=_worst_order(of_others=False),
)
