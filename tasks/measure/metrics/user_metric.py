"""Metrics computed by a function of the user: one score per sample, or one number for all samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.measure.metrics.metric import Labels, Metric, Outputs, Rows, Scope, Wrong, are_scores, as_rows
from validators.errors import JobError
from validators.samples.labels import LabelSpec

Function = Callable[..., Any]
# Float32 sums in another order differ by less. Scores that depend on other samples differ by far more.
SAME_SCORE = 1e-5
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64")


def user_metric(name: str, function: Function, *, higher_is_better: bool, version: str) -> Metric:
    """Return the metric of `function(outputs, labels)`, which takes arrays with samples along axis 0; `labels` may be None.

    The function returns finite numbers. If it returns one score per sample, shape `(n,)`, the metric is their mean. If it
    returns one number, the rows hold the outputs and labels themselves (see `fold`), and the function
    is called again for every selection of rows.

    A function whose scores do not depend on the other samples may be called in batches.
    """

    def rows(outputs: Outputs, labels: Labels | None, _: Outputs | None) -> Rows:
        given = _call(name, function, outputs, labels)
        scores = _as_numbers(name, given, len(outputs))
        return as_rows(scores) if scores.ndim else _fold(name, outputs, labels)

    def value(rows: Rows) -> float:
        if are_scores(rows):
            return float(rows.mean())
        outputs, *labels = unfold(rows)
        try:
            return float(function(outputs, labels[0] if labels else None))
        except Exception:  # it may be undefined for some selections, such as a resample without one of the classes
            return math.nan

    return Metric(
        name,
        rows,
        value,
        # The function checks its own arguments.
        lambda _output, _shape: LabelSpec("any", required=False),
        higher_is_better=higher_is_better,
        version=version,
        scope=partial(_scope_of, function),
        wrong=_answers_of_others,
    )


def _answers_of_others(rows: Rows) -> Wrong:
    """Return folded rows in which each sample has the outputs of another, with another label if there are labels.

    Samples are of one kind by their label. Which answer would be wrong is known to the function alone: outputs of a sample that
    has another label are taken to be.
    """
    outputs, *labels = unfold(rows)
    rng, n = np.random.default_rng(0), len(rows)
    kind = np.zeros(n, np.intp)
    if labels:
        kind = np.unique(labels[0].reshape(n, -1), axis=0, return_inverse=True)[1].reshape(-1)
    donors = rng.permutation(n)
    for one in range(int(kind.max()) + 1):
        own, others = np.flatnonzero(kind == one), np.flatnonzero(kind != one)
        if len(others):
            donors[own] = rng.choice(others, len(own))
    return Wrong(fold(outputs[donors], *labels), kind)


def _scope_of(function: Function, outputs: Outputs, labels: Labels | None) -> Scope:
    """Determine the scope: compare the scores of some samples with those of the first alone and of the rest alone."""

    def scores(part: slice) -> NDArray[np.float64]:
        return np.asarray(function(outputs[part], None if labels is None else labels[part]), np.float64)

    try:
        together = scores(slice(None))
        if not together.ndim:
            return "kept"
        apart = np.concatenate([scores(slice(0, 1)), scores(slice(1, None))])
        alike = together.shape == apart.shape and np.allclose(together, apart, rtol=SAME_SCORE, atol=0)
        return "sample" if alike else "set"
    except Exception:  # it may be undefined for a few samples, such as those of one class
        return "set"


def _call(name: str, function: Function, outputs: Outputs, labels: Labels | None) -> Any:
    try:
        return function(outputs, labels)
    except Exception as error:
        shapes = f"outputs {outputs.shape}, labels {None if labels is None else labels.shape}"
        raise JobError(
            found=f"metric {name!r} raises {type(error).__name__} on {shapes}: {str(error)[:300]}",
            expected="a function of outputs and labels, arrays with samples along axis 0",
            fix="call it on the evaluation data and the model's outputs first",
        ) from error


def _as_numbers(name: str, given: Any, n: int) -> NDArray[np.float64]:
    """Return the function's result as float64 of shape `(n,)` or `()`."""
    try:
        numbers = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        numbers = np.full(1, np.nan)
    if numbers.shape not in ((n,), ()) or not np.isfinite(numbers).all():
        what = f"{type(given).__name__} of shape {np.shape(given)}" if np.shape(given) else repr(given)[:100]
        bad = " with NaN or Inf" if numbers.size > 1 and numbers.shape == (n,) else ""
        raise JobError(
            found=f"metric {name!r} returns {what}{bad} for {n} samples",
            expected=f"finite numbers: one score per sample, shape {(n,)}, or one number for all",
            fix="correct the function",
        )
    return numbers


def _fold(name: str, outputs: Outputs, labels: Labels | None) -> Rows:
    try:
        return fold(outputs) if labels is None else fold(outputs, labels)
    except ValueError as error:
        raise JobError(
            found=f"metric {name!r} returns one number computed from {error}",
            expected="numeric outputs and labels, which can be resampled",
            fix="return one score per sample",
        ) from error


def fold(*arrays: NDArray[Any]) -> Rows:
    """Return arrays with at least one sample along axis 0 as rows, float64 `(n, k)`, so that rows can be selected.

    A row begins with a header: the number of arrays, and for each the index of its dtype in a table (for text, the negative
    number of its characters), the number of axes after the first, and their sizes. Then come the values.

    Raises:
        ValueError: the dtype is neither a number nor text, or an integer is not exact in float64.

    >>> unfold(fold(np.array(["yes", "no"]), np.eye(2, dtype=np.float32))[1:])
    [array(['no'], dtype='<U3'), array([[0., 1.]], dtype=float32)]
    """
    head: list[int] = [len(arrays)]
    columns = []
    for array in arrays:
        code, values = _coded(array)
        head += [code, array.ndim - 1, *array.shape[1:]]
        columns.append(values)
    return np.hstack([np.tile(np.array(head, np.float64), (len(arrays[0]), 1)), *columns])


def unfold(rows: Rows) -> list[NDArray[Any]]:
    """Return the arrays of a non-empty selection of the rows that `fold` returned, with samples along axis 0."""
    head, at = rows[0], 1
    forms = []
    for _ in range(int(head[0])):
        code, axes = int(head[at]), int(head[at + 1])
        forms.append((code, tuple(head[at + 2 : at + 2 + axes].astype(int).tolist())))
        at += 2 + axes
    arrays = []
    for code, shape in forms:
        width = int(np.prod(shape, dtype=int)) * max(1, -code)
        arrays.append(_decoded(code, rows[:, at : at + width]).reshape(len(rows), *shape))
        at += width
    return arrays


def _coded(array: NDArray[Any]) -> tuple[int, Rows]:
    if array.dtype.kind == "U":
        length = max(1, array.dtype.itemsize // 4)
        points = np.ascontiguousarray(array.astype(f"<U{length}")).view(np.uint32)
        return -length, points.reshape(len(array), -1).astype(np.float64)
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"arrays of {array.dtype}")
    values = array.reshape(len(array), -1).astype(np.float64)
    if array.dtype.name in _INTEGERS and ((array > 2**53) | (array < -(2**53))).any():
        raise ValueError("integers beyond 2^53, which float64 cannot represent")
    return _DTYPES.index(array.dtype.name), values


def _decoded(code: int, values: Rows) -> NDArray[Any]:
    if code < 0:
        return np.ascontiguousarray(values.astype(np.uint32)).view(f"<U{-code}")
    return values.astype(_DTYPES[code])
