"""Metrics by the names of other libraries: each has the library's value, and others are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.texts import make_decoder
from validators.errors import JobError
from validators.job.job_data import TextDecoding
from validators.job.metric_facts import LIBRARY_METRICS, METRICS, our_metric
from validators.job.read_job import parse_job

Array = NDArray[Any]
CASES, N, CLASSES = 20, 40, 4
WORDS = np.array(["the", "cat", "sat", "on", "a", "mat", "dogs,", "don't", "bark!"])


def softmax(values: Array) -> Array:
    powers: Array = np.exp(values - values.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def scores(rng: np.random.Generator) -> tuple[Array, Array]:
    return softmax(rng.normal(size=(N, CLASSES))), np.resize(rng.permutation(CLASSES), N)


def binary(rng: np.random.Generator) -> tuple[Array, Array]:
    return rng.random(N), np.resize(rng.permutation(2), N)


def values(rng: np.random.Generator) -> tuple[Array, Array]:
    labels = rng.normal(size=N)
    return labels + rng.normal(size=N) / 2, labels


def multilabel(rng: np.random.Generator) -> tuple[Array, Array]:
    labels = rng.integers(0, 2, (N, CLASSES))
    labels[0] = 1
    return rng.random((N, CLASSES)), labels


def texts(rng: np.random.Generator) -> tuple[Array, Array]:
    labels = rng.choice(WORDS, (N, 8))
    answers = np.where(rng.random(labels.shape) < 0.2, rng.choice(WORDS, labels.shape), labels)
    return np.array([" ".join(row) for row in answers]), np.array([" ".join(row) for row in labels])


# Outputs and labels, by the name of our metric.
DRAWN: dict[str, Callable[[np.random.Generator], tuple[Array, Array]]] = {
    "accuracy": scores,
    "pr_auc": scores,
    "auroc": scores,
    "f1_macro": scores,
    "log_loss": scores,
    "ece": scores,
    "f1_binary": binary,
    "precision_binary": binary,
    "recall_binary": binary,
    "f1_multilabel": multilabel,
    "mae": values,
    "mape": values,
    "mse": values,
    "rmse": values,
    "r2": values,
    "spearman": values,
    "wer": texts,
    "cer": texts,
    "bleu": texts,
    "exact_match": texts,
}
OF_ONE_SCORE = ("roc_auc_score", "BinaryAUROC", "BinaryAveragePrecision")


def library_value(name: str, outputs: Array, labels: Array) -> float:
    """The value by the library, called with its defaults."""
    module, _, what = name.rpartition(".")
    made = getattr(import_module(module), what)
    if module == "sklearn.metrics":
        if what in ("accuracy_score", "f1_score", "precision_score", "recall_score"):
            outputs = outputs.argmax(1) if outputs.ndim == 2 else outputs > 0.5
        return float(made(labels, outputs))
    if module == "mlflow.metrics":
        answers = outputs > 0.5 if what in ("f1_score", "precision_score", "recall_score") else outputs
        found = made().eval_fn(pd.Series(answers), pd.Series(labels))
        return float(next(iter(found.aggregate_results.values())))
    needed = (
        {"num_classes": CLASSES} if "Multiclass" in what else {"num_labels": CLASSES} if "Multilabel" in what else {}
    )
    if outputs.dtype.kind == "U":
        wanted = [[label] for label in labels.tolist()] if what == "SacreBLEUScore" else labels.tolist()
        return float(made()(outputs.tolist(), wanted))
    return float(made(**needed)(torch.tensor(outputs), torch.tensor(labels)))


def our_value(name: str, outputs: Array, labels: Array) -> float:
    ours = our_metric(name)
    options = Options(
        0.5 if METRICS[ours].has_threshold else None,
        make_decoder(TextDecoding()),
        scores="probabilities" if ours in ("ece", "log_loss") else None,
    )
    metric = named_metric(ours, options)
    return float(metric.value(metric.rows(outputs, labels, None)))


@pytest.mark.parametrize("name", LIBRARY_METRICS)
def test_a_library_metric_has_the_value_of_the_library(name: str) -> None:
    rng = np.random.default_rng(5)
    draw = binary if name.endswith(OF_ONE_SCORE) else DRAWN[LIBRARY_METRICS[name]]
    # torchmetrics computes in single precision.
    equal = 2e-6 if name.startswith("torchmetrics") else 1e-9
    for _ in range(CASES):
        outputs, labels = draw(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = library_value(name, outputs, labels)
        assert our_value(name, outputs, labels) == pytest.approx(expected, abs=equal)


def test_a_job_holds_our_name() -> None:
    raw = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}
    assert parse_job(raw | {"metric": "torchmetrics.text.WordErrorRate"}, base=Path()).metric == "wer"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("torchmetrics.text.WordErorRate", "such as torchmetrics.text.WordErrorRate"),
        ("torchmetrics.classification.MulticlassAccuracy", "no metric with the same value here"),
        ("sklearn.metrics.accuracy", "such as sklearn.metrics.accuracy_score"),
        ("mlflow.metrics.toxicity", "no metric with the same value here"),
    ],
)
def test_other_metrics_are_refused(name: str, words: str) -> None:
    raw = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}, "metric": name}
    with pytest.raises(JobError, match="metric") as caught:
        parse_job(raw, base=Path())
    assert words in caught.value.found and "docs/own-metric.md" in caught.value.found


def test_the_page_lists_every_name() -> None:
    page = (Path(__file__).parents[4] / "docs" / "own-metric.md").read_text(encoding="utf-8")
    assert [name for name in LIBRARY_METRICS if f"`{name}`" not in page] == []
