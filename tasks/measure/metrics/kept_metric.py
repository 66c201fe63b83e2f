"""Metric of rows that are kept: its value and drops, without the user's code and without text."""

from __future__ import annotations

from typing import cast

import numpy as np

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.text_errors import Decoder
from tasks.measure.metrics.user_metric import user_metric
from validators.job.job import Job, MetricName


def kept_metric(job: Job) -> Metric:
    """Return a metric that gives the job's values from rows alone; of a user's function, only if a row is one score."""
    if job.metric_is_function:
        return user_metric(job.metric, _absent, higher_is_better=job.metric_direction == "higher", version="")
    options = Options(job.metric_threshold, Decoder(job.text, None, ""), job.metric_scores, job.metric_k)
    return named_metric(cast(MetricName, job.metric), options)


def _absent(*_: object) -> np.ndarray:
    raise ValueError(
        "found rows of several numbers; expected one score for each sample, since the function is not here"
    )
