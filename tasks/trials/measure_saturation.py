"""Step 5, between making and timing: the share of reference values that the fixed ranges of each variant clip."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tasks.measure.saturation import Saturations, make_saturations
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.storage.product import Product
from tasks.trials.materials import prepared_product
from validators.records.run import Trial


@step("measure saturation")
def measure_saturation(run: LoadedRun, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Add to each trial whose variant fixes ranges the share of clipped values; one pass of the float graph serves all.

    Trials that failed already, in a race, are left out.
    """
    kept = [trial for trial in trials if not trial.refusal and trial.outcome in (None, "passed")]
    variants = {trial.variant.digest: trial.variant for trial in kept if trial.variant}
    bounds = run.job.calibration
    if not variants or not bounds.model_samples:
        return trials
    prepared = prepared_product(run, run.source, run.inventory)
    inputs = (
        sorted(variants),
        prepared,
        run.evidence.output.name,
        run.evidence.reference.file.digest,
        bounds.model_samples,
        run.job.seed,
    )
    make = partial(
        make_saturations,
        variants,
        lambda: run.store.make(prepared)[0],
        run.evidence,
        run.reference_session,
        bounds.model_samples,
        run.job.seed,
    )
    with run.clock.work("measure saturation"):
        found, _ = run.store.make(Product("saturation", inputs, Saturations, make))
    return tuple(
        replace(trial, saturation=found.by_variant.get(trial.variant.digest)) if trial.variant else trial
        for trial in trials
    )
