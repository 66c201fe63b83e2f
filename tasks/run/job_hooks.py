"""The functions of the user's own that a job calls around a request, and its own step."""

from __future__ import annotations

from tasks.measure.metrics.user_code import UserFunction, load_function
from validators.job.job import Job


def job_hooks(job: Job) -> list[UserFunction]:
    """What comes before and after the model in the end-to-end time, as far as the job names it.

    Raises:
        JobError: a function cannot be loaded.
    """
    named = {"preprocess": job.measurement.preprocess, "postprocess": job.measurement.postprocess}
    return [load_function(name, job.code, key=f"measurement.{key}") for key, name in named.items() if name is not None]


def job_step(job: Job) -> UserFunction | None:
    """The job's own step, if it has one.

    Raises:
        JobError: it cannot be loaded.
    """
    return load_function(job.step, job.code, key="step") if job.step is not None else None
