"""What a metric is: rows of figures, one a sample, and the value of any of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError
from validators.samples.datasets import TensorSpec
from validators.samples.labels import LabelSpec

Outputs = NDArray[Any]
Labels = NDArray[Any]
# Shape (n, k). Of one column: scores, whose mean is judged. Of several: figures whose value is no mean over samples.
Rows = NDArray[np.float64]
Vector = NDArray[np.float64]
# What a row depends on: its own sample ("sample"), or all samples ("set"); "kept" rows also hold the outputs themselves.
Scope = Literal["sample", "set", "kept"]


def of_each_sample(_: Outputs, __: Labels | None) -> Scope:
    """The scope of a metric whose rows can be computed in batches."""
    return "sample"


def of_the_set(_: Outputs, __: Labels | None) -> Scope:
    """The scope of a metric that ranks all samples, and whose rows are the ranks of the outputs."""
    return "kept"


@dataclass(frozen=True)
class Metric:
    """How outputs are held against labels.

    `rows(outputs, labels, reference)` gives float64 rows `(n, k)` of outputs `(n, ...)`; `reference` is the baseline's outputs,
    None where the outputs are the baseline's own. A row stands for one sample, or for more: the number of samples over that of
    rows. `value(rows)` is the metric of any selection of rows, repeated ones as well, and NaN where they have none.

    `expects(output, shape)` says what labels the metric takes, given one batch of outputs, or raises a JobError where it does
    not fit that output. `losses(rows)` says of rows that are no scores how bad each is, shape `(n,)`, larger is worse; None
    where a row by itself is neither good nor bad. `has_drop` is False for what is held against the baseline itself. `version`
    stands for whatever else decides the rows: the source of a function, a vocabulary. `scope(outputs, labels)` says, given some
    samples, whether rows may be computed in batches. `reads_reference` is True where rows without labels need `reference`.
    """

    name: str
    rows: Callable[[Outputs, Labels | None, Outputs | None], Rows]
    value: Callable[[Rows], float]
    expects: Callable[[TensorSpec, tuple[int, ...]], LabelSpec]
    losses: Callable[[Rows], Vector] | None = None
    higher_is_better: bool = True
    is_right_or_wrong: bool = False
    has_drop: bool = True
    version: str = ""
    scope: Callable[[Outputs, Labels | None], Scope] = of_each_sample
    reads_reference: bool = False


def are_scores(rows: Rows) -> bool:
    """Whether the metric is the mean of these rows (and for perplexity exp of it)."""
    return int(rows.shape[1]) == 1


def as_rows(*columns: NDArray[Any]) -> Rows:
    """Columns of shape `(n,)` or `(n, k)` side by side.

    >>> as_rows(np.array([1, 2]), np.array([[3, 4], [5, 6]])).tolist()
    [[1.0, 3.0, 4.0], [2.0, 5.0, 6.0]]
    """
    return np.column_stack([column.astype(np.float64) for column in columns])


def mean_of_scores(rows: Rows) -> float:
    """The mean of rows of one column.

    >>> mean_of_scores(np.array([[1.0], [0.0]]))
    0.5
    """
    return float(rows.mean())


def misfit(metric: str, output: TensorSpec, shape: tuple[int, ...], expected: str) -> JobError:
    """The error for a metric that does not fit the output."""
    return JobError(
        found=f"metric {metric!r} on output {output.name!r} of {output.dtype} and shape {shape}",
        expected=expected,
        fix="take a `metric` that fits (docs/job.schema.json lists them), or name another `output`",
    )


def values_a_sample(shape: tuple[int, ...]) -> int:
    """How many values a sample has, of outputs of this shape.

    >>> values_a_sample((8, 2, 3)), values_a_sample((8,))
    (6, 1)
    """
    return int(np.prod(shape[1:], dtype=int))


def flat(values: NDArray[Any]) -> NDArray[np.float64]:
    """Values of each sample in a row, in float64: differences of float16 overflow in their own dtype."""
    return values.reshape(len(values), -1).astype(np.float64)
