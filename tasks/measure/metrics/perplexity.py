"""Perplexity and greedy answers of language models: one figure per window, for paired tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, as_rows, mean_of_scores, misfit
from validators.errors import DataError
from validators.samples.datasets import Samples, TensorSpec
from validators.samples.labels import IGNORED, LabelSpec

# Windows per batch: the float32 logits of 512 tokens of a vocabulary of 49,152 take 100 MB.
WINDOWS_AT_ONCE = 1
TOKENS, MASK = "input_ids", "attention_mask"

Targets = NDArray[np.int64]
Losses = NDArray[np.float64]


def score_windows(logits: NDArray[Any], targets: Targets) -> Losses:
    """Return the mean negative log-likelihood of each window's targets, in nats per token: float64 `[n]`.

    `logits` is float `[n, sequence, vocabulary]`, `targets` int64 `[n, sequence]`. The logits at a position predict the next
    target. IGNORED targets do not count, nor does each window's first, which has no prediction.

    >>> score_windows(np.zeros((1, 3, 4), np.float32), np.array([[0, 1, 3]])).round(4)  # ln 4
    array([1.3863])
    """
    losses = np.empty(len(logits))
    for row, (scores, following) in enumerate(zip(logits[:, :-1], targets[:, 1:], strict=True)):
        counted = following != IGNORED
        losses[row] = _negative_log_likelihood(scores[counted], following[counted]).mean()
    return losses


def match_windows(logits: NDArray[Any], targets: Targets) -> NDArray[np.float64]:
    """Return 1 for each window whose targets are the tokens that the model would answer greedily, else 0: float64 `[n]`.

    A greedy answer repeats a text exactly if each of its tokens has the highest score after all tokens before it, so that one
    pass over the window tells (`is_greedy` in EleutherAI's lm-evaluation-harness). Shapes are those of `score_windows`. Of
    equal scores the first counts; a score that is not a number matches nothing.

    >>> match_windows(np.eye(3, dtype=np.float32)[None, [1, 2, 0]], np.array([[IGNORED, 1, 2]]))
    array([1.])
    """
    found = np.empty(len(logits))
    for row, (scores, following) in enumerate(zip(logits[:, :-1], targets[:, 1:], strict=True)):
        counted = following != IGNORED
        of_targets = scores[counted]
        matches = of_targets.argmax(axis=-1) == following[counted]
        found[row] = bool(matches.all()) and not np.isnan(of_targets).any()
    return found


def _negative_log_likelihood(scores: NDArray[Any], targets: Targets) -> Losses:
    """Return `-ln softmax(scores)[target]` of each row; sums are float64, powers float32 to limit memory."""
    highest = scores.max(axis=-1, keepdims=True).astype(np.float32)
    # A row with an infinite score has no likelihood: NaN, which fails every gate.
    with np.errstate(invalid="ignore"):
        log_total = np.log(np.exp(scores - highest).sum(axis=-1, dtype=np.float64)) + highest[:, 0]
        return np.asarray(log_total - scores[np.arange(len(scores)), targets], np.float64)


def score_batches(
    logits: Iterable[NDArray[Any]],
    samples: Samples,
    output: TensorSpec,
    score: Callable[[NDArray[Any], Targets], NDArray[np.float64]] = score_windows,
) -> NDArray[np.float64]:
    """Return `score` of all samples, float64 `[n]`, from logits that arrive batch by batch, in order.

    Only one batch of logits is held at a time.

    Raises:
        DataError: the samples have no targets that fit the logits (see `targets_of`).
    """
    parts: list[Losses] = []
    targets, start = np.empty((0, 0), np.int64), 0
    for batch in logits:
        if not parts:
            targets = targets_of(samples, output, batch.shape)
        parts.append(score(batch, targets[start : start + len(batch)]))
        start += len(batch)
        del batch  # free it before the next batch is computed
    return np.concatenate(parts)


def perplexity(losses: Losses) -> float:
    """Return exp of the mean of the losses `[n]`, each window counting once (Jelinek et al. 1977); inf on overflow."""
    with np.errstate(over="ignore"):
        return float(np.exp(losses.mean()))


def targets_of(samples: Samples, output: TensorSpec, logits_shape: Sequence[int]) -> Targets:
    """Return the tokens that the model should predict, int64 `[n, sequence]`: the labels, or the unmasked tokens.

    Labels are token ids along the sequence, not shifted, with IGNORED where none counts. Without labels the targets are
    `input_ids`, IGNORED where `attention_mask` (if present) is 0. `logits_shape` is that of a batch of the `output`.

    Raises:
        DataError: there are neither labels nor `input_ids`, they do not fit the logits, or a window has no target.
    """
    name, source = samples.file.path.name, TOKENS if samples.labels is None else "labels"
    found = samples.inputs.get(TOKENS) if samples.labels is None else samples.labels
    if found is None:
        raise DataError(
            found=f"evaluation data {name} has neither labels nor an array {TOKENS!r}",
            expected="the tokens that the model should predict",
            fix=f"name the tokens {TOKENS!r}, or write labels: token ids along the sequence, {IGNORED} for ignored positions",
        )
    if found.dtype.kind not in "iu" or found.shape != (len(samples), logits_shape[1]):
        raise DataError(
            found=f"evaluation data {name}: {source} is {found.dtype} of shape {found.shape}",
            expected=f"integers of shape {(len(samples), logits_shape[1])}, like the logits of {output}",
            fix="write one token id for each position",
        )
    targets = found.astype(np.int64)
    if samples.labels is None and MASK in samples.inputs:
        targets = np.where(samples.inputs[MASK] != 0, targets, IGNORED)
    _check_targets(targets, logits_shape[2], f"evaluation data {name}: {source}")
    return targets


def _check_targets(targets: Targets, vocabulary: int, where: str) -> None:
    outside = ((targets < 0) | (targets >= vocabulary)) & (targets != IGNORED)
    if outside.any():
        raise DataError(
            found=f"{where}: {int(outside.sum())} targets outside the vocabulary, such as {targets[outside][0]}",
            expected=f"token ids from 0 to {vocabulary - 1}, or {IGNORED} for ignored positions",
            fix="encode the text with the model's own tokenizer",
        )
    empty = (targets[:, 1:] == IGNORED).all(axis=1)
    if empty.any():
        raise DataError(
            found=f"{where}: {int(empty.sum())} windows have no target after the first position, such as {empty.argmax()}",
            expected="at least one token to predict in each window",
            fix="remove those windows",
        )


def _of_windows(outputs: Outputs, _: Labels | None, __: Outputs | None) -> Rows:
    """Return the figures of windows as rows; the logits of all samples are never held."""
    return as_rows(outputs)


def _expects(name: str, *, required: bool) -> Callable[[TensorSpec, tuple[int, ...]], LabelSpec]:
    def expects(output: TensorSpec, shape: tuple[int, ...]) -> LabelSpec:
        if len(shape) != 3 or shape[1] < 2 or shape[2] < 2:
            raise misfit(name, output, shape, "logits of shape (samples, tokens, vocabulary), 2 tokens or more")
        # `targets_of` checks labels against the logits, and falls back to the input's tokens.
        return LabelSpec("any", required=required)

    return expects


PERPLEXITY = Metric(
    "perplexity",
    _of_windows,
    lambda rows: perplexity(rows[:, 0]),
    _expects("perplexity", required=False),
    higher_is_better=False,
    span=math.inf,
    of_windows=score_windows,
)
GREEDY_MATCH = Metric(
    "greedy_match",
    _of_windows,
    mean_of_scores,
    _expects("greedy_match", required=True),
    is_right_or_wrong=True,
    of_windows=match_windows,
)
