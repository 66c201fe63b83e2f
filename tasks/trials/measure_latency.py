"""Step 5, second half: latency of one candidate in turn with the baseline, while nothing else of the run computes."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.process import Contestant
from tasks.run.context import MEASURE_CODE, Given, Run, log
from tasks.run.progress_events import MEASURE
from tasks.run.step import step
from tasks.run.user_functions import job_hooks
from tasks.trials.make_candidate import refused
from tasks.trials.measure_baseline import baseline_variant
from tasks.trials.request import draw_requests, request_of
from validators.digests import digest_values
from validators.errors import CandidateRefused
from validators.job.job_measurement import OperatingPoint
from validators.records.latencies import Latency
from validators.records.run import Inventory, Trial, Variant

# What makes other numbers of the same point; the lists of points are not among it.
_POINTS = {"batch_sizes", "dims", "threads"}


class _Disturbed(Exception):  # no error: the way past the store, which keeps what it is given
    def __init__(self, latency: Latency) -> None:
        super().__init__(latency.disturbance)
        self.latency = latency


@step(MEASURE, run_name="measure {trial.candidate}")
def measure_latency(run: Run, given: Given, inventory: Inventory, trial: Trial) -> Trial:
    """The trial with its latencies, one for each operating point of the job; unchanged when there is nothing to measure."""
    variant = trial.variant
    if variant is None or variant.proof != "measured":
        return trial
    with run.clock.work("measure latency"), run.time_for_candidates():
        try:
            baseline = baseline_variant(run, given, inventory)
            measured = [
                latency_of(run, given, inventory, with_threads(baseline, point), with_threads(variant, point), point)
                for point in run.job.measurement.points
            ]
        except CandidateRefused as error:
            return refused(trial.candidate, error)
    latencies = tuple(latency for latency, _ in measured)
    first = latencies[0]
    log.info("measured %s: p50 %.3g ms, %.2fx", trial.candidate, first.p50_ms, first.speedup.value)
    return replace(trial, latencies=latencies, cached=trial.cached and all(had for _, had in measured))


def with_threads(variant: Variant, point: OperatingPoint) -> Variant:
    """The variant under the thread count of an operating point."""
    return replace(variant, session=replace(variant.session, threads=point.threads or usable_cores()))


def latency_of(
    run: Run,
    given: Given,
    inventory: Inventory,
    baseline: Variant,
    variant: Variant,
    point: OperatingPoint,
    *,
    confidence: float | None = None,
    purpose: Literal["selection", "confirmation"] = "selection",
) -> tuple[Latency, bool]:
    """The latency of a variant against a baseline at one operating point, and whether it was in the store.

    One that was disturbed is not kept there, so that the next run measures again; its samples lie in the state folder.

    `confidence` is the one-sided one of its bounds, the gates' if not given. What is kept was measured for this `purpose`: a
    measurement that chose a candidate cannot confirm it. Both sides answer the same requests, see `draw_requests`.

    Raises:
        CandidateRefused: a session does not load or run.
        InfrastructureError: a measuring process died or fell silent.
    """
    job = run.job
    rows = draw_requests(given.evidence, point, job.seed, confirmation=purpose == "confirmation")
    key = (
        [side.measured_as for side in (baseline, variant)],
        job.measurement.model_dump(exclude=_POINTS),
        asdict(point),
        confidence or job.gates.confidence,
        purpose,
        [hook.digest for hook in job_hooks(job)],
        given.evidence.evaluation.file.digest,
        rows.tolist(),
        inventory.device_key,
        MEASURE_CODE,
    )

    def measure(folder: Path) -> Latency:
        latency = compare_latency(
            Contestant(baseline.loaded, baseline.session),
            Contestant(variant.loaded, variant.session),
            [request_of(given.evidence, point, one) for one in rows],
            job.measurement,
            confidence=confidence or job.gates.confidence,
            samples_path=folder / "samples.npz",
            dims=point.dims,
            code=job.code,
        )
        if latency.disturbance:
            kept = run.state / "disturbed" / digest_values(*key)
            kept.mkdir(parents=True, exist_ok=True)
            raise _Disturbed(replace(latency, samples_path=Path(shutil.copy(latency.samples_path, kept))))
        return latency

    try:
        return run.store.make("latency", key, Latency, measure)
    except _Disturbed as found:
        log.warning("latency of %s was disturbed: %s", variant.candidate, found.latency.disturbance)
        return found.latency, False
