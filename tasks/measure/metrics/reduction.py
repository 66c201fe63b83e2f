"""Reduction of outputs to a metric's rows, batch by batch, so that large outputs are never all in memory.

Small outputs are gathered first, so that the metric sees all samples in one call. Larger outputs go to the metric in pieces
if a row depends on its own sample only, else as an array mapped from a temporary file.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows
from tasks.measure.metrics.values import signal_and_noise
from validators.errors import CandidateRefused
from validators.records.measurements import Accuracy

# Outputs of all samples up to this size go to the metric at once. A metric makes a few float64 copies of them.
GATHERED_BYTES = 16 * 2**20
# Outputs of the baseline up to this size are kept in the store, if they take at most this share of the disk that is left.
# Larger ones are computed again beside each variant, which at least doubles the time of its evaluation.
KEPT_BYTES = 2**30
KEPT_SHARE = 0.25
# Size of a piece of larger outputs. Float64 copies take a few times as much.
PIECE_BYTES = 8 * 2**20
# Limit for the inputs and judged outputs of one evaluation batch, so that large images do not run 32 at once.
BATCH_BYTES = 32 * 2**20
# Copies of the metric's rows that are alive at once: the baseline's, the variant's, and a selection of each.
ROWS_IN_MEMORY = 4
# File beside an accuracy's scores: the class with the highest score of each sample, for a metric of classes.
ANSWERS = "answers.npy"


@dataclass(frozen=True)
class ReductionSize:
    """Memory and disk that a reduction will take, in bytes, known after the first batch."""

    memory_bytes: int
    disk_bytes: int


def answers_of(accuracy: Accuracy) -> NDArray[np.int32] | None:
    """Return the class with the highest score of each sample, shape `(samples,)`, -1 if not measured; None without classes."""
    path = accuracy.scores_path.with_name(ANSWERS)
    return np.asarray(np.load(path)) if path.exists() else None


class BatchObserver(Protocol):
    """An observer of results before all are there."""

    @property
    def samples(self) -> NDArray[np.intp]:
        """Numbers of the samples in the order in which they are to arrive, `(n,)`."""

    def look(self, rows: Rows) -> None:
        """Look at the metric's rows of the next batch, float64 `(batch, k)`; raise to end the reduction."""


@dataclass(frozen=True)
class Reduced:
    """Results per sample of the outputs of one model.

    `rows` are the metric's, float64 `(n, k)`. `finite`, float64 `(n,)`, is the share of each sample's values that are neither
    NaN nor Inf. `noise`, float64 `(n, 2)`, holds the energies of signal and noise against the reference, if requested.
    """

    rows: Rows
    finite: NDArray[np.float64]
    noise: Rows | None


def reduce_outputs(
    metric: Metric,
    outputs: Iterable[Outputs],
    labels: Labels | None,
    reference: Iterable[Outputs] | None,
    n: int,
    *,
    keeps_noise: bool,
    scratch: Path,
    check: Callable[[ReductionSize], None] = lambda _: None,
    watch: BatchObserver | None = None,
) -> Reduced:
    """Reduce the outputs of `n` samples, which arrive in batches with samples along axis 0; results have their order.

    `reference` yields the baseline's outputs in batches of the same sizes; it is None for the baseline itself, and if neither
    the metric nor the noise needs it. `check` is called with the required memory and disk once they are known. Large outputs
    that the metric needs all at once are mapped from a file in the folder `scratch`. A `watch` sees the rows of each batch; it
    needs a metric whose rows depend on their own sample only.

    Raises:
        CandidateRefused: `invalid`: batches have outputs of different shapes, or not one output per sample.
        JobError: the metric fails on the outputs.
    """
    pairs = _pairs(outputs, reference, n)
    head = [next(pairs)]
    while sum(len(one) for one, _ in head) < min(2, n):
        head.append(next(pairs))
    first = np.concatenate([one for one, _ in head])
    total = first.nbytes * n // len(first)
    pairs = itertools.chain(head, pairs)
    del head
    finite, noise = [], []

    def seen() -> Iterator[tuple[Outputs, Outputs | None]]:
        for batch, beside in pairs:
            for piece, other in _pieces(batch, beside):
                finite.append(_finite_share(piece))
                if keeps_noise and other is not None:
                    noise.append(signal_and_noise(piece, other))
            yield batch, beside

    # Text is gathered in memory: a mapped array would cut later samples to the length of the first.
    is_small = total <= GATHERED_BYTES or first.dtype.kind == "U"
    scope = "set" if is_small else metric.scope
    if callable(scope):
        scope = scope(first, labels[: len(first)] if labels is not None else None)
    if scope == "kept":
        check(_need_of(first.reshape(len(first), -1).astype(np.float64), n, beside=total))
    elif scope == "set" and not is_small:
        check(ReductionSize(0, total))
    del first
    if watch or scope == "sample":
        rows = _rows_by_piece(metric, seen(), labels, n, check, watch.look if watch else lambda _: None)
    elif is_small:
        rows = _rows_at_once(metric, seen(), labels)
    else:
        rows = _rows_mapped(metric, seen(), labels, n, scratch)
    return Reduced(rows, np.concatenate(finite), np.concatenate(noise) if noise else None)


def batch_size(sample_bytes: int, most: int) -> int:
    """Return the number of samples per batch, at most `most`, given the bytes of one sample's inputs and judged output.

    >>> batch_size(4_000, 32), batch_size(6_000_000, 32), batch_size(10**9, 32)
    (32, 5, 1)
    """
    return max(1, min(most, BATCH_BYTES // max(1, sample_bytes)))


def _pairs(
    outputs: Iterable[Outputs], reference: Iterable[Outputs] | None, n: int
) -> Iterator[tuple[Outputs, Outputs | None]]:
    """Yield each batch with the reference's batch; check that shapes agree behind axis 0 and that there are `n` samples."""
    beside = itertools.repeat(None) if reference is None else iter(reference)
    shape: tuple[int, ...] | None = None
    count = 0
    for batch in outputs:
        shape = batch.shape[1:] if shape is None else shape
        count += len(batch) if batch.ndim else 0
        if not batch.ndim or batch.shape[1:] != shape:
            raise _misshapen(f"outputs of shape {batch.shape} after outputs of shape (samples, {str(shape)[1:-1]})")
        # The runtime returns text as Python objects, which numpy can only store by pickle.
        yield batch.astype(str) if batch.dtype.kind == "O" else batch, next(beside)
    if count != n:
        raise _misshapen(f"outputs of {count} samples for {n}")


def _misshapen(found: str) -> CandidateRefused:
    return CandidateRefused(
        kind="invalid",
        found=found,
        expected="outputs of equal shape, with samples along axis 0",
        fix="if its size depends on values, pad the judged output to a fixed size in the graph; or name another `output`",
    )


def _pieces(batch: Outputs, beside: Outputs | None) -> Iterator[tuple[Outputs, Outputs | None]]:
    """Yield slices of both along axis 0, of one sample or at most `PIECE_BYTES`."""
    size = max(1, PIECE_BYTES * len(batch) // max(1, batch.nbytes))
    for start in range(0, len(batch), size):
        chosen = slice(start, start + size)
        yield batch[chosen], None if beside is None else beside[chosen]


def _finite_share(outputs: Outputs) -> NDArray[np.float64]:
    """Return the share of each sample's values that are finite; text counts as finite."""
    if outputs.dtype.kind not in "fiub" or not outputs.size:
        return np.ones(len(outputs))
    return np.asarray(np.isfinite(outputs).reshape(len(outputs), -1).mean(axis=1), np.float64)


def _rows_by_piece(
    metric: Metric,
    batches: Iterator[tuple[Outputs, Outputs | None]],
    labels: Labels | None,
    n: int,
    check: Callable[[ReductionSize], None],
    look: Callable[[Rows], None],
) -> Rows:
    rows: list[Rows] = []
    start = 0
    for batch, beside in batches:
        first = len(rows)
        for piece, other in _pieces(batch, beside):
            stop = start + len(piece)
            rows.append(metric.rows(piece, None if labels is None else labels[start:stop], other))
            if not start:
                check(_need_of(rows[0], n))
            start = stop
        look(np.concatenate(rows[first:]))
    return np.concatenate(rows)


def _rows_at_once(metric: Metric, batches: Iterator[tuple[Outputs, Outputs | None]], labels: Labels | None) -> Rows:
    gathered = list(batches)
    others = [beside for _, beside in gathered if beside is not None]
    outputs = np.concatenate([batch for batch, _ in gathered])
    return metric.rows(outputs, labels, np.concatenate(others) if others else None)


def _rows_mapped(
    metric: Metric, batches: Iterator[tuple[Outputs, Outputs | None]], labels: Labels | None, n: int, scratch: Path
) -> Rows:
    """Gather the outputs in a file and call the metric once; no metric over all samples reads the reference."""
    first, _ = next(batches)
    with _mapped(scratch / "outputs.tmp", (n, *first.shape[1:]), first.dtype) as outputs:
        start = 0
        for batch, _ in itertools.chain([(first, None)], batches):
            outputs[start : start + len(batch)] = batch
            start += len(batch)
        return metric.rows(outputs, labels, None)


@contextlib.contextmanager
def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Outputs]:
    """Open a writable array in a temporary file, which is removed at the end of the block."""
    try:
        yield np.memmap(path, dtype, "w+", shape=shape).view(np.ndarray)
    finally:
        path.unlink(missing_ok=True)


def _need_of(rows: Rows, n: int, *, beside: int = 0) -> ReductionSize:
    """Return the memory and disk for `n` rows of this width, with `beside` bytes of temporary files."""
    size = rows.itemsize * rows.shape[1] * n
    return ReductionSize(ROWS_IN_MEMORY * size, size + beside)
