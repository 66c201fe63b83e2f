"""Test that the baseline is better than chance: a variant of a model at chance level has nothing to lose."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tasks.measure.metrics.metric import Labels, Metric, Rows, Vector, flat
from validators.samples.labels import IGNORED

# One-sided: 95 % of baselines at chance level get a warning.
MAX_P_VALUE = 0.05
# The smallest p-value of this many permutations is 1 in 200.
PERMUTATIONS = 199
_BEST_OF = {"accuracy": 1, "top5": 5, "exact_match": 1}
_PERMUTED = ("f1_macro", "f1_binary", "precision_binary", "recall_binary", "auroc", "pr_auc", "spearman")
_CONSTANT = ("mse", "rmse", "mae", "r2")
_CELLS = ("token_accuracy", "pixel_accuracy")


def chance_warning(metric: Metric, rows: Rows, labels: Labels | None, seed: int) -> str:
    """Return a warning if a baseline is no better than answers that ignore the input, else "".

    `rows` are the metric's rows, float64 `(n, k)`; `labels` are those of the same samples. The chance level is that of the
    most frequent classes (exact binomial test; Student's test of paired samples for cells and for the log-loss, whose constant
    is the share of each class), of answers assigned to other samples (permutation test), or of a constant: the mean or median
    of the labels (Student's test of paired losses). The result is "" for metrics without a chance level, without labels, and
    for rows that are not finite.

    >>> from tasks.measure.metrics.classification import ACCURACY
    >>> right = np.array([[1.0]] * 27 + [[0.0]] * 73)
    >>> chance_warning(ACCURACY, right, np.arange(100) % 4, 0).split(" is not")[0]
    'the baseline is at chance level: accuracy 0.27 on 100 samples'
    """
    if labels is None or not np.isfinite(rows).all() or len(rows) < 2:
        return ""
    if metric.name in _BEST_OF:
        level, p_value, what = _frequent_classes(rows, labels, _BEST_OF[metric.name])
    elif metric.name in _PERMUTED:
        level, p_value = _permuted(metric, rows, np.random.default_rng(seed))
        what = "giving the same answers to other samples"
    elif metric.name in _CONSTANT:
        level, p_value = _constant(metric.name, rows, labels)
        what = f"always answering the {'median' if metric.name == 'mae' else 'mean'} of the labels"
    elif metric.name in _CELLS:
        level, p_value = _frequent_cells(rows, labels)
        what = "always giving the most frequent class"
    elif metric.name == "log_loss":
        level, p_value = _shares(rows, labels)
        what = "always giving the share of each class"
    else:
        return ""
    if p_value <= MAX_P_VALUE:
        return ""
    return (
        f"the baseline is at chance level: {metric.name} {metric.value(rows):.4g} on {len(rows)} samples is not significantly"
        f" better than {level:.4g}, the {metric.name} of {what} (one-sided p = {p_value:.2g}); nothing can be concluded from"
        " the drop of a variant: check that the labels fit the outputs, and the preprocessing of the data"
    )


def _frequent_classes(rows: Rows, labels: Labels, count: int) -> tuple[float, float, str]:
    """Return level, p-value and description of always giving the `count` most frequent classes."""
    counts = np.sort(np.unique(labels, axis=0, return_counts=True)[1])[::-1]
    level = float(counts[:count].sum() / len(labels))
    p_value = float(stats.binom.sf(rows[:, 0].sum() - 1, len(rows), level))
    return (
        level,
        p_value,
        f"always giving the {f'{count} ' if count > 1 else ''}most frequent class{'es' * (count > 1)}",
    )


def _frequent_cells(rows: Rows, labels: Labels) -> tuple[float, float]:
    """Return level and p-value of always giving the most frequent class of all cells; samples are the units."""
    values, counts = np.unique(labels[labels != IGNORED], return_counts=True)
    right = (labels == values[counts.argmax()]).reshape(len(labels), -1).sum(axis=1)
    return float(right.sum() / rows[:, 1].sum()), _p_value(rows[:, 0] - right)


def _shares(rows: Rows, labels: Labels) -> tuple[float, float]:
    """Return level and p-value of the log-loss of the shares of the classes."""
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    losses = -np.log(counts / len(labels))[places.reshape(-1)]
    return float(losses.mean()), _p_value(losses - rows[:, 0])


def _permuted(metric: Metric, rows: Rows, rng: np.random.Generator) -> tuple[float, float]:
    """Return the mean metric over permutations of the labels (the first column), and the p-value of the actual order."""
    value = metric.value(rows)
    dealt = []
    for _ in range(PERMUTATIONS):
        order = rng.permutation(len(rows))
        dealt.append(metric.value(np.column_stack([rows[order, 0], rows[:, 1:]])))
    found: NDArray[np.float64] = np.array(dealt)
    return float(np.nanmean(found)), (1 + int((found >= value).sum())) / (1 + PERMUTATIONS)


def _constant(name: str, rows: Rows, labels: Labels) -> tuple[float, float]:
    """Return the metric of the best constant, and the p-value that the baseline's losses are lower."""
    targets = flat(labels)
    if name == "mae":
        constant: Vector = np.abs(targets - np.median(targets, axis=0)).mean(axis=1)
        return float(constant.mean()), _p_value(constant - rows[:, 0])
    spread = (targets - targets.mean(axis=0)) ** 2
    if name == "mse":
        constant = spread.mean(axis=1)
        return float(constant.mean()), _p_value(constant - rows[:, 0])
    errors = np.split(rows, 2, axis=1)[1] ** 2
    if name == "rmse":
        return float(np.sqrt(spread.mean(axis=0)).mean()), _p_value((spread - errors).mean(axis=1))
    varied = spread.sum(axis=0) > 0
    return 0.0, _p_value(((spread - errors)[:, varied] / spread.mean(axis=0)[varied]).mean(axis=1))


def _p_value(saved: Vector) -> float:
    """Return the p-value of a mean above 0 (Student); 0 or 1 if all values are equal."""
    if np.ptp(saved) == 0:
        return float(saved[0] <= 0)
    return float(stats.ttest_1samp(saved, 0.0, alternative="greater").pvalue)
