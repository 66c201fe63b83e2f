"""Bounds of metrics that have units: a number that suits one label does not suit another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError
from validators.job.job import Job
from validators.job.job_gates import DEFAULT_MAX_DROP
from validators.job.metric_facts import METRICS, metric_facts


def check_bounds_have_units(job: Job, labels: NDArray[Any] | None) -> None:
    """Raise if the metric has units but the job sets no bound on its drop; `labels` have shape `(n, ...)`.

    Raises:
        JobError: `gates.max_drop`, or `gates.max_slice_drop` of a job with slices, is not set.
    """
    if metric_facts(job.metric).of_constant is None and not job.metric_is_function:
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
    """Return the rise of a metric with units that is 2 % of the error of the best constant answer, to two digits.

    For `mse`, it takes away 2 points of the explained variance (R2).

    >>> suggest_max_drop("mse", np.array([0.0, 2.0])), suggest_max_drop("mae", np.array([0.0, 2.0]))
    (0.02, 0.02)
    """
    of_constant = METRICS[metric].of_constant
    assert of_constant
    error = float(of_constant[0](labels.reshape(len(labels), -1).astype(np.float64)))
    return float(f"{DEFAULT_MAX_DROP * error:.2g}")


def _suggestion(metric: str, labels: NDArray[Any] | None, key: str) -> str:
    of_constant = metric_facts(metric).of_constant
    if of_constant and labels is not None and (found := suggest_max_drop(metric, labels)) > 0:
        return f"set `gates.{key}`, for example to {found:g}, 2 % of the labels' {of_constant[1]}"
    return f"set `gates.{key}`, for example to 2 % of the metric's value for the source"
