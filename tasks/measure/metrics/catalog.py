"""Table of the metrics by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from tasks.measure.metrics import classification, values
from tasks.measure.metrics.by_task import cells, detection, generated_text, probabilities, retrieval
from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, as_rows, mean_of_scores, misfit
from tasks.measure.metrics.perplexity import match_windows, perplexity, score_windows
from tasks.measure.metrics.text_errors import Decoder, error_rate
from validators.job.job import MetricName
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec


@dataclass(frozen=True)
class Options:
    """Options of some metrics, from the job.

    They are the threshold of values, the decoder of outputs to text, what class scores are, and the length of a ranking.
    """

    threshold: float | None
    decoder: Decoder
    scores: probabilities.Scores | None = None
    k: int | None = None


def _of_windows(outputs: Outputs, _: Labels | None, __: Outputs | None) -> Rows:
    """Return the figures of windows as rows; the logits of all samples are never held (see `perplexity`)."""
    return as_rows(outputs)


def _perplexity(rows: Rows) -> float:
    return perplexity(rows[:, 0])


def _windows(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    return _labelled("perplexity", output, shape, required=False)


def _answers(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    return _labelled("greedy_match", output, shape, required=True)


def _labelled(name: MetricName, output: TensorSpec, shape: tuple[int, ...], *, required: bool) -> LabelSpec:
    if len(shape) != 3 or shape[1] < 2 or shape[2] < 2:
        raise misfit(name, output, shape, "logits of shape (samples, tokens, vocabulary), 2 tokens or more")
    # `targets_of` checks labels against the logits, and falls back to the input's tokens.
    return LabelSpec("any", required=required)


PERPLEXITY = Metric(
    "perplexity",
    _of_windows,
    _perplexity,
    _windows,
    higher_is_better=False,
    span=math.inf,
    of_windows=score_windows,
)
GREEDY_MATCH = Metric(
    "greedy_match", _of_windows, mean_of_scores, _answers, is_right_or_wrong=True, of_windows=match_windows
)

_MAKERS: dict[MetricName, Callable[[Options], Metric]] = {
    "accuracy": lambda _: classification.ACCURACY,
    "top5": lambda _: classification.TOP5,
    "agreement": lambda _: classification.AGREEMENT,
    "f1_macro": lambda _: classification.F1_MACRO,
    "f1_binary": lambda options: classification.of_class_one("f1_binary", options.threshold),
    "precision_binary": lambda options: classification.of_class_one("precision_binary", options.threshold),
    "recall_binary": lambda options: classification.of_class_one("recall_binary", options.threshold),
    "f1_multilabel": lambda options: probabilities.f1_multilabel("macro", options.threshold),
    "f1_multilabel_micro": lambda options: probabilities.f1_multilabel("micro", options.threshold),
    "auroc": lambda _: classification.AUROC,
    "pr_auc": lambda _: classification.PR_AUC,
    "log_loss": lambda options: probabilities.log_loss(options.scores),
    "ece": lambda options: probabilities.calibration_error(options.scores),
    "token_accuracy": lambda _: cells.cell_accuracy("token_accuracy", None),
    "pixel_accuracy": lambda options: cells.cell_accuracy("pixel_accuracy", options.threshold),
    "iou": lambda options: cells.overlap("iou", options.threshold),
    "dice": lambda options: cells.overlap("dice", options.threshold),
    "mse": lambda _: values.MSE,
    "rmse": lambda _: values.RMSE,
    "mae": lambda _: values.MAE,
    "mape": lambda _: values.MAPE,
    "r2": lambda _: values.R2,
    "cosine": lambda _: values.COSINE,
    "spearman": lambda _: values.SPEARMAN,
    "sqnr": lambda _: values.SQNR,
    "perplexity": lambda _: PERPLEXITY,
    "greedy_match": lambda _: GREEDY_MATCH,
    "wer": lambda options: error_rate("wer", options.decoder),
    "cer": lambda options: error_rate("cer", options.decoder),
    "exact_match": lambda options: generated_text.text_score("exact_match", options.decoder),
    "bleu": lambda options: generated_text.bleu(options.decoder),
    "rouge": lambda options: generated_text.text_score("rouge", options.decoder),
    "recall_at_k": lambda options: retrieval.retrieval("recall_at_k", options.k),
    "ndcg": lambda options: retrieval.retrieval("ndcg", options.k),
    "mrr": lambda options: retrieval.retrieval("mrr", options.k),
    "map": lambda _: detection.mean_average_precision("map"),
    "map50": lambda _: detection.mean_average_precision("map50"),
}


def named_metric(name: MetricName, options: Options) -> Metric:
    """Return the metric with this name."""
    return _MAKERS[name](options)
