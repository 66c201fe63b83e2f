"""Names of other libraries' metrics that have the same value as one of ours, so that a job may name them.

Values are computed by ours: pairing with the baseline, clusters and intervals need one score a sample or sums over samples.
Only metrics that agree under their defaults are here, each held against its library by a test. Others differ: torchmetrics'
`MulticlassAccuracy` averages over classes, its `BLEUScore` splits words at spaces, and MLflow's `precision_recall_auc`
interpolates.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

_SKLEARN: Mapping[str, str] = {
    "accuracy_score": "accuracy",
    "average_precision_score": "pr_auc",
    "f1_score": "f1_binary",
    "log_loss": "log_loss",
    "mean_absolute_error": "mae",
    "mean_absolute_percentage_error": "mape",
    "mean_squared_error": "mse",
    "precision_score": "precision_binary",
    "r2_score": "r2",
    "recall_score": "recall_binary",
    "roc_auc_score": "auroc",
    "root_mean_squared_error": "rmse",
}
_TORCHMETRICS: Mapping[str, str] = {
    "classification.BinaryAUROC": "auroc",
    "classification.BinaryAveragePrecision": "pr_auc",
    "classification.BinaryF1Score": "f1_binary",
    "classification.BinaryPrecision": "precision_binary",
    "classification.BinaryRecall": "recall_binary",
    "classification.MulticlassAUROC": "auroc",
    "classification.MulticlassAveragePrecision": "pr_auc",
    "classification.MulticlassCalibrationError": "ece",
    "classification.MulticlassF1Score": "f1_macro",
    "classification.MultilabelF1Score": "f1_multilabel",
    "regression.MeanAbsoluteError": "mae",
    "regression.MeanAbsolutePercentageError": "mape",
    "regression.MeanSquaredError": "mse",
    "regression.R2Score": "r2",
    "regression.SpearmanCorrCoef": "spearman",
    "text.CharErrorRate": "cer",
    "text.SacreBLEUScore": "bleu",
    "text.WordErrorRate": "wer",
}
_MLFLOW: Mapping[str, str] = {
    "exact_match": "exact_match",
    "f1_score": "f1_binary",
    "mae": "mae",
    "mape": "mape",
    "mse": "mse",
    "precision_score": "precision_binary",
    "r2_score": "r2",
    "recall_score": "recall_binary",
    "rmse": "rmse",
}

LIBRARY_METRICS: Mapping[str, str] = {
    **{f"sklearn.metrics.{name}": ours for name, ours in _SKLEARN.items()},
    **{f"torchmetrics.{name}": ours for name, ours in _TORCHMETRICS.items()},
    **{f"mlflow.metrics.{name}": ours for name, ours in _MLFLOW.items()},
}


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
