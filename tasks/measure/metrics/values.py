"""Metrics of values and embeddings, and of quantization noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tasks.measure.metrics.areas import midranks, moved_rows, order_codes
from tasks.measure.metrics.chance import of_constant, of_permutations
from tasks.measure.metrics.metric import (
    Labels,
    Metric,
    Outputs,
    Rows,
    Vector,
    Wrong,
    as_rows,
    flat,
    mean_of_scores,
    misfit,
    values_a_sample,
)
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec


def _numbers(**rules: Any) -> Callable[[TensorSpec, tuple[int, ...]], LabelSpec]:
    return lambda _, shape: LabelSpec("numbers", size=values_a_sample(shape), **rules)


def _mean_of(loss: Callable[[Rows, Rows], Rows]) -> Callable[[Outputs, Labels | None, Outputs | None], Rows]:
    """Return the rows of a loss of errors and labels, averaged over components."""

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        assert labels is not None
        return as_rows(loss(flat(outputs) - flat(labels), flat(labels)).mean(axis=1))

    return rows


_LOSS = partial(Metric, value=mean_of_scores, higher_is_better=False, span=math.inf)
MSE = _LOSS("mse", _mean_of(lambda errors, _: errors**2), expects=_numbers(), chance=of_constant(np.mean))
MAE = _LOSS("mae", _mean_of(lambda errors, _: np.abs(errors)), expects=_numbers(), chance=of_constant(np.median))
MAPE = _LOSS("mape", _mean_of(lambda errors, labels: np.abs(errors / labels)), expects=_numbers(without_zeros=True))


def _target_and_error(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    assert labels is not None
    return as_rows(flat(labels), flat(labels) - flat(outputs))


def _r2(rows: Rows) -> float:
    """Return the coefficient of determination R^2, averaged over components, as scikit-learn's `r2_score`.

    A component whose targets are all equal counts as 1 without any error, else as 0.
    """
    targets, errors = np.split(rows, 2, axis=1)
    left, whole = (errors**2).sum(axis=0), ((targets - targets.mean(axis=0)) ** 2).sum(axis=0)
    constant = whole == 0
    explained = 1 - left / np.where(constant, 1.0, whole)
    return float(np.where(constant & np.isfinite(left), left == 0, explained).mean())


def _squared_error(rows: Rows) -> Vector:
    return np.asarray((np.split(rows, 2, axis=1)[1] ** 2).sum(axis=1), np.float64)


def _root_mean_squared(rows: Rows) -> float:
    """Return the root of the mean squared error, averaged over components, as scikit-learn's `root_mean_squared_error`."""
    return float(np.sqrt((np.split(rows, 2, axis=1)[1] ** 2).mean(axis=0)).mean())


def _relative_squares(rows: Rows) -> Vector:
    """Return the squared errors over the variance of the targets, averaged over the components that vary."""
    targets, errors = np.split(rows, 2, axis=1)
    spread = targets.var(axis=0)
    return np.asarray((errors[:, spread > 0] ** 2 / spread[spread > 0]).mean(axis=1), np.float64)


_ERRORS = partial(Metric, rows=_target_and_error, losses=_squared_error, expects=_numbers())
RMSE = _ERRORS("rmse", value=_root_mean_squared, higher_is_better=False, chance=of_constant(np.mean, _squared_error))
R2 = _ERRORS("r2", value=_r2, expects=_numbers(distinct=2), chance=of_constant(np.mean, _relative_squares))


def cosines(first: Rows, second: Rows) -> Vector:
    """Return the cosine of each pair of rows `(n, k)`, float64 `(n,)`; 0 if one of them is zero, as in scikit-learn.

    >>> cosines(np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[4.0, 3.0], [1.0, 0.0]])).round(2)
    array([0.96, 0.  ])
    """
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    with np.errstate(invalid="ignore"):  # infinite values give NaN, which fails every gate
        return np.asarray((first * second).sum(axis=1) / np.where(lengths == 0, 1.0, lengths), np.float64)


def _cosine(outputs: Outputs, labels: Labels | None, reference: Outputs | None) -> Rows:
    beside = labels if labels is not None else outputs if reference is None else reference
    return as_rows(cosines(flat(outputs), flat(beside)))


def _embeddings(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    if len(shape) != 2 or shape[1] < 2:
        raise misfit("cosine", output, shape, "embeddings of shape (samples, dimensions), 2 dimensions or more")
    return LabelSpec("numbers", size=shape[1], required=False)


COSINE = Metric("cosine", _cosine, mean_of_scores, _embeddings, span=2.0, reads_reference=True)


def _score_and_gold(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
    """Return rows of order codes (score, gold).

    Embeddings give one row per pair: samples 2i and 2i+1, which both carry its gold similarity.
    """
    assert labels is not None
    values, gold = flat(outputs), flat(labels)
    if values.shape[1] > 1:
        values, gold = cosines(values[::2], values[1::2])[:, None], gold[::2]
    return order_codes(np.hstack([values, gold]))


def _spearman(rows: Rows) -> float:
    """Return Pearson's correlation of the ranks, from codes of (score, gold); NaN if either is constant."""
    if not np.isfinite(rows).all():
        return math.nan
    score, gold = (ranks - ranks.mean() for ranks in map(midranks, rows.T))
    scale = math.sqrt((score @ score) * (gold @ gold))
    return float(score @ gold) / scale if scale else math.nan


def _scores_or_pairs(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    if len(shape) > 2:
        raise misfit("spearman", output, shape, "one value per sample, or embeddings of shape (samples, dimensions)")
    return LabelSpec("numbers", size=1, distinct=2, in_pairs=values_a_sample(shape) > 1)


def _opposite_end(rows: Rows) -> Wrong:
    """Return rows whose score is the lowest where gold is above its median, else the highest."""
    score, gold = rows.T
    worst = np.where(gold > np.median(gold), score.min(), score.max())
    return Wrong(as_rows(worst, gold), np.zeros(len(rows), np.intp))


SPEARMAN = Metric(
    "spearman",
    _score_and_gold,
    _spearman,
    _scores_or_pairs,
    lambda rows: np.abs(rows[:, 0] - rows[:, 1]),
    scope="kept",
    wrong=_opposite_end,
    moved=lambda baseline, variant: moved_rows(baseline[:, 0], variant[:, 0]),
    chance=of_permutations,
)


def signal_and_noise(outputs: Outputs, reference: Outputs) -> Rows:
    """Return each sample's energy of the reference (signal) and of the difference to it (noise): float64 `(n, 2)`.

    Both arrays are `(n, ...)`. Values that are not finite in the reference (masked logits) do not count.
    """
    kept = np.isfinite(flat(reference))
    signal = np.where(kept, flat(reference), 0.0)
    with np.errstate(invalid="ignore", over="ignore"):  # infinite values give non-finite noise, which fails every gate
        noise = np.where(kept, flat(outputs) - signal, 0.0)
        return as_rows((signal**2).sum(axis=1), (noise**2).sum(axis=1))


def decibels_of(noise_share: float) -> float:
    """Convert the ratio of noise energy to signal energy to a signal-to-noise ratio in decibels.

    >>> decibels_of(0.001), decibels_of(0.0)
    (30.0, inf)
    """
    if noise_share > 0:
        return -10 * math.log10(noise_share) if math.isfinite(noise_share) else -math.inf
    return math.inf if noise_share == 0 else math.nan


def noise_share(rows: Rows) -> float:
    """Return the noise's energy over the signal's, from rows (signal, noise), `(n, 2)`; NaN if both are zero."""
    signal, noise = rows.sum(axis=0)
    return float(noise / signal) if signal else math.inf if noise else math.nan


def _noisy(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
    if not has_noise(output):
        raise misfit("sqnr", output, shape, "an output of floating-point values")
    return LabelSpec("any", required=False)


def has_noise(output: TensorSpec) -> bool:
    """Return whether an output can have quantization noise, that is, holds floating-point values."""
    return output.dtype.startswith("float")


SQNR = Metric(
    "sqnr",
    lambda outputs, _, reference: signal_and_noise(outputs, outputs if reference is None else reference),
    lambda rows: decibels_of(noise_share(rows)),
    _noisy,
    reads_reference=True,
)
