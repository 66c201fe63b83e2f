"""The metric of a job."""

from __future__ import annotations

from typing import cast

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.text_errors import make_decoder
from tasks.measure.metrics.user_code import load_function
from tasks.measure.metrics.user_metric import user_metric
from tasks.measure.metrics.values import has_noise
from validators.job.job import Job, MetricName
from validators.samples.datasets import TensorSpec


def job_metric(job: Job) -> Metric:
    """The metric that the job names, with what it needs.

    Raises:
        JobError: the user's function or the vocabulary cannot be loaded.
    """
    if job.metric_is_function:
        found = load_function(job.metric, job.code, key="metric")
        higher = job.metric_direction == "higher"
        return user_metric(
            job.metric, found.function, higher_is_better=higher, version=f"{found.digest} {job.metric_direction}"
        )
    return named_metric(cast(MetricName, job.metric), Options(job.metric_threshold, make_decoder(job.text)))


def keeps_noise(metric: Metric, output: TensorSpec) -> bool:
    """Return whether the noise between the outputs of a variant and the baseline can be measured."""
    return metric.name != "perplexity" and has_noise(output)
