"""Step 5, on a GPU: latency of every candidate in turn with the float16 model, which needs no quantization."""

from __future__ import annotations

from dataclasses import replace

from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.trials.measure_latency import latency_of
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import Trial, Variant


@step("measure beside fp16")
def measure_beside_fp16(run: LoadedRun, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Add to every trial timed on a GPU its latency beside the float16 candidate of its target, if there is one."""
    halves = halves_of(trials)
    with run.clock.work("measure beside fp16"), run.time_for_candidates():
        return tuple(_measure(run, trial, halves.get(decode(trial.candidate).target)) for trial in trials)


def can_measure_beside_fp16(trials: tuple[Trial, ...]) -> bool:
    """Return True if a float16 candidate was timed on a GPU."""
    return bool(halves_of(trials))


def halves_of(trials: tuple[Trial, ...]) -> dict[str, Variant]:
    """Return the float16 variants that were timed on a GPU, by target; a race may have stopped them after a short timing."""
    return {
        decode(trial.candidate).target: trial.variant
        for trial in trials
        if trial.variant
        and trial.variant.session.on_gpu
        and (trial.latency or (trial.is_stopped and trial.variant.proof == "measured"))
        and decode(trial.candidate).precision == "fp16"
    }


def _measure(run: LoadedRun, trial: Trial, half: Variant | None) -> Trial:
    variant = trial.variant
    if (
        half is None
        or variant is None
        or variant.digest == half.digest
        or not trial.latency
        or not variant.session.on_gpu
    ):
        return trial
    try:
        latency, had = latency_of(run, half, variant, run.job.measurement.points[0])
    except CandidateRefused as error:  # the candidate ran beside the baseline, so the float16 variant failed
        log.warning("%s was not timed beside fp16: %s", trial.candidate, error.found)
        return trial
    log.info("%s beside fp16: %.2fx", trial.candidate, latency.speedup.value)
    return replace(trial, beside_fp16=latency, cached=trial.cached and had)
