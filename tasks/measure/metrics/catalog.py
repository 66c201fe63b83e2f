"""Table of the metrics by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tasks.measure.metrics import cells, classification, detection, perplexity, probabilities, retrieval, texts, values
from tasks.measure.metrics.metric import Metric


@dataclass(frozen=True)
class Options:
    """Options of some metrics, from the job.

    They are the threshold of values, the decoder of outputs to text, what class scores are, and the length of a ranking.
    """

    threshold: float | None
    decoder: texts.Decoder
    scores: probabilities.Scores | None = None
    k: int | None = None


_MAKERS: dict[str, Callable[[Options], Metric]] = {
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
    "perplexity": lambda _: perplexity.PERPLEXITY,
    "greedy_match": lambda _: perplexity.GREEDY_MATCH,
    "wer": lambda options: texts.error_rate("wer", options.decoder),
    "cer": lambda options: texts.error_rate("cer", options.decoder),
    "exact_match": lambda options: texts.text_score("exact_match", options.decoder),
    "bleu": lambda options: texts.bleu(options.decoder),
    "rouge": lambda options: texts.text_score("rouge", options.decoder),
    "recall_at_k": lambda options: retrieval.retrieval("recall_at_k", options.k),
    "ndcg": lambda options: retrieval.retrieval("ndcg", options.k),
    "mrr": lambda options: retrieval.retrieval("mrr", options.k),
    "map": lambda _: detection.mean_average_precision("map"),
    "map50": lambda _: detection.mean_average_precision("map50"),
}


def named_metric(name: str, options: Options) -> Metric:
    """Return the metric with this name."""
    return _MAKERS[name](options)
