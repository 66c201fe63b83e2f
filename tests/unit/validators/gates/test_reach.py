"""Metrics that rest on few of the samples: their intervals count these, not all."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.drops import estimate_drop
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.texts import make_decoder
from tasks.measure.metrics.user_metric import user_metric
from validators.gates.reach import reach_of
from validators.job.job_data import TextDecoding

OPTIONS = Options(0.0, make_decoder(TextDecoding()), scores="logits", k=1)
# Bound on a share of which none of 20 was seen, at 95 %.
NONE_OF_20 = 1 - 0.05 ** (1 / 20)


def recall(outputs: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """A user's function that returns one number."""
    return float((outputs[labels == 1, 0] > 0).mean())


RECALLS = (
    named_metric("recall_binary", OPTIONS),
    user_metric("own.recall", recall, higher_is_better=True, version=""),
)


def flipped(labels: NDArray[np.int64], places: NDArray[np.intp]) -> NDArray[np.float32]:
    """Values that are right but at some places."""
    values = np.where(labels == 1, 1.0, -1.0)
    values[places] *= -1
    return values[:, None].astype(np.float32)


@pytest.mark.parametrize("metric", RECALLS, ids=lambda metric: metric.name)
@pytest.mark.parametrize("changed", [0, 9, 12, 300])
def test_changes_of_samples_that_do_not_count_are_no_evidence(metric: Metric, changed: int) -> None:
    """20 of 1,000 samples are positive: however many negatives change, none of 20 was seen to be lost."""
    labels = (np.arange(1000) < 20).astype(np.int64)
    before = metric.rows(flipped(labels, np.array([0])), labels, None)
    after = metric.rows(flipped(labels, np.r_[0, 999 - np.arange(changed)]), labels, None)
    drop, method = estimate_drop(metric, before, after, 0.95, seed=1)
    assert drop.value == 0 and drop.high == pytest.approx(NONE_OF_20, rel=0.02), method
    assert "about 20 samples decide" in method


def test_a_metric_of_fewer_than_eight_samples_has_no_interval() -> None:
    rng = np.random.default_rng(3)
    labels = (np.arange(500) < 5).astype(np.int64)
    scores = rng.normal(size=(500, 1)) + 2.0 * labels[:, None]
    for name in ("auroc", "pr_auc", "recall_binary"):
        metric = named_metric(name, OPTIONS)  # type: ignore[arg-type]  # names as str
        rows = [metric.rows(each, labels, None) for each in (scores, scores + 0.1 * rng.normal(size=scores.shape))]
        drop, method = estimate_drop(metric, *rows, 0.95, seed=1)
        assert drop.high is None and "fewer than 8" in method


def test_a_function_without_a_flip_is_no_evidence_of_equality() -> None:
    """Eight samples without a flip leave out up to 31 % of others that flip."""
    labels = np.arange(8) % 2
    metric = user_metric("own.recall", recall, higher_is_better=True, version="")
    rows = metric.rows(flipped(labels, np.array([], np.intp)), labels, None)
    drop, method = estimate_drop(metric, rows, rows, 0.95, seed=1)
    assert drop.high is None and "rests on about 4 samples" in method

    def accuracy(outputs: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        return float(((outputs[:, 0] > 0) == labels).mean())

    metric = user_metric("own.accuracy", accuracy, higher_is_better=True, version="")
    rows = metric.rows(flipped(labels, np.array([], np.intp)), labels, None)
    drop, _ = estimate_drop(metric, rows, rows, 0.95, seed=1)
    assert drop.high == pytest.approx(1 - 0.05 ** (1 / 8))


@pytest.mark.parametrize(
    ("name", "n", "positive"), [("recall_binary", 1000, 20), ("recall_binary", 300, 15), ("f1_binary", 300, 15)]
)
def test_a_variant_that_loses_the_tolerance_passes_rarely(name: str, n: int, positive: int) -> None:
    """A tenth of the positives is lost, the tolerance: at most 5 % of 300 draws pass, within four standard errors."""
    metric, rng = named_metric(name, OPTIONS), np.random.default_rng(11)
    population = np.arange(40_000) % n < positive
    labels = population.astype(np.int64)
    lost = np.flatnonzero(population & (rng.random(len(labels)) < 0.1))
    noise = np.flatnonzero(~population & (rng.random(len(labels)) < 0.001))
    before, after = (metric.rows(flipped(labels, places), labels, None) for places in (noise[::2], np.r_[lost, noise]))
    truth = metric.value(before) - metric.value(after)
    passed = 0
    for _ in range(300):
        drawn = rng.integers(0, len(labels), n)
        drop, _ = estimate_drop(metric, before[drawn], after[drawn], 0.95, seed=0)
        passed += drop.high is not None and drop.high <= truth
    assert passed / 300 < 0.05 + 4 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize(
    "name", ["f1_macro", "auroc", "token_accuracy", "iou", "map50", "bleu", "wer", "recall_at_k", "ece"]
)
def test_wrong_answers_are_worse(name: str) -> None:
    """The rows of wrong answers have a value that is worse than those of right ones, and as many columns."""
    metric, rng = named_metric(name, OPTIONS), np.random.default_rng(5)
    outputs, labels = answers(name, rng)
    rows = metric.rows(outputs, labels, None)
    assert metric.wrong is not None
    wrong = metric.wrong(rows)
    assert wrong.rows.shape == rows.shape and wrong.kind.shape == (len(rows),)
    sign = 1 if metric.higher_is_better else -1
    assert sign * metric.value(wrong.rows) < sign * metric.value(rows)


def answers(name: str, rng: np.random.Generator) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Outputs of a good model, and labels."""
    labels = rng.integers(0, 3, 60)
    match name:
        case "token_accuracy" | "iou":
            labels = rng.integers(0, 3, (60, 7))
            scores = np.eye(3)[labels] + 0.3 * rng.normal(size=(60, 7, 3))
            return (scores if name == "token_accuracy" else np.moveaxis(scores, -1, 1)), labels
        case "map50":
            corner = rng.uniform(0, 50, (60, 1, 2))
            true = np.concatenate([corner, corner + 20, labels[:, None, None]], axis=2)
            found = np.concatenate([corner, corner + 19, rng.random((60, 1, 1)), labels[:, None, None]], axis=2)
            return found, true
        case "bleu" | "wer":
            meant = np.array([f"one two three four {label}" for label in labels])
            return meant, meant
        case "recall_at_k":
            return np.eye(3)[labels] + 0.1 * rng.normal(size=(60, 3)), labels
        case "ece":
            return 8 * np.eye(3)[labels], labels
    return np.eye(3)[labels] + 0.3 * rng.normal(size=(60, 3)), labels


def test_a_label_of_five_samples_gives_no_interval() -> None:
    """One of five labels has five samples of 1,000: they decide a fifth of the metric."""
    rng = np.random.default_rng(5)
    labels = (rng.random((1000, 5)) < 0.3).astype(np.int64)
    labels[:, 0] = np.arange(1000) < 5
    scores = 3.0 * labels - 1.5 + 0.3 * rng.normal(size=labels.shape)
    metric = named_metric("f1_multilabel", OPTIONS)
    before = metric.rows(scores, labels, None)
    assert metric.wrong is not None
    after = before.copy()
    rows, kinds = metric.wrong(before)
    after[500:520] = rows[500:520]
    assert len(np.unique(kinds[:5])) == 1 and not np.isin(kinds[5:], kinds[0]).any()
    _, method = estimate_drop(metric, before, after, 0.95, seed=1)
    assert "fewer than 8" in method


def test_many_kinds_of_samples_keep_their_rare_ones() -> None:
    """Of 60 kinds all are frequent but one, whose five samples alone move the metric."""
    kinds = np.r_[np.zeros(5, np.intp), 1 + np.arange(2995) % 59]
    rows, wrong = np.ones((3000, 2)), np.zeros((3000, 2))

    def drop_of(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
        return float((before[:5] - after[:5]).mean())

    reach = reach_of(
        rows,
        rows,
        drop_of,
        np.arange(3000),
        np.random.default_rng(0),
        wrong=(wrong, kinds),
        moved=None,
        alike=True,
        enough=59,
    )
    assert (reach.units, reach.largest) == pytest.approx((5, 0.2))


def test_noise_on_few_samples_is_no_evidence_against_losses() -> None:
    """All scores of 15 positives change a little: with none lost, three of them may be (none of 15 seen)."""
    rng = np.random.default_rng(7)
    labels = (np.arange(1000) < 15).astype(np.int64)
    scores = np.where(labels == 1, 2.0, -2.0) + 0.5 * rng.normal(size=1000)
    metric = named_metric("auroc", OPTIONS)
    rows = [metric.rows(each[:, None], labels, None) for each in (scores, scores + 0.05 * rng.normal(size=1000))]
    drop, _ = estimate_drop(metric, *rows, 0.95, seed=1)
    assert drop.high == pytest.approx(1 - 0.05 ** (1 / 15), abs=0.01)
