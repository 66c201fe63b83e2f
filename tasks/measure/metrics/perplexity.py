"""Perplexity: the negative log-likelihood of each window's next tokens, one mean a window, so that windows can be paired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import DataError
from validators.samples.datasets import Arrays, Samples, TensorSpec
from validators.samples.labels import IGNORED

# Windows a batch: the float32 logits of 512 tokens of a vocabulary of 49,152 take 100 MB.
WINDOWS_AT_ONCE = 1
TOKENS, MASK = "input_ids", "attention_mask"

Targets = NDArray[np.int64]
Losses = NDArray[np.float64]


def score_windows(logits: NDArray[Any], targets: Targets) -> Losses:
    """Mean negative log-likelihood of each window's targets, in nats a token: float64 `[n]`.

    `logits` is float `[n, sequence, vocabulary]`, `targets` int64 `[n, sequence]`; the logits at a position are for the
    target after it. Targets that are IGNORED do not count, nor does each window's first, which nothing foretells.

    >>> score_windows(np.zeros((1, 3, 4), np.float32), np.array([[0, 1, 3]])).round(4)  # ln 4
    array([1.3863])
    """
    losses = np.empty(len(logits))
    for row, (scores, following) in enumerate(zip(logits[:, :-1], targets[:, 1:], strict=True)):
        counted = following != IGNORED
        losses[row] = _negative_log_likelihood(scores[counted], following[counted]).mean()
    return losses


def _negative_log_likelihood(scores: NDArray[Any], targets: Targets) -> Losses:
    """`-ln softmax(scores)[target]` of each row; sums in float64, powers in float32, which is what takes the memory."""
    highest = scores.max(axis=-1, keepdims=True).astype(np.float32)
    # A row with an infinite score has no likelihood: NaN, which no gate lets pass.
    with np.errstate(invalid="ignore"):
        log_total = np.log(np.exp(scores - highest).sum(axis=-1, dtype=np.float64)) + highest[:, 0]
        return np.asarray(log_total - scores[np.arange(len(scores)), targets], np.float64)


def score_batches(logits: Iterable[NDArray[Any]], samples: Samples, output: TensorSpec) -> Losses:
    """`score_windows` of all samples, whose logits come batch by batch, in order; none outlives its turn.

    Raises:
        DataError: the samples have no targets that fit the logits (see `targets_of`).
    """
    parts: list[Losses] = []
    targets, start = np.empty((0, 0), np.int64), 0
    for batch in logits:
        if not parts:
            targets = targets_of(samples, output, batch.shape)
        parts.append(score_windows(batch, targets[start : start + len(batch)]))
        start += len(batch)
        del batch  # before the next is made
    return np.concatenate(parts)


def perplexity(losses: Losses) -> float:
    """exp of the mean loss, each window counting once (Jelinek et al. 1977); infinite where that has no float64."""
    with np.errstate(over="ignore"):
        return float(np.exp(losses.mean()))


def targets_of(samples: Samples, output: TensorSpec, logits_shape: Sequence[int]) -> Targets:
    """What the model should foretell, int64 `[n, sequence]`: the labels, or the tokens that are not masked.

    Labels are token ids along the sequence, not shifted, IGNORED where none counts. Without labels the input `input_ids`
    stands in, where `attention_mask`, if there is one, is not 0. `logits_shape` is that of a batch of the `output`.

    Raises:
        DataError: there are neither labels nor `input_ids`, they do not fit the logits, or a window has no target.
    """
    name, source = samples.file.path.name, TOKENS if samples.labels is None else "labels"
    found = samples.inputs.get(TOKENS) if samples.labels is None else samples.labels
    if found is None:
        raise DataError(
            found=f"evaluation data {name} with neither labels nor an array {TOKENS!r}",
            expected="the tokens that the metric 'perplexity' takes as targets",
            fix=f"name the tokens {TOKENS!r}, or write labels: token ids along the sequence, {IGNORED} where none counts",
        )
    if found.dtype.kind not in "iu" or found.shape != (len(samples), logits_shape[1]):
        raise DataError(
            found=f"evaluation data {name}: {source} of {found.dtype} and shape {found.shape}",
            expected=f"integers of shape {(len(samples), logits_shape[1])}, as {output} has logits",
            fix="write one token id for each position",
        )
    targets = _masked(found.astype(np.int64), samples.inputs if samples.labels is None else {})
    _check_targets(targets, logits_shape[2], f"evaluation data {name}: {source}")
    return targets


def _masked(tokens: Targets, inputs: Arrays) -> Targets:
    return np.where(inputs[MASK] != 0, tokens, IGNORED) if MASK in inputs else tokens


def _check_targets(targets: Targets, vocabulary: int, where: str) -> None:
    outside = ((targets < 0) | (targets >= vocabulary)) & (targets != IGNORED)
    if outside.any():
        raise DataError(
            found=f"{where}: {int(outside.sum())} targets outside the vocabulary, such as {targets[outside][0]}",
            expected=f"token ids from 0 to {vocabulary - 1}, or {IGNORED} where none counts",
            fix="encode the text with the model's own tokenizer",
        )
    empty = (targets[:, 1:] == IGNORED).all(axis=1)
    if empty.any():
        raise DataError(
            found=f"{where}: {int(empty.sum())} windows without a target after their first, such as {empty.argmax()}",
            expected="at least one token to foretell in each window",
            fix="leave those windows out",
        )
