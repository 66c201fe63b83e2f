"""Definition of a metric: rows of figures, one per sample, and a value for any selection of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError
from validators.job.metric_facts import metric_facts
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

if TYPE_CHECKING:
    from validators.gates.intervals import Clusters

Outputs = NDArray[Any]
Labels = NDArray[Any]
# Shape (n, k). One column holds scores, whose mean is judged. Several hold figures whose value is not a mean over samples.
Rows = NDArray[np.float64]
Vector = NDArray[np.float64]
# Samples that a row depends on: its own ("sample"), or all ("set"). "kept" rows also hold the outputs, or their ranks.
Scope = Literal["sample", "set", "kept"]


class Wrong(NamedTuple):
    """Rows of the same samples if every answer were wrong, float64 `(n, k)`, and the kind of each sample, intp `(n,)`.

    Samples of one kind, such as those of a class, move the metric about alike.
    """

    rows: Rows
    kind: NDArray[np.intp]


@dataclass(frozen=True)
class Metric:
    """Comparison of outputs with labels.

    `rows(outputs, labels, reference)` returns float64 rows `(n, k)` for outputs `(n, ...)`. `reference` is the baseline's
    outputs, None if the outputs are the baseline's own. A row represents one sample, or several: the number of samples over
    the number of rows. `value(rows)` is the metric of any selection of rows, with repetitions; NaN if it is undefined.

    `expects(output, shape)` returns the labels that the metric needs, given the shape of one batch of outputs, or raises a
    JobError if the metric does not fit the output. `losses(rows)` returns how bad each row is, `(n,)`, larger is worse, for
    rows that are not scores; None if a single row is neither good nor bad. `span` is the largest drop of one score, inf
    without a limit; with None it is 1 where all scores are from 0 to 1. `version` identifies everything else that decides the
    rows: the source of a function, a vocabulary. `scope`, or `scope(outputs, labels)` from some samples, tells whether rows may
    be computed in batches. `reads_reference` is True if rows without labels need `reference`. `join(outputs, n)` makes one
    array `(n, ...)` from the outputs of a batch of `n` samples, in the order in which the job lists them; None for a metric
    that reads one output. `drop_at_most(baseline rows, clusters)` is for metrics whose value is biased: it returns a function
    of both models' rows that is at least their drop, and whose estimate is not too small on average. `without(rows,
    group_of_row, groups)` returns the value without each group, `(groups,)`, faster than `value` does one group at a time; rows
    of a group from `groups` on are never left out.
    `wrong(rows)` returns the rows of the same samples if every answer were wrong; None where answers have no worst.
    `moved(baseline rows, variant rows)` returns whose answers differ, `(n,)`, where losses also differ by what others answer.
    `of_windows` is for language models, whose logits of all samples are too large: it returns the row of each window, `(n,)`,
    from logits `(n, tokens, vocabulary)` and targets `(n, tokens)`, and `rows` gets these. With
    `of_answers`, the outputs are texts `(n,)` that a language model answers with so many tokens, and the labels are the texts
    that are expected. `chance(metric, rows, labels, rng)` returns the metric of answers that ignore the input, the p-value that
    the rows are no better, and the words for these answers (see `chance`).
    """

    name: str
    rows: Callable[[Outputs, Labels | None, Outputs | None], Rows]
    value: Callable[[Rows], float]
    expects: Callable[[TensorSpec, tuple[int, ...]], LabelSpec]
    losses: Callable[[Rows], Vector] | None = None
    higher_is_better: bool = True
    is_right_or_wrong: bool = False
    span: float | None = None
    version: str = ""
    scope: Scope | Callable[[Outputs, Labels | None], Scope] = "sample"
    reads_reference: bool = False
    join: Callable[[Sequence[NDArray[Any]], int], Outputs] | None = None
    drop_at_most: Callable[[Rows, Clusters | None], Callable[[Rows, Rows], float]] | None = None
    of_windows: Callable[[NDArray[Any], NDArray[np.int64]], Vector] | None = None
    without: Callable[[Rows, NDArray[np.intp], int], Vector] | None = None
    wrong: Callable[[Rows], Wrong] | None = None
    moved: Callable[[Rows, Rows], NDArray[np.bool_]] | None = None
    of_answers: int = 0
    chance: Callable[[Metric, Rows, Labels, np.random.Generator], tuple[float, float, str]] | None = None

    @property
    def has_drop(self) -> bool:
        """False for a metric that compares with the baseline itself."""
        return metric_facts(self.name).has_drop

    def joined(self, outputs: Sequence[NDArray[Any]], n: int) -> Outputs:
        """Return the array that `rows` reads, from the named outputs of a batch of `n` samples."""
        return self.join(outputs, n) if self.join else outputs[0]


def are_scores(rows: Rows) -> bool:
    """Return whether rows `(n, k)` are scores, whose mean is the metric (for perplexity, exp of the mean)."""
    return int(rows.shape[1]) == 1


def as_rows(*columns: NDArray[Any]) -> Rows:
    """Join columns of shape `(n,)` or `(n, k)` side by side, as float64 `(n, columns)`.

    >>> as_rows(np.array([1, 2]), np.array([[3, 4], [5, 6]])).tolist()
    [[1.0, 3.0, 4.0], [2.0, 5.0, 6.0]]
    """
    return np.column_stack([column.astype(np.float64) for column in columns])


def mean_of_scores(rows: Rows) -> float:
    """Return the mean of rows of one column, `(n, 1)`.

    >>> mean_of_scores(np.array([[1.0], [0.0]]))
    0.5
    """
    return float(rows.mean())


def mean_of_ratios(rows: Rows) -> float:
    """Return the mean over columns of the ratio of sums, from rows of numerators, then denominators, `(n, 2 k)`.

    Columns whose denominators sum to 0 do not count; the result is NaN if none counts.

    >>> mean_of_ratios(np.array([[1.0, 0.0, 2.0, 0.0], [2.0, 0.0, 2.0, 0.0]]))
    0.75
    """
    above, below = np.split(rows.sum(axis=0), 2)
    counted = below != 0
    return float((above[counted] / below[counted]).mean()) if counted.any() else math.nan


def ratios_without(rows: Rows, group_of_row: NDArray[np.intp], groups: int) -> Vector:
    """Return the mean over columns of the ratio of sums (`mean_of_ratios`) without each group, `(groups,)`.

    `rows` are numerators, then denominators, `(n, 2 k)`. Sums of whole numbers are exact. NaN where no column counts.

    >>> ratios_without(np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]]), np.array([0, 0, 1]), 2)
    array([0.5       , 0.66666667])
    """
    order = np.argsort(group_of_row, kind="stable")
    present, starts = np.unique(group_of_row[order], return_index=True)
    is_left_out = present < groups
    sums = np.zeros((groups, rows.shape[1]))
    sums[present[is_left_out]] = np.add.reduceat(rows[order], starts, axis=0)[is_left_out]
    above, below = np.split(rows.sum(axis=0) - sums, 2, axis=1)
    counted = below != 0
    ratios = np.where(counted, above / np.where(counted, below, 1.0), 0.0)
    with np.errstate(invalid="ignore"):
        return np.asarray(ratios.sum(axis=1) / counted.sum(axis=1), np.float64)


def _without_success(rows: Rows) -> Wrong:
    """Return rows of numerators, then denominators, `(n, 2 k)`, whose numerators are 0: nothing is right or found.

    Samples are of one kind by the column with the smallest sum among those in which they have a denominator: the fewer others
    share a column, the further a sample moves its ratio.
    """
    above, below = np.split(rows, 2, axis=1)
    sums = np.where(below > 0, below.sum(axis=0), np.inf)
    return Wrong(as_rows(np.zeros_like(above), below), np.where(below.any(axis=1), sums.argmin(axis=1) + 1, 0))


def ratio_of_sums(
    name: str,
    rows: Callable[[Outputs, Labels | None, Outputs | None], Rows],
    expects: Callable[[TensorSpec, tuple[int, ...]], LabelSpec],
    *,
    version: str,
    **facts: Any,
) -> Metric:
    """Return the metric `mean_of_ratios` of rows of numerators, then denominators, `(n, 2 k)`; nothing right gives 0."""
    facts |= {"version": version, "without": ratios_without, "wrong": _without_success}
    return Metric(name, rows, mean_of_ratios, expects, _missing, **facts)


def _missing(rows: Rows) -> Vector:
    above, below = np.split(rows, 2, axis=1)
    return np.asarray((below - above).sum(axis=1), np.float64)


def misfit(metric: str, output: TensorSpec, shape: tuple[int, ...], expected: str) -> JobError:
    """Return the error for a metric that does not fit the output."""
    return JobError(
        found=f"metric {metric!r} on output {output.name!r} of {output.dtype} and shape {shape}",
        expected=expected,
        fix="use a `metric` that fits (docs/job.schema.json lists them), or name another `output`",
    )


def values_a_sample(shape: tuple[int, ...]) -> int:
    """Return the number of values per sample in outputs of this shape.

    >>> values_a_sample((8, 2, 3)), values_a_sample((8,))
    (6, 1)
    """
    return int(np.prod(shape[1:], dtype=int))


def flat(values: NDArray[Any]) -> NDArray[np.float64]:
    """Return `(n, ...)` values as float64 `(n, k)`, one row per sample; differences of float16 would overflow."""
    return values.reshape(len(values), -1).astype(np.float64)
