"""Baselines at chance level are warned of, whatever the metric; baselines that know something are not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from report_data import RESULT

from flows.cli.results import result_parts
from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.chance import chance_warning
from tasks.measure.metrics.texts import Decoder
from tasks.reporting import markdown, page
from validators.job.job import TextDecoding

Array = NDArray[np.float64]
CLASSES, N = 4, 300


def scores(labels: NDArray[np.int64], rng: np.random.Generator, strength: float, classes: int = CLASSES) -> Array:
    return rng.normal(size=(len(labels), classes)) + strength * np.eye(classes)[labels]


def classes(count: int) -> Callable[[np.random.Generator, float], tuple[Array, NDArray[np.int64]]]:
    def draw(rng: np.random.Generator, strength: float) -> tuple[Array, NDArray[np.int64]]:
        labels = rng.integers(0, count, N)
        return scores(labels, rng, strength, count), labels

    return draw


def tokens(rng: np.random.Generator, strength: float) -> tuple[Array, NDArray[np.int64]]:
    """Twelve tokens a sample, of which some do not count."""
    labels = rng.integers(0, CLASSES, (N, 12))
    outputs = rng.normal(size=(N, 12, CLASSES)) + strength * np.eye(CLASSES)[labels]
    return outputs, np.where(rng.random(labels.shape) < 0.2, -100, labels)


def values(rng: np.random.Generator, strength: float) -> tuple[Array, Array]:
    labels = rng.normal(3, 2, N)
    # Without strength the mean and noise, as a model that was never trained gives.
    return (3 + strength * (labels - 3) + rng.normal(0, 0.5, N))[:, None], labels


CASES: dict[str, tuple[Callable[[np.random.Generator, float], tuple[Array, Array | NDArray[np.int64]]], float]] = {
    "accuracy": (classes(4), 1.0),
    "top5": (classes(12), 1.5),
    "f1_macro": (classes(4), 1.0),
    "f1_binary": (classes(2), 1.0),
    "precision_binary": (classes(2), 1.0),
    "recall_binary": (classes(2), 1.0),
    "auroc": (classes(2), 1.0),
    "mse": (values, 0.7),
    "rmse": (values, 0.7),
    "mae": (values, 0.7),
    "r2": (values, 0.7),
    "spearman": (values, 0.7),
    "pr_auc": (classes(2), 1.0),
    "log_loss": (classes(4), 3.0),
    "token_accuracy": (tokens, 0.5),
    "pixel_accuracy": (lambda rng, strength: (np.moveaxis((t := tokens(rng, strength))[0], 2, 1), t[1]), 0.5),
}
OPTIONS = Options(None, Decoder(TextDecoding(), None, ""), scores="logits")


def warned(name: str, seed: int, strength: float) -> str:
    metric = named_metric(name, OPTIONS)
    outputs, labels = CASES[name][0](np.random.default_rng(seed), strength)
    return chance_warning(metric, metric.rows(outputs, labels, None), labels, seed)


@pytest.mark.parametrize("name", CASES)
def test_a_baseline_at_chance_is_warned_of(name: str) -> None:
    """Of baselines that know nothing 95 % are; fewer than 34 of 40 have a chance of 1 in 1,000."""
    found = [warned(name, seed, 0.0) for seed in range(40)]
    assert sum(map(bool, found)) >= 34
    text = next(filter(None, found))
    assert f"the baseline is at chance level: {name}" in text and "nothing can be concluded" in text


@pytest.mark.parametrize("name", CASES)
def test_a_baseline_that_knows_something_is_not_warned_of(name: str) -> None:
    assert not any(warned(name, seed, CASES[name][1]) for seed in range(20))


def test_chance_of_rare_classes_is_the_most_frequent_one() -> None:
    """Always the frequent class is right on 90 %, and no better than chance by it."""
    labels = np.repeat([0, 1], [270, 30])
    metric = named_metric("accuracy", OPTIONS)
    same = np.tile([1.0, 0.0], (N, 1))
    assert "not significantly better than 0.9, the accuracy of always giving the most frequent class" in chance_warning(
        metric, metric.rows(same, labels, None), labels, 0
    )
    assert not chance_warning(metric, metric.rows(np.eye(2)[labels], labels, None), labels, 0)


def test_metrics_without_labels_or_chance_level_give_no_warning() -> None:
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(N, CLASSES))
    for name in ("agreement", "cosine", "sqnr"):
        metric = named_metric(name, OPTIONS)  # type: ignore[arg-type]  # of a loop
        assert not chance_warning(metric, metric.rows(outputs, None, None), None, 0)


def test_warning_is_on_page_in_markdown_and_in_the_terminal() -> None:
    warning = "the baseline is at chance level: accuracy 0.27"
    assert RESULT.baseline is not None
    result = RESULT.model_copy(update={"baseline": RESULT.baseline.model_copy(update={"warning": warning})})
    assert warning in page.render_page(result, None)
    assert warning in markdown.verdict_markdown(result)
    assert f"warning:   {warning}" in result_parts(result)
    assert "at chance level" not in markdown.verdict_markdown(RESULT) + page.render_page(RESULT, None)
