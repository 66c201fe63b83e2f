"""Plain facts of each metric: all that the job, the gates and the pages know of it.

Values are those of `tasks/measure/metrics/catalog.py`, also for the names of other libraries: pairing with the baseline,
clusters and intervals need one score a sample or sums over samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# "classes" have a winner, "tags" do not exclude each other, "cells" have a class each, and "boxes" come from several outputs.
# "windows" of a language model's logits are scored one by one and not kept.
Kind = Literal[
    "classes", "tags", "cells", "values", "embeddings", "noise", "windows", "text", "rankings", "boxes", "function"
]


@dataclass(frozen=True)
class MetricFacts:
    """Facts of one metric.

    The drop of a share is shown in points. Metrics with a threshold read a value above `metric_threshold` as yes, and those
    with scores need `metric_scores`. `max_drop` says what a `max_drop` of 0.02 means. `of_constant` is for metrics in the unit
    of the label, or in its square: the error of the best constant answer to labels `(n, k)`, and its words. `same_as` names the
    metrics of other libraries, by spaces, that agree under their defaults, as a test shows. Others differ: torchmetrics'
    `MulticlassAccuracy` averages over classes, its `BLEUScore` splits words at spaces, and MLflow's `precision_recall_auc`
    interpolates.
    """

    kind: Kind
    is_share: bool = True
    has_threshold: bool = False
    has_scores: bool = False
    needs_k: bool = False
    max_drop: str = "largest allowed drop: 0.02 is 2 points"
    of_constant: tuple[Callable[[NDArray[Any]], Any], str] | None = None
    same_as: str = ""

    @property
    def has_drop(self) -> bool:
        """False for a metric that compares with the baseline itself."""
        return self.kind != "noise"


_R2 = "; or use the metric `r2`, for which 0.02 means the same with every label"
_MSE = (lambda labels: labels.var(axis=0).mean(), f"variance{_R2}")
_RMSE = (lambda labels: labels.std(axis=0).mean(), f"standard deviation{_R2}")
_MAE = (lambda labels: np.abs(labels - np.median(labels, axis=0)).mean(), "mean deviation from the median")

METRICS: Mapping[str, MetricFacts] = {
    "accuracy": MetricFacts("classes", same_as="sklearn.metrics.accuracy_score"),
    "top5": MetricFacts("classes"),
    "agreement": MetricFacts("classes"),
    "f1_macro": MetricFacts("classes", same_as="torchmetrics.classification.MulticlassF1Score"),
    "f1_binary": MetricFacts(
        "classes",
        has_threshold=True,
        same_as="sklearn.metrics.f1_score torchmetrics.classification.BinaryF1Score mlflow.metrics.f1_score",
    ),
    "precision_binary": MetricFacts(
        "classes",
        has_threshold=True,
        same_as="sklearn.metrics.precision_score torchmetrics.classification.BinaryPrecision mlflow.metrics.precision_score",
    ),
    "recall_binary": MetricFacts(
        "classes",
        has_threshold=True,
        same_as="sklearn.metrics.recall_score torchmetrics.classification.BinaryRecall mlflow.metrics.recall_score",
    ),
    "f1_multilabel": MetricFacts("tags", has_threshold=True, same_as="torchmetrics.classification.MultilabelF1Score"),
    "f1_multilabel_micro": MetricFacts("tags", has_threshold=True),
    "auroc": MetricFacts(
        "classes",
        same_as="sklearn.metrics.roc_auc_score torchmetrics.classification.BinaryAUROC "
        "torchmetrics.classification.MulticlassAUROC",
    ),
    "pr_auc": MetricFacts(
        "classes",
        same_as="sklearn.metrics.average_precision_score torchmetrics.classification.BinaryAveragePrecision "
        "torchmetrics.classification.MulticlassAveragePrecision",
    ),
    "log_loss": MetricFacts("classes", is_share=False, has_scores=True, same_as="sklearn.metrics.log_loss"),
    "ece": MetricFacts("classes", has_scores=True, same_as="torchmetrics.classification.MulticlassCalibrationError"),
    "token_accuracy": MetricFacts("cells"),
    "pixel_accuracy": MetricFacts("cells", has_threshold=True),
    "iou": MetricFacts("cells", has_threshold=True),
    "dice": MetricFacts("cells", has_threshold=True),
    "mse": MetricFacts(
        "values",
        is_share=False,
        of_constant=_MSE,
        same_as="sklearn.metrics.mean_squared_error torchmetrics.regression.MeanSquaredError mlflow.metrics.mse",
    ),
    "rmse": MetricFacts(
        "values",
        is_share=False,
        of_constant=_RMSE,
        same_as="sklearn.metrics.root_mean_squared_error mlflow.metrics.rmse",
    ),
    "mae": MetricFacts(
        "values",
        is_share=False,
        of_constant=_MAE,
        same_as="sklearn.metrics.mean_absolute_error torchmetrics.regression.MeanAbsoluteError mlflow.metrics.mae",
    ),
    "mape": MetricFacts(
        "values",
        same_as="sklearn.metrics.mean_absolute_percentage_error torchmetrics.regression.MeanAbsolutePercentageError "
        "mlflow.metrics.mape",
    ),
    "r2": MetricFacts(
        "values",
        is_share=False,
        max_drop="2 points of the explained variance; mse and mae need a bound in their own units",
        same_as="sklearn.metrics.r2_score torchmetrics.regression.R2Score mlflow.metrics.r2_score",
    ),
    "cosine": MetricFacts("embeddings", is_share=False),
    "spearman": MetricFacts("embeddings", is_share=False, same_as="torchmetrics.regression.SpearmanCorrCoef"),
    "sqnr": MetricFacts("noise", is_share=False),
    "perplexity": MetricFacts("windows", is_share=False, max_drop="nats per token: exp(0.02) is 2 % more perplexity"),
    "greedy_match": MetricFacts("windows", is_share=False),
    "wer": MetricFacts("text", same_as="torchmetrics.text.WordErrorRate"),
    "cer": MetricFacts("text", same_as="torchmetrics.text.CharErrorRate"),
    "exact_match": MetricFacts("text", same_as="mlflow.metrics.exact_match"),
    "bleu": MetricFacts("text", same_as="torchmetrics.text.SacreBLEUScore"),
    "rouge": MetricFacts("text"),
    "recall_at_k": MetricFacts("rankings", needs_k=True),
    "ndcg": MetricFacts("rankings"),
    "mrr": MetricFacts("rankings"),
    "map": MetricFacts("boxes"),
    "map50": MetricFacts("boxes"),
}
LIBRARY_METRICS: Mapping[str, str] = {other: name for name, facts in METRICS.items() for other in facts.same_as.split()}

# Description of `metric` in the job's schema.
ABOUT = """\
For class scores: `accuracy`, `top5`, `f1_macro`, `auroc` and `pr_auc`, the average precision (both for several
classes the mean of one against the rest), `f1_binary`, `precision_binary` and `recall_binary` of class 1, `log_loss` in
nats and `ece`, the expected calibration error of 15 bins (see `metric_scores`), and without labels `agreement` with the
baseline's top-1 class. For several labels per sample: `f1_multilabel`, the mean over labels, and `f1_multilabel_micro`,
that of all decisions. For a class per token or pixel: `token_accuracy`, `pixel_accuracy`, and `iou` and `dice`, each of
a class over all samples, their mean over the classes that occur. For values: `mse`, `rmse`, `mae`, `mape` (a share of
the label), `r2`, and `spearman`, the rank correlation with the label. For embeddings: `cosine` with the label's
embedding, or without labels the baseline's, and `spearman` of the cosine of samples 2i and 2i + 1 with the label of
both; for retrieval by embeddings `recall_at_k`, `ndcg` and `mrr`, see `metric_k`. For text: `wer`, `cer`,
`exact_match`, `bleu` (as sacrebleu's, over 100) and `rouge` (ROUGE-L), see `text`; `perplexity` of the next token, and
`greedy_match`, the share of windows whose labelled tokens are what the model answers greedily. For boxes: `map`, the
mean average precision at overlaps of 0.5 to 0.95, and `map50`, see `output`. For any output, without labels: `sqnr`,
the signal-to-quantization-noise ratio in dB, which needs `gates.min_sqnr_db` and has no drop. The dotted name of a
metric of scikit-learn, torchmetrics or MLflow becomes ours where the values are equal, see docs/own-metric.md. Or
`module:function`, your own function of outputs and labels that returns one score per sample or one number for all; see
`code` and `metric_direction`."""


def metric_facts(name: str) -> MetricFacts:
    """Return the facts of a metric; those of a user's function for any name that is none of ours."""
    return METRICS.get(name) or MetricFacts("function", is_share=False)


def metrics_that(fit: Callable[[MetricFacts], bool]) -> list[str]:
    """Return the names of metrics whose facts fit."""
    return [name for name, facts in METRICS.items() if fit(facts)]


def our_metric(name: str) -> str:
    """Return the name of our metric for the dotted name of a library's metric; any other name as it is.

    Raises:
        ValueError: it is no metric that has the same value here.

    >>> our_metric("torchmetrics.text.WordErrorRate"), our_metric("accuracy")
    ('wer', 'accuracy')
    """
    if "." not in name or ":" in name:
        return name
    if name in LIBRARY_METRICS:
        return LIBRARY_METRICS[name]
    close = get_close_matches(name, LIBRARY_METRICS, n=1)
    hint = f", such as {close[0]}" if close else ""
    raise ValueError(
        f"{name} is no metric with the same value here; expected one of docs/own-metric.md{hint}, a name from the list, or "
        "`module:function` for a function of your own"
    )
