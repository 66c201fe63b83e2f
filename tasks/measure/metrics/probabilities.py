"""Metrics of probabilities: log-loss and calibration error; and F1 of several labels per sample."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_expit, log_softmax, softmax

from tasks.measure.metrics.chance import of_shares
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
    ratio_of_sums,
    values_a_sample,
)
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

if TYPE_CHECKING:
    from validators.gates.intervals import Clusters

Scores = Literal["logits", "probabilities"]
# As in torchmetrics.
BINS = 15
# By chance, one of 370 gaps that are 0 seems to have a sign.
CERTAIN = 3.0


def log_loss(scores: Scores | None) -> Metric:
    """Return the metric of the mean negative log-likelihood of the label, in nats, from logits or probabilities.

    Probabilities are clipped to the resolution of their dtype, as in scikit-learn.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        if values_a_sample(outputs.shape) == 1:
            return as_rows(-_log_of_one(outputs, labels, scores))
        logs = log_softmax(flat(outputs), axis=1) if scores == "logits" else _log(outputs)
        return as_rows(-logs[np.arange(len(labels)), labels])

    return Metric(
        "log_loss",
        rows,
        mean_of_scores,
        _expects("log_loss"),
        higher_is_better=False,
        span=math.inf,
        version=str(scores),
        chance=of_shares,
    )


def _log_of_one(outputs: Outputs, labels: Labels, scores: Scores | None) -> Vector:
    """Return ln of the probability of each label, 0 or 1, from one value per sample: that of class 1."""
    if scores == "logits":
        return np.asarray(log_expit(np.where(labels == 1, 1, -1) * flat(outputs)[:, 0]), np.float64)
    likely = np.where(labels == 1, flat(outputs)[:, 0], 1 - flat(outputs)[:, 0])
    return _log(likely.astype(outputs.dtype))


def _log(probabilities: Outputs) -> NDArray[np.float64]:
    least = float(np.finfo(probabilities.dtype).eps)
    return np.asarray(np.log(np.clip(probabilities.astype(np.float64), least, 1 - least)), np.float64)


def calibration_error(scores: Scores | None) -> Metric:
    """Return the expected calibration error: how far confidence and accuracy differ, by bins of equal width.

    Rows are (confidence, whether right). For several classes these are of the most probable class; for one value per sample, of
    class 1 (M. Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning", AAAI 2015; C. Guo et al.,
    "On calibration of modern neural networks", ICML 2017, equation 3).
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        values = flat(outputs)
        if values.shape[1] == 1:
            return as_rows(expit(values) if scores == "logits" else values, labels)
        values = softmax(values, axis=1) if scores == "logits" else values
        return as_rows(values.max(axis=1), values.argmax(axis=1) == labels)

    return Metric(
        "ece",
        rows,
        lambda rows: float(np.abs(_gaps(rows)).sum()),
        _expects("ece"),
        higher_is_better=False,
        version=str(scores),
        drop_at_most=_rise_at_most,
        wrong=_mistaken,
    )


def _mistaken(rows: Rows) -> Wrong:
    """Return rows of the same confidence that are right where they were wrong, and wrong where right."""
    return Wrong(as_rows(rows[:, 0], 1 - rows[:, 1]), np.zeros(len(rows), np.intp))


def _places(rows: Rows) -> NDArray[np.intp]:
    """Return the bin of each row. A bin includes its lower end; a confidence of 1 has a bin of its own, as in torchmetrics."""
    return np.clip(np.searchsorted(np.linspace(0, 1, BINS + 1), rows[:, 0], side="right") - 1, 0, BINS)


def _gaps(rows: Rows) -> Vector:
    """Return confidence less accuracy of each bin, times the share of rows in it: `(bins,)`."""
    gaps = np.bincount(_places(rows), rows[:, 0] - rows[:, 1], minlength=BINS + 1) / len(rows)
    return np.asarray(gaps, np.float64)


def _rise_at_most(baseline: Rows, clusters: Clusters | None) -> Callable[[Rows, Rows], float]:
    """Return a function of both models' rows that is at least the rise of the calibration error, and not biased downwards.

    The absolute value of an estimated gap is too large on average, most so near 0. A well calibrated baseline would therefore
    seem worse than it is, and the rise too small. Where the baseline's gap may be 0, |h| - |g| is replaced by |h - g|, which is
    never less: h and g are the gaps of variant and baseline. It is kept where g has a known sign, `CERTAIN` standard errors
    away from 0.
    """
    units = np.arange(len(baseline)) if clusters is None else clusters
    sums = np.zeros((int(units.max()) + 1, BINS + 1))
    np.add.at(sums, (units, _places(baseline)), baseline[:, 0] - baseline[:, 1])
    errors = np.sqrt((sums**2).sum(axis=0) - sums.sum(axis=0) ** 2 / len(sums))
    known = np.abs(sums.sum(axis=0)) > CERTAIN * errors

    def rise(before: Rows, after: Rows) -> float:
        old, new = _gaps(before), _gaps(after)
        return float(np.where(known, np.abs(new) - np.abs(old), np.abs(new - old)).sum())

    return rise


def _expects(metric: str) -> Callable[[TensorSpec, tuple[int, ...]], LabelSpec]:
    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) > 2 or not output.dtype.startswith("float"):
            raise misfit(metric, output, shape, "scores of shape (samples, classes), or one value per sample")
        return LabelSpec("classes", classes=max(2, values_a_sample(shape)))

    return expects


def f1_multilabel(average: Literal["macro", "micro"], threshold: float | None) -> Metric:
    """Return the F1 of several labels per sample, each present above `threshold`: the mean over labels, or of all decisions.

    Rows are 2 TP of each label, then the labels predicted plus the labels present. Labels that are neither predicted nor
    present in any sample do not count.
    """
    name = "f1_multilabel" if average == "macro" else "f1_multilabel_micro"

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None and threshold is not None
        found, true = outputs > threshold, labels != 0
        both, either = 2.0 * (found & true), 1.0 * found + true
        return as_rows(both, either) if average == "macro" else as_rows(both.sum(axis=1), either.sum(axis=1))

    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) != 2 or threshold is None or not output.dtype.startswith("float"):
            needed = "`metric_threshold`, above which a label is present: 0 for a logit, 0.5 for a probability"
            raise misfit(name, output, shape, f"values of shape (samples, labels), and {needed}")
        return LabelSpec("multi_hot", classes=shape[1])

    return ratio_of_sums(name, rows, expects, version=str(threshold))
