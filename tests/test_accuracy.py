"""Accuracy: every metric by a table worked out by hand, and metrics that do not fit the output refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tasks.measure.accuracy import class_count, drops, higher_is_better, score_samples, value_of
from validators.datasets import TensorSpec
from validators.errors import JobError
from validators.job import MetricName

SCORES = np.array([[0.1, 0.9, 0.0], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5], [0.4, 0.3, 0.3]], np.float32)
# Seven classes; the best five of the first row are 6, 5, 4, 3, 2, those of the second 0, 1, 2, 3, 4.
SEVEN = np.array([[1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1], [0, 9, 8, 7, 6, 5, 1]], np.float32)

TABLE: list[tuple[MetricName, Any, Any, Any, list[float]]] = [
    ("accuracy", SCORES, np.array([1, 0, 0, 0]), None, [1, 1, 0, 1]),
    ("accuracy", SCORES.astype(np.float16), np.array([2, 2, 2, 2], np.uint8), None, [0, 0, 1, 0]),
    ("top5", SEVEN, np.array([1, 4, 5]), None, [0, 1, 1]),
    ("top5", SEVEN, np.array([6, 5, 0]), None, [1, 0, 0]),
    ("agreement", SCORES, None, SCORES[:, ::-1], [1, 0, 0, 0]),
    ("agreement", SCORES, np.array([2, 2, 2, 2]), SCORES * 3 - 1, [1, 1, 1, 1]),
    ("agreement", SCORES, None, None, [1, 1, 1, 1]),
    ("mse", np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), None, [2.0, 12.5]),
    ("mse", np.array([[1.0], [3.0]], np.float32), np.array([2, 1]), None, [1.0, 4.0]),
    ("mae", np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]), None, [1.0, 3.5]),
    ("mae", np.array([1.5, -1.0], np.float16), np.array([1.0, 1.0]), None, [0.5, 2.0]),
    ("mae", np.zeros((1, 2, 2)), np.arange(4.0).reshape(1, 2, 2), None, [1.5]),
]


@pytest.mark.parametrize(("metric", "outputs", "labels", "baseline", "expected"), TABLE)
def test_scores_of_a_table(metric: MetricName, outputs: Any, labels: Any, baseline: Any, expected: list[float]) -> None:
    """One float64 a sample, in order; their mean is the metric."""
    scores = score_samples(metric, outputs, labels, baseline)
    assert scores.dtype == np.float64 and scores.shape == (len(outputs),)
    assert scores.tolist() == expected


def test_values_are_compared_in_float64() -> None:
    """Differences that the outputs' own dtype cannot hold: in float16, 2,048 - 0.5 is 2,048 and 300 squared is infinite."""
    outputs, targets = np.array([[2048.0], [300.0]], np.float16), np.array([[0.5], [0.0]], np.float16)
    assert score_samples("mae", outputs, targets, None).tolist() == [2047.5, 300.0]
    assert score_samples("mse", outputs, targets, None).tolist() == [2047.5**2, 90000.0]


@pytest.mark.parametrize(
    ("metric", "baseline", "variant", "lost"),
    [
        ("accuracy", [1, 1, 0, 0], [1, 0, 1, 0], [0, 1, -1, 0]),
        ("top5", [1, 0], [0, 1], [1, -1]),
        ("agreement", [1, 1], [1, 0], [0, 1]),
        ("mse", [0.5, 2.0], [1.0, 1.0], [0.5, -1.0]),
        ("mae", [0.5, 2.0], [0.5, 3.0], [0.0, 1.0]),
        ("perplexity", [0.5, 2.0], [0.5, 3.0], [0.0, 1.0]),
    ],
)
def test_a_drop_is_positive_where_the_variant_is_worse(
    metric: MetricName, baseline: list[float], variant: list[float], lost: list[float]
) -> None:
    """Whichever way the metric runs."""
    assert drops(metric, np.array(baseline, float), np.array(variant, float)).tolist() == lost
    assert higher_is_better(metric) == (metric not in ("mse", "mae", "perplexity"))


def test_the_metric_is_the_mean_of_the_scores() -> None:
    """And exp of it for perplexity, whose scores are nats: 3 and 12 to the half are 6."""
    assert value_of("mae", np.array([0.5, 1.0])) == 0.75
    assert value_of("perplexity", np.log([3.0, 12.0])) == pytest.approx(6.0)


LOGITS = TensorSpec("logits", "float32", ("batch", None))


@pytest.mark.parametrize(
    ("metric", "shape", "label_shape", "classes"),
    [
        ("accuracy", (8, 2), (), 2),
        ("agreement", (8, 3), None, 3),
        ("top5", (8, 6), (), 6),
        ("mse", (8, 1), (), None),
        ("mse", (8, 3), (3,), None),
        ("mae", (8, 2, 2), (4,), None),
        ("mae", (8,), (), None),
        ("perplexity", (1, 16, 50), None, None),
    ],
)
def test_the_number_of_classes(
    metric: MetricName, shape: tuple[int, ...], label_shape: tuple[int, ...] | None, classes: int | None
) -> None:
    """The last axis for class scores, none for values."""
    assert class_count(metric, LOGITS, shape, label_shape) == classes


@pytest.mark.parametrize(
    ("metric", "shape", "label_shape", "words"),
    [
        ("accuracy", (8, 1), (), "at least 2 classes"),
        ("accuracy", (8,), (), "at least 2 classes"),
        ("accuracy", (8, 16, 3), (), "at least 2 classes"),
        ("agreement", (8, 1), None, "at least 2 classes"),
        ("top5", (8, 5), (), "more than 5 classes"),
        ("mse", (8, 3), (), "targets of shape ()"),
        ("mae", (8, 3), (4,), "targets of shape (4,)"),
        ("perplexity", (8, 50), None, "(samples, tokens, vocabulary)"),
        ("perplexity", (8, 1, 50), None, "2 tokens or more"),
        ("perplexity", (8, 16, 1), None, "(samples, tokens, vocabulary)"),
    ],
)
def test_a_metric_that_does_not_fit_the_output_is_refused(
    metric: MetricName, shape: tuple[int, ...], label_shape: tuple[int, ...] | None, words: str
) -> None:
    """The metric, the output and its shape are named, with what would fit."""
    with pytest.raises(JobError) as caught:
        class_count(metric, LOGITS, shape, label_shape)
    error = caught.value
    assert repr(metric) in error.found and "'logits'" in error.found and str(shape) in error.found
    assert words in error.expected and error.fix
