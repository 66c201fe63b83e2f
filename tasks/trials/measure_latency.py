"""Step 5, second half: latency of one candidate in turn with the baseline, while no other work of the run computes.

On a GPU also in turn with the float16 model, which needs no quantization.
"""

from __future__ import annotations

import shutil
import statistics
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Literal

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.compare import make_latency
from tasks.measure.request import draw_requests
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.progress_events import MEASURE, PROBE
from tasks.run.step import step
from tasks.run.user_functions import job_hooks
from tasks.storage.product import Product
from tasks.trials.make_candidate import refused
from tasks.trials.materials import as_refusal
from tasks.trials.measure_baseline import baseline_variant
from validators.digests import digest_values
from validators.errors import CandidateRefused
from validators.gates.race_rules import IN_TURN
from validators.job.candidate_name import decode
from validators.job.job_measurement import Measurement, OperatingPoint
from validators.records.generation import generations_of
from validators.records.latencies import NEW_TOKENS, Latency
from validators.records.run import Refusal, Trial, Variant

# Left out of the cache key: keys that do not change the latency of one point.
_POINTS = {"batch_sizes", "dims", "threads", "patience_seconds", "price_per_hour"}


# Pairs of a launch that orders the candidates of a race.
_PROBE_BLOCKS = 2


class _Disturbed(Exception):  # not an error: raised so that the store keeps no disturbed latency
    def __init__(self, latency: Latency) -> None:
        super().__init__(latency.disturbance)
        self.latency = latency


@step(MEASURE, run_name="measure {trial.candidate}")
def measure_latency(run: LoadedRun, trial: Trial, confidence: float | None = None) -> Trial:
    """Return the trial with one latency per operating point of the job; unchanged if its variant cannot be measured.

    `confidence` is the one-sided confidence of the bounds, by default that of the gates.
    """
    variant = trial.variant
    if variant is None or variant.proof != "measured":
        return trial
    with run.clock.work("measure latency"), run.time_for_candidates():
        try:
            baseline = baseline_variant(run)
            measured = [
                latency_of(
                    run, with_threads(baseline, point), with_threads(variant, point), point, confidence=confidence
                )
                for point in run.job.measurement.points
            ]
        except CandidateRefused as error:
            return refused(trial.candidate, error)
    latencies = tuple(latency for latency, _ in measured)
    first = latencies[0]
    log.info("measured %s: p50 %.3g ms, %.2fx", trial.candidate, first.p50_ms, first.speedup.value)
    for answer in generations_of(latencies):
        log.info("%s: %s", trial.candidate, answer)
    return replace(trial, latencies=latencies, cached=trial.cached and all(had for _, had in measured))


@step(PROBE, run_name="probe {trial.candidate}, launch {launch}")
def probe_latency(run: LoadedRun, trial: Trial, launch: int) -> Latency | Refusal:
    """Return a latency measurement of one launch at the first operating point, or the reason why there is none.

    `launch` is its index: the result of another one in the store is not taken for this one.
    """
    variant, point = trial.variant, run.job.measurement.points[0]
    assert variant
    baseline = with_threads(baseline_variant(run), point)
    with run.clock.work("probe latency"), run.time_for_candidates():
        try:
            latency, _ = latency_of(
                run,
                baseline,
                with_threads(variant, point),
                point,
                measurement=run.job.measurement.model_copy(
                    update={"launches": 1, "blocks": _PROBE_BLOCKS, "clients": 0}
                ),
                first_launch=launch,
            )
        except CandidateRefused as error:
            return as_refusal(error)
    log.info("probed %s: p50 %.3g ms, %.2fx", trial.candidate, latency.p50_ms, latency.speedup.value)
    return latency


@step("compare finalists", run_name="compare {trial.candidate} with {leader.candidate}")
def measure_in_turn(run: LoadedRun, leader: Trial, trial: Trial) -> float | None:
    """Return how many times as fast as the leader a trial is: the median over launches, at the first operating point.

    Both take turns. The result is None if one of them does not run or a launch is disturbed.
    """
    assert leader.variant and trial.variant
    point = run.job.measurement.points[0]
    first, second = (with_threads(variant, point) for variant in (leader.variant, trial.variant))
    one = run.job.measurement.model_copy(update={"launches": 1, "clients": 0})
    ratios = []
    with run.clock.work("compare finalists"), run.time_for_candidates():
        for launch in range(IN_TURN):
            try:
                latency, _ = latency_of(run, first, second, point, measurement=one, first_launch=launch)
            except CandidateRefused as error:
                log.warning("%s was not compared with %s: %s", trial.candidate, leader.candidate, error.found)
                return None
            if latency.disturbance:
                return None
            ratios.append(latency.speedup.value)
    ratio = statistics.median(ratios)
    log.info("%s is %.2fx as fast as %s", trial.candidate, ratio, leader.candidate)
    return ratio


def with_threads(variant: Variant, point: OperatingPoint) -> Variant:
    """Return the variant with the thread count of an operating point."""
    return replace(variant, session=replace(variant.session, threads=point.threads or usable_cores()))


def _answering(variant: Variant, point: OperatingPoint) -> Variant:
    """Return a variant that generates with answers as long as the operating point says; any other as it is."""
    if NEW_TOKENS not in variant.session.provider_options or NEW_TOKENS not in point.dims:
        return variant
    options = variant.session.provider_options | {NEW_TOKENS: str(point.dims[NEW_TOKENS])}
    return replace(variant, session=replace(variant.session, provider_options=options))


def latency_of(
    run: LoadedRun,
    baseline: Variant,
    variant: Variant,
    point: OperatingPoint,
    *,
    confidence: float | None = None,
    purpose: Literal["selection", "confirmation"] = "selection",
    measurement: Measurement | None = None,
    first_launch: int = 0,
) -> tuple[Latency, bool]:
    """Return the latency of a variant against a baseline at one operating point, and True if it was in the store.

    The store keeps no disturbed latency, so the next run measures again; its samples are kept in the state folder.

    `confidence` is the one-sided confidence of the bounds, by default that of the gates. `measurement` replaces the settings of
    the job. `purpose` is part of the cache key, since a measurement that chose a candidate cannot confirm it, and so is
    `first_launch`. Both sides answer the same requests, see `draw_requests`.

    Raises:
        CandidateRefused: a session does not load or run.
        InfrastructureError: a measuring process died or stopped responding.
    """
    job = run.job
    measurement = measurement or job.measurement
    if run.timed_threads and not point.threads:
        baseline, variant = (
            with_threads(side, replace(point, threads=run.timed_threads)) for side in (baseline, variant)
        )
    baseline, variant = _answering(baseline, point), _answering(variant, point)
    rows = draw_requests(run.evidence, point, job.seed, confirmation=purpose == "confirmation")
    inputs = (
        [side.measured_as for side in (baseline, variant)],
        measurement.model_dump(exclude=_POINTS),
        asdict(point),
        confidence or job.gates.confidence,
        purpose,
        first_launch,
        [hook.digest for hook in job_hooks(job)],
        run.evidence.evaluation.file.digest,
        rows.tolist(),
        run.inventory.device_key,
    )

    def refuse_disturbed(latency: Latency) -> None:
        kept = run.state / "disturbed" / digest_values(*product.key)
        kept.mkdir(parents=True, exist_ok=True)
        raise _Disturbed(replace(latency, samples_path=Path(shutil.copy(latency.samples_path, kept))))

    make = partial(
        make_latency,
        baseline,
        variant,
        run.evidence,
        rows,
        point,
        measurement,
        confidence or job.gates.confidence,
        job.code,
        run.patience,
        first_launch,
        refuse_disturbed,
    )
    product = Product("latency", inputs, Latency, make)
    try:
        return run.store.make(product)
    except _Disturbed as found:
        log.warning("latency of %s was disturbed: %s", variant.candidate, found.latency.disturbance)
        return found.latency, False


@step("measure beside fp16")
def measure_beside_fp16(run: LoadedRun, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Add to every trial timed on a GPU its latency beside the float16 candidate of its target, if there is one."""
    halves = halves_of(trials)
    with run.clock.work("measure beside fp16"), run.time_for_candidates():
        return tuple(_beside(run, trial, halves.get(decode(trial.candidate).target)) for trial in trials)


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


def _beside(run: LoadedRun, trial: Trial, half: Variant | None) -> Trial:
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
