"""Test that the baseline is better than chance: a variant of a model at chance level has nothing to lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from tasks.measure.metrics.metric import Labels, Metric, Rows, Vector, flat
from validators.samples.labels import IGNORED

# One-sided: 95 % of baselines at chance level get a warning.
MAX_P_VALUE = 0.05
# The smallest p-value of this many permutations is 1 in 200.
PERMUTATIONS = 199

Chance = Callable[[Metric, Rows, Labels, np.random.Generator], tuple[float, float, str]]


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
    if metric.chance is None or labels is None or not np.isfinite(rows).all() or len(rows) < 2:
        return ""
    level, p_value, what = metric.chance(metric, rows, labels, np.random.default_rng(seed))
    if p_value <= MAX_P_VALUE:
        return ""
    return (
        f"the baseline is at chance level: {metric.name} {metric.value(rows):.4g} on {len(rows)} samples is not significantly"
        f" better than {level:.4g}, the {metric.name} of {what} (one-sided p = {p_value:.2g}); nothing can be concluded from"
        " the drop of a variant: check that the labels fit the outputs, and the preprocessing of the data"
    )


def of_frequent_classes(count: int) -> Chance:
    """Return the test against always giving the `count` most frequent classes."""
    what = f"always giving the {f'{count} ' if count > 1 else ''}most frequent class{'es' * (count > 1)}"

    def test(_: Metric, rows: Rows, labels: Labels, __: np.random.Generator) -> tuple[float, float, str]:
        counts = np.sort(np.unique(labels, axis=0, return_counts=True)[1])[::-1]
        level = float(counts[:count].sum() / len(labels))
        return level, float(stats.binom.sf(rows[:, 0].sum() - 1, len(rows), level)), what

    return test


def of_frequent_cells(_: Metric, rows: Rows, labels: Labels, __: np.random.Generator) -> tuple[float, float, str]:
    """Test against always giving the most frequent class of all cells; samples are the units."""
    values, counts = np.unique(labels[labels != IGNORED], return_counts=True)
    right = (labels == values[counts.argmax()]).reshape(len(labels), -1).sum(axis=1)
    level = float(right.sum() / rows[:, 1].sum())
    return level, _p_value(rows[:, 0] - right), "always giving the most frequent class"


def of_shares(__: Metric, rows: Rows, labels: Labels, ___: np.random.Generator) -> tuple[float, float, str]:
    """Test against the log-loss of the shares of the classes."""
    _, places, counts = np.unique(labels, return_inverse=True, return_counts=True)
    losses = -np.log(counts / len(labels))[places.reshape(-1)]
    return float(losses.mean()), _p_value(losses - rows[:, 0]), "always giving the share of each class"


def of_permutations(metric: Metric, rows: Rows, __: Labels, rng: np.random.Generator) -> tuple[float, float, str]:
    """Test against the mean metric over permutations of the labels, which are the first column."""
    value = metric.value(rows)
    dealt = []
    for _step in range(PERMUTATIONS):
        order = rng.permutation(len(rows))
        dealt.append(metric.value(np.column_stack([rows[order, 0], rows[:, 1:]])))
    found: NDArray[np.float64] = np.array(dealt)
    p_value = (1 + int((found >= value).sum())) / (1 + PERMUTATIONS)
    return float(np.nanmean(found)), p_value, "giving the same answers to other samples"


def of_constant(average: Callable[..., Any], losses: Callable[[Rows], Vector] = lambda rows: rows[:, 0]) -> Chance:
    """Return the test against the mean or median of the labels, by the losses of rows; lower ones are better."""

    def test(metric: Metric, rows: Rows, labels: Labels, _: np.random.Generator) -> tuple[float, float, str]:
        targets = flat(labels)
        constant = metric.rows(np.broadcast_to(average(targets, axis=0), targets.shape), targets, None)
        what = f"always answering the {average.__name__} of the labels"
        return metric.value(constant), _p_value(losses(constant) - losses(rows)), what

    return test


def _p_value(saved: Vector) -> float:
    """Return the p-value of a mean above 0 (Student); 0 or 1 if all values are equal."""
    if np.ptp(saved) == 0:
        return float(saved[0] <= 0)
    return float(stats.ttest_1samp(saved, 0.0, alternative="greater").pvalue)
