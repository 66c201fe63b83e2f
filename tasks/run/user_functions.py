"""The job's metric, its functions before and after the model, and its own step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tasks.measure.metrics.catalog import Options, named_metric
from tasks.measure.metrics.metric import Metric
from tasks.measure.metrics.texts import make_decoder
from tasks.measure.metrics.user_code import UserFunction, check_allowed, load_function
from tasks.measure.metrics.user_metric import user_metric
from tasks.measure.metrics.values import has_noise
from validators.errors import JobError
from validators.job.job import Job
from validators.records.latencies import NEW_TOKENS, USUAL_NEW_TOKENS
from validators.samples.datasets import TensorSpec
from validators.samples.readers import check_exists
from validators.targets import facts_of
from validators.untrusted.operator_allowlist import check_python


def check_places(job: Job) -> None:
    """Refuse what a job names and is not there or not allowed, at once: loading it comes after Prefect's start.

    Raises:
        DataError: a data file is missing.
        JobError: a file of another tool is missing, or the operator does not allow a function.
    """
    data, measured = job.data, job.measurement
    for role, place in (("calibration", data.calibration), ("evaluation", data.evaluation), ("traffic", data.traffic)):
        if isinstance(place, Path):
            check_exists(place, role)
    for given in job.given_files.values():
        if given.make is not None:
            if not given.has_adapter:
                check_allowed(given.make, job.code, key="given.make")
            if given.python is not None:
                check_python(given.python)
        elif given.source is None and not given.file.exists():
            raise JobError(
                found=f"`given`: no file {given.file}",
                expected="a file that another tool made",
                fix="correct `file`",
            )
    named = {
        "metric": job.metric if job.metric_is_function else None,
        "data.read": data.read,
        "measurement.preprocess": measured.preprocess,
        "measurement.postprocess": measured.postprocess,
        "step": job.step,
    }
    for key, name in named.items():
        if name is not None:
            check_allowed(name, job.code, key=key)


def job_metric(job: Job) -> Metric:
    """Return the metric that the job names, with its options.

    Raises:
        JobError: the user's function or the vocabulary cannot be loaded.
    """
    if job.metric_is_function:
        found = load_function(job.metric, job.code, key="metric")
        higher = job.metric_direction == "higher"
        _check_direction(job, found)
        # The most tokens of an answer that it judges: those of the request that gates judge.
        new_tokens = job.measurement.points[0].dims.get(NEW_TOKENS, USUAL_NEW_TOKENS)
        of_answers = new_tokens if facts_of(job.target).generates else 0
        version = " ".join([found.digest, str(job.metric_direction), *([str(of_answers)] if of_answers else [])])
        metric = user_metric(job.metric, found.function, higher_is_better=higher, version=version)
        return replace(metric, of_answers=of_answers)
    options = Options(job.metric_threshold, make_decoder(job.text), job.metric_scores, job.metric_k)
    return named_metric(job.metric, options)


def _check_direction(job: Job, found: UserFunction) -> None:
    told = getattr(found.function, "greater_is_better", None)
    if told is not None and told != (job.metric_direction == "higher"):
        raise JobError(
            found=f"`metric_direction: {job.metric_direction}`, but {job.metric} was made with greater_is_better={told}",
            expected="the same direction in both",
            fix=f"set `metric_direction: {'higher' if told else 'lower'}`",
        )


def keeps_noise(metric: Metric, output: TensorSpec) -> bool:
    """Return True if the noise between the outputs of a variant and the baseline can be measured."""
    return metric.of_windows is None and not metric.of_answers and metric.join is None and has_noise(output)


def job_hooks(job: Job) -> list[UserFunction]:
    """Return the job's `preprocess` and `postprocess` functions, which count in the end-to-end time, if it names them.

    Raises:
        JobError: a function cannot be loaded.
    """
    named = {"preprocess": job.measurement.preprocess, "postprocess": job.measurement.postprocess}
    return [load_function(name, job.code, key=f"measurement.{key}") for key, name in named.items() if name is not None]


def job_step(job: Job) -> UserFunction | None:
    """Return the job's own step, or None if it has none.

    Raises:
        JobError: the function cannot be loaded.
    """
    return load_function(job.step, job.code, key="step") if job.step is not None else None
