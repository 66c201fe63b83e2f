"""The steps that rank the parts of a model by their sensitivity, in call order: without Prefect, MLflow runs, and promotion."""

from __future__ import annotations

from flows.judge import gather_here
from tasks.run.context import log, start_run
from tasks.run.exclusive_run import turn_of
from tasks.run.log_redaction import shielded
from tasks.trials.measure_baseline import measure_baseline
from tasks.trials.sensitivity import RECIPES, PrecisionEffects, measure_sensitivity
from validators.errors import CandidateRefused, JobError
from validators.job.job import Job


@shielded
def sensitivity(job: Job, recipes: tuple[str, ...] = RECIPES) -> tuple[PrecisionEffects, ...]:
    """Rank the parts of the job's source for each recipe that quantizes some of them.

    Raises:
        JobError: the job has no calibration data, or no recipe quantizes any part of the source.
        SourceError: the source cannot be read.
        DataError: the data does not fit.
    """
    if job.data.calibration is None:
        raise JobError(
            found="a job without `data.calibration`",
            expected="calibration samples, on which parts are compared",
            fix="name them",
        )
    run = start_run(job)
    with turn_of(run), run.footprint.measured():
        run.clock.begin_budget()
        loaded = gather_here(run)
        baseline = measure_baseline(loaded)
        found = []
        for recipe in recipes:
            try:
                found.append(measure_sensitivity(loaded, baseline, recipe))
            except CandidateRefused as error:
                log.info("%s is left out: %s", recipe, error.found)
    if not found:
        raise JobError(
            found=f"no part that {', '.join(recipes)} quantize",
            expected="a model with MatMul, Gemm or Conv nodes that have constant weights",
            fix="see the log for the reasons",
        )
    return tuple(found)
