"""What all outputs of a model give for one batch, run several times: the ground of the sanity gates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.runtimes.ort import describe_outputs, open_session, run_outputs
from validators.datasets import Arrays
from validators.measurements import Answers
from validators.records import SessionSettings

RUNS = 3
_NUMBERS = "biuf"


def ask(model: Path, settings: SessionSettings, batches: list[Arrays]) -> tuple[Answers, ...]:
    """The answers of every output to the same samples, in `batches` as the model takes them, asked `RUNS` times.

    Raises:
        CandidateRefused: the runtime does not load or run the model.
    """
    # Another candidate's session may run beside this one: threads that spin would take turns with its.
    with open_session(model, settings.without_spinning()) as session:
        described = describe_outputs(session)
        names = [spec.name for spec in described]
        runs = [[run_outputs(session, batch, names) for batch in batches] for _ in range(RUNS)]
    sizes = [len(next(iter(batch.values()))) for batch in batches]
    return tuple(
        describe(spec.name, spec.dtype, [[outputs[place] for outputs in run] for run in runs], sizes)
        for place, spec in enumerate(described)
    )


def describe(name: str, dtype: str, runs: list[list[Any]], sizes: list[int]) -> Answers:
    """The answers of one output: `runs[r][b]` is what run r gave for batch b, which had `sizes[b]` samples.

    >>> runs = [[np.array([[1.0, 2.0], [1.0, 2.0]])], [np.array([[1.0, 2.5], [1.0, 2.0]])]]
    >>> describe("y", "float64", runs, [2])
    Answers(name='y', dtype='float64', shape=(2, 2), is_constant=False, spread=0.5, bad_samples=())
    """
    values = [value for run in runs for value in run]
    if not all(isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS for value in values):
        return Answers(name, dtype)
    by_sample = all(value.ndim and len(value) == size for run in runs for value, size in zip(run, sizes, strict=True))
    # Batches may differ in the lengths of other axes: rows are compared one by one.
    rows = [[row for value in run for row in (value if by_sample else [value])] for run in runs]
    first = rows[0]
    shape = runs[0][0].shape
    bad = {place for run in rows for place, row in enumerate(run) if not np.isfinite(row).all()}
    return Answers(
        name,
        str(values[0].dtype),
        (sum(sizes), *shape[1:]) if by_sample else shape,
        by_sample and len(first) > 1 and all(_same(row, first[0]) for row in first[1:]),
        max((_apart(row, run[place]) for run in rows[1:] for place, row in enumerate(first)), default=0.0),
        tuple(sorted(bad)),
    )


def _same(row: NDArray[Any], other: NDArray[Any]) -> bool:
    return row.shape == other.shape and np.array_equal(row, other, equal_nan=row.dtype.kind == "f")


def _apart(row: NDArray[Any], other: NDArray[Any]) -> float:
    """The largest absolute difference; 0 for the same bits, infinite where only one of the two is finite."""
    if row.shape == other.shape and row.tobytes() == other.tobytes():
        return 0.0
    if row.shape != other.shape or (np.isfinite(row) != np.isfinite(other)).any():
        return float("inf")
    finite = np.isfinite(row)
    apart = np.abs(row[finite].astype(np.float64) - other[finite].astype(np.float64))
    # Bits that differ in values that do not (-0 and 0, NaN and NaN, Inf of another sign) are at the least no repetition.
    return float(apart.max(initial=0.0)) or float(np.finfo(np.float64).tiny)
