"""Repeated runs of a model on the same samples, compared over all outputs: the evidence for the sanity gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.perplexity import WINDOWS_AT_ONCE
from tasks.runtimes.parity import largest_difference
from tasks.runtimes.runner import open_runner
from validators.records.measurements import Answers, Sanity
from validators.records.run import SessionSettings, Variant
from validators.samples.datasets import Arrays, Feed, Samples, rows_of

RUNS = 3
# Enough to tell a constant answer, and a random one; samples of perplexity are whole windows of text.
SANITY_SAMPLES, SANITY_WINDOWS = 8, 2
# Batches of other samples that the baseline alone answers, once each. Of an output whose size is n or n + 1 by the toss of a
# coin, all eight batches would have the same in one of 128 cases.
PROBES = 7
_NUMBERS = "biuf"


@dataclass(frozen=True)
class OutputPart:
    """The answers of one output to one batch of `rows` samples, and its first row (None unless it has a row per sample)."""

    answers: Answers
    first: NDArray[Any] | None
    rows: int


def sanity_batches(samples: Samples, fixed_batch: int | None, *, of_text: bool) -> list[Feed]:
    """Return the samples that are asked; with `of_text` each is a window of text."""
    wanted = SANITY_WINDOWS if of_text else SANITY_SAMPLES
    size = fixed_batch or (WINDOWS_AT_ONCE if of_text else wanted)
    return list(islice(samples.batches(size), max(1, wanted // size)))


def probe_batches(samples: Samples, asked: Sequence[Feed]) -> list[Feed]:
    """Return batches of the first one's size, evenly spread over the other samples."""
    size = asked[0].rows
    first, last = len(asked), len(samples) // size - 1
    numbers = np.linspace(first, last, PROBES if first <= last else 0).astype(int)
    return list(samples.batches(size, (np.unique(numbers)[:, None] * size + np.arange(size)).reshape(-1)))


def make_sanity(
    variant: Variant, batches: Sequence[Arrays], probes: Sequence[Arrays], baseline: tuple[Answers, ...] | None, _: Path
) -> Sanity:
    """Ask a variant; `baseline` holds the answers of the baseline, None for the baseline itself, which gets the `probes`."""
    found = ask(variant.loaded, variant.session, batches, probes if baseline is None else ())
    samples = sum(map(rows_of, batches))
    return Sanity(samples, RUNS, found if baseline is None else baseline, found)


def ask(
    model: Path, settings: SessionSettings, batches: Sequence[Arrays], probes: Sequence[Arrays] = ()
) -> tuple[Answers, ...]:
    """Return the answers of every output to the samples of `batches`. Each batch runs `RUNS` times.

    `probes` are more batches of the first one's size. Sizes of outputs that differ among equal batches depend on values.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    # Another candidate's session may run at the same time; spinning threads would compete with its threads.
    with open_runner(model, settings.without_spinning()) as runner:
        names = [spec.name for spec in runner.outputs]

        def answered(batch: Arrays, times: int) -> list[OutputPart]:
            runs = [runner.run(batch, names) for _ in range(times)]
            return [
                describe(spec.name, spec.dtype, [run[place] for run in runs], rows_of(batch))
                for place, spec in enumerate(runner.outputs)
            ]

        # Batch by batch: the logits of a language model for all samples do not fit in memory.
        parts = [answered(batch, RUNS) for batch in batches] + [answered(batch, 1) for batch in probes]
    return tuple(mark_free_sizes(merge(of_output[: len(batches)]), of_output) for of_output in zip(*parts, strict=True))


def describe(name: str, dtype: str, runs: Sequence[Any], rows: int) -> OutputPart:
    """Return the answers of one output to one batch of `rows` samples; `runs` holds the output of each run.

    >>> runs = [np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([[1.0, 2.5], [1.0, 2.0]])]
    >>> describe("y", "float64", runs, 2).answers
    Answers(name='y', dtype='float64', shape=(2, 2), is_constant=True, spread=0.5, peak=2.0, bad_samples=())
    """
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS for value in runs):
        return OutputPart(Answers(name, dtype), None, rows)
    first = runs[0]
    by_row = first.ndim > 0 and len(first) == rows
    bad = {place for run in runs for place, row in enumerate(run if by_row else [run]) if not np.isfinite(row).all()}
    answers = Answers(
        name,
        str(first.dtype),
        first.shape,
        by_row and all(_same(row, first[0]) for row in first[1:]),
        max(_apart(run, first) for run in runs),
        _peak(first),
        tuple(sorted(bad)),
    )
    return OutputPart(answers, first[0].copy() if by_row else None, rows)


def merge(parts: Sequence[OutputPart]) -> Answers:
    """Return the answers to all batches, with samples in order and other axes as in the first batch.

    The answer to a single sample is never called constant.
    """
    head = parts[0]
    if head.answers.shape is None:
        return head.answers
    rows = sum(part.rows for part in parts)
    starts = np.cumsum([0, *(part.rows for part in parts)])
    by_row = all(part.first is not None for part in parts)
    return Answers(
        head.answers.name,
        head.answers.dtype,
        (rows, *head.answers.shape[1:]) if by_row else head.answers.shape,
        by_row and rows > 1 and all(part.answers.is_constant and _same(part.first, head.first) for part in parts),
        max(part.answers.spread for part in parts),
        max(part.answers.peak for part in parts),
        tuple(int(start) + row for start, part in zip(starts, parts, strict=False) for row in part.answers.bad_samples),
    )


def mark_free_sizes(answers: Answers, parts: Sequence[OutputPart]) -> Answers:
    """Return the answers with None for each size that differs among the parts of as many samples as the first."""
    if answers.shape is None:
        return answers
    shapes = [part.answers.shape or () for part in parts if part.rows == parts[0].rows]
    # A slice, as even the number of axes may differ.
    is_free = [len({shape[axis : axis + 1] for shape in shapes}) > 1 for axis in range(len(answers.shape))]
    return replace(
        answers, shape=tuple(None if free else size for free, size in zip(is_free, answers.shape, strict=True))
    )


def _peak(values: NDArray[Any]) -> float:
    """Return the largest finite magnitude, without a copy of the values; 0 if there is none."""
    finite = np.isfinite(values)
    high, low = (float(end(where=finite, initial=0)) for end in (values.max, values.min))
    return max(high, -low)


def _same(row: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    assert row is not None and other is not None
    return row.shape == other.shape and np.array_equal(row, other, equal_nan=row.dtype.kind == "f")


def _apart(values: NDArray[Any], others: NDArray[Any]) -> float:
    """Return the largest absolute difference: 0 for equal bits, infinite if shapes or positions of finite values differ."""
    if values.shape == others.shape and values.tobytes() == others.tobytes():
        return 0.0
    # Equal numbers with different bits, such as 0 and -0, still count as a difference.
    return largest_difference(values, others) or float(np.finfo(np.float64).tiny)
