"""Bounds of metrics that have units: a number that suits one label does not suit another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError
from validators.job.job import Job
from validators.job.job_gates import DEFAULT_MAX_DROP

# Metrics in the unit of the label, or in its square.
METRICS_WITH_UNITS = frozenset({"mse", "rmse", "mae"})


def check_bounds_have_units(job: Job, labels: NDArray[Any] | None) -> None:
    """Raise if the metric has units but the job sets no bound on its drop; `labels` have shape `(n, ...)`.

    Raises:
        JobError: `gates.max_drop`, or `gates.max_slice_drop` of a job with slices, is not set.
    """
    if job.metric not in METRICS_WITH_UNITS and not job.metric_is_function:
        return
    missing = ["max_drop"] if job.gates.max_drop is None else []
    if job.data.slices and "max_slice_drop" not in job.gates.model_fields_set:
        missing.append("max_slice_drop")
    if missing:
        keys = " and ".join(f"`gates.{key}`" for key in missing)
        raise JobError(
            found=f"the metric {job.metric!r} has units, and the job does not set {keys}",
            expected="the largest acceptable drop, in the metric's units: no default suits every label",
            fix=_suggestion(job.metric, labels, missing[0]),
        )


def suggest_max_drop(metric: str, labels: NDArray[Any]) -> float:
    """Return the rise of `mse`, `rmse` or `mae` that is 2 % of the error of the best constant answer, to two digits.

    For `mse`, it takes away 2 points of the explained variance (R2).

    >>> suggest_max_drop("mse", np.array([0.0, 2.0])), suggest_max_drop("mae", np.array([0.0, 2.0]))
    (0.02, 0.02)
    """
    values = labels.reshape(len(labels), -1).astype(np.float64)
    if metric == "mae":
        error = float(np.abs(values - np.median(values, axis=0)).mean())
    else:
        variances = values.var(axis=0)
        error = float((variances if metric == "mse" else np.sqrt(variances)).mean())
    return float(f"{DEFAULT_MAX_DROP * error:.2g}")


def _suggestion(metric: str, labels: NDArray[Any] | None, key: str) -> str:
    if metric in METRICS_WITH_UNITS and labels is not None:
        found = suggest_max_drop(metric, labels)
        what = {"mse": "variance", "rmse": "standard deviation", "mae": "mean deviation from the median"}[metric]
        if found > 0:
            other = (
                "; or use the metric `r2`, for which 0.02 means the same with every label" if metric != "mae" else ""
            )
            return f"set `gates.{key}`, for example to {found:g}, 2 % of the labels' {what}{other}"
    return f"set `gates.{key}`, for example to 2 % of the metric's value for the source"
