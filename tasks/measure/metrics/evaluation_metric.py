"""Metrics made by `mlflow.metrics.make_metric`, as functions of outputs and labels; recognized without importing MLflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd


def is_evaluation_metric(value: object) -> bool:
    """Return True for an `mlflow.models.EvaluationMetric`."""
    return callable(getattr(value, "eval_fn", None)) and isinstance(getattr(value, "greater_is_better", None), bool)


def as_function(metric: Any) -> Callable[[NDArray[Any], NDArray[Any] | None], Any]:
    """Return the function `(outputs, labels)` that gives the scores of an EvaluationMetric, or else its first aggregate.

    Outputs and labels have samples along axis 0. `eval_fn` gets those of its arguments `predictions`, `targets` and `metrics`
    that it names, as `mlflow.evaluate` passes them.

    Raises:
        TypeError: `eval_fn` needs other arguments.
        ValueError: it returns neither a number nor a MetricValue with scores or aggregates.
    """
    named = inspect.signature(metric.eval_fn).parameters

    @wraps(metric.eval_fn)
    def judge(outputs: NDArray[Any], labels: NDArray[Any] | None) -> Any:
        targets = None if labels is None else _series(labels)
        given: dict[str, Any] = {"predictions": predictions_of(outputs, labels), "targets": targets, "metrics": {}}
        found = metric.eval_fn(**{name: value for name, value in given.items() if name in named})
        if getattr(found, "scores", None) is not None:
            return found.scores
        aggregates = getattr(found, "aggregate_results", found)
        if isinstance(aggregates, Mapping):
            aggregates = next(iter(aggregates.values()), None)
        if aggregates is None:
            raise ValueError(f"eval_fn returned {found!r}, without scores or aggregates")
        return aggregates

    judge.greater_is_better = metric.greater_is_better  # type: ignore[attr-defined]  # functions take attributes
    return judge


def predictions_of(outputs: NDArray[Any], labels: NDArray[Any] | None) -> pd.Series[Any]:
    """Return outputs as predictions: the winning class for integer labels `(n,)`, a number, or one array per sample.

    >>> import numpy as np
    >>> predictions_of(np.array([[0.1, 0.9], [0.8, 0.2]]), np.array([1, 1])).tolist()
    [1, 0]
    >>> predictions_of(np.array([[0.1], [0.8]]), np.array([0, 1])).tolist()
    [0.1, 0.8]
    """
    scores_classes = outputs.ndim == 2 and outputs.shape[1] > 1 and outputs.dtype.kind == "f"
    if scores_classes and labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        return _series(outputs.argmax(axis=1))
    return _series(outputs)


def _series(values: NDArray[Any]) -> pd.Series[Any]:
    import pandas as pd  # measuring processes load this module for `preprocess`, and have no use of pandas

    if values.ndim == 1 or values.size == len(values):
        return pd.Series(values.reshape(len(values)))
    return pd.Series(list(values))
