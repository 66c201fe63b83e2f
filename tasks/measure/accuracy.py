"""Accuracy: one score a sample, so that variant and baseline can be compared pair by pair."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.perplexity import perplexity
from validators.datasets import TensorSpec
from validators.errors import JobError
from validators.job import MetricName

# Samples a batch when accuracy is measured; latency has batch sizes of its own.
EVALUATION_BATCH_SIZE = 32

Outputs = NDArray[Any]
Scores = NDArray[np.float64]


def score_samples(
    metric: MetricName, outputs: Outputs, labels: NDArray[Any] | None, baseline: Outputs | None
) -> Scores:
    """One score a sample, shape `(n,)`; `value_of` makes the metric of them.

    `outputs` has shape `(n, classes)` for accuracy, top5 and agreement, `(n, ...)` for mse and mae. `agreement` compares
    with the baseline's outputs of the same shape and needs no labels. Perplexity, whose outputs are too large to hold, is
    scored by `tasks.measure.perplexity` instead.

    >>> score_samples("accuracy", np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1]), None).tolist()
    [1.0, 0.0]
    """
    if metric == "agreement":
        reference = outputs if baseline is None else baseline
        return np.asarray(outputs.argmax(axis=-1) == reference.argmax(axis=-1), dtype=np.float64)
    assert labels is not None  # check_evaluation refuses data without labels for every other metric
    return _SCORES[metric](outputs, labels)


def value_of(metric: MetricName, scores: Scores) -> float:
    """The metric of all samples: the mean of their scores, and for perplexity exp of that.

    >>> value_of("accuracy", np.array([1.0, 0.0])), round(value_of("perplexity", np.log([2.0, 8.0])), 9)
    (0.5, 4.0)
    """
    return perplexity(scores) if metric == "perplexity" else float(scores.mean())


def higher_is_better(metric: MetricName) -> bool:
    """Whether a larger value of the metric is a better one."""
    return metric not in ("mse", "mae", "perplexity")


def drops(metric: MetricName, baseline: Scores, variant: Scores) -> Scores:
    """What each sample loses against the baseline, shape `(n,)`: positive is worse, in the metric's own units.

    For perplexity these are nats a token: 0.02 more are 2 % more perplexity, whatever the model's own.
    """
    return baseline - variant if higher_is_better(metric) else variant - baseline


def class_count(
    metric: MetricName, output: TensorSpec, shape: tuple[int, ...], label_shape: tuple[int, ...] | None
) -> int | None:
    """How many classes the output scores; None for a metric of values.

    `shape` is that of one batch of outputs as the runtime gave it, `label_shape` that of the labels without axis 0.

    Raises:
        JobError: the metric does not fit the output.
    """
    if metric in ("mse", "mae"):
        if label_shape is not None and np.prod(shape[1:], dtype=int) != np.prod(label_shape, dtype=int):
            raise _misfit(metric, output, shape, f"targets of shape {label_shape} a sample, like the output")
        return None
    if metric == "perplexity":
        if len(shape) != 3 or shape[1] < 2 or shape[2] < 2:
            raise _misfit(metric, output, shape, "logits of shape (samples, tokens, vocabulary), 2 tokens or more")
        return None
    if len(shape) != 2 or shape[1] < 2:
        raise _misfit(metric, output, shape, "an output of shape (samples, classes) with at least 2 classes")
    if metric == "top5" and shape[1] <= 5:
        raise _misfit(metric, output, shape, "more than 5 classes: with fewer every answer is right")
    return shape[1]


def _misfit(metric: str, output: TensorSpec, shape: tuple[int, ...], expected: str) -> JobError:
    return JobError(
        found=f"metric {metric!r} on output {output.name!r} of shape {shape}",
        expected=expected,
        fix="take a metric that fits (accuracy, top5, mse, mae, agreement, perplexity), or name another `output`",
    )


def _accuracy(outputs: Outputs, labels: NDArray[Any]) -> Scores:
    return np.asarray(outputs.argmax(axis=-1) == labels, dtype=np.float64)


def _top5(outputs: Outputs, labels: NDArray[Any]) -> Scores:
    best = np.argpartition(outputs, -5, axis=-1)[:, -5:]
    return np.asarray((best == labels[:, None]).any(axis=-1), dtype=np.float64)


def _mse(outputs: Outputs, labels: NDArray[Any]) -> Scores:
    return _mean_of_rest((_as_float(outputs) - _as_float(labels)) ** 2)


def _mae(outputs: Outputs, labels: NDArray[Any]) -> Scores:
    return _mean_of_rest(np.abs(_as_float(outputs) - _as_float(labels)))


def _as_float(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(len(values), -1).astype(np.float64)


def _mean_of_rest(values: NDArray[np.float64]) -> Scores:
    return np.asarray(values.mean(axis=1), dtype=np.float64)


_SCORES: dict[str, Callable[[Outputs, NDArray[Any]], Scores]] = {
    "accuracy": _accuracy,
    "top5": _top5,
    "mse": _mse,
    "mae": _mae,
}
