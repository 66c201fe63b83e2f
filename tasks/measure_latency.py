"""Step 5, second half: latency of one candidate in turn with the baseline, while nothing else of the run computes."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from tasks.context import MEASURE_CODE, Given, Run, log
from tasks.make_candidate import refused
from tasks.measure.latency import Contestant, compare_latency
from tasks.measure_baseline import baseline_variant
from tasks.request import request_batch
from tasks.step import step
from validators.errors import CandidateRefused
from validators.measurements import Latency
from validators.records import Inventory, Trial, Variant


@step("measure latency", run_name="measure {trial.candidate}")
def measure_latency(run: Run, given: Given, inventory: Inventory, trial: Trial) -> Trial:
    """The trial with its latencies, one for each batch size of the job; unchanged when there is nothing to measure."""
    if trial.variant is None or trial.variant.is_simulated:
        return trial
    with run.clock.work("measure latency"):
        try:
            measured = [
                latency_of(run, given, inventory, baseline_variant(run, given), trial.variant, size)
                for size in run.job.measurement.batch_sizes
            ]
        except CandidateRefused as error:
            return refused(trial.candidate, error)
    latencies = tuple(latency for latency, _ in measured)
    first = latencies[0]
    log.info("measured %s: p50 %.3g ms, %.2fx", trial.candidate, first.p50_ms, first.speedup.value)
    return replace(trial, latencies=latencies, cached=trial.cached and all(had for _, had in measured))


def latency_of(
    run: Run,
    given: Given,
    inventory: Inventory,
    baseline: Variant,
    variant: Variant,
    batch_size: int,
    *,
    confidence: float | None = None,
    purpose: Literal["selection", "confirmation"] = "selection",
) -> tuple[Latency, bool]:
    """The latency of a variant against a baseline at one batch size, and whether it was in the store.

    `confidence` is the one-sided one of its bounds, the gates' if not given. What is kept was measured for this `purpose`: a
    measurement that chose a candidate cannot confirm it.

    Raises:
        CandidateRefused: a session does not load or run.
        InfrastructureError: a measuring process died or fell silent.
    """
    job = run.job
    key = (
        [(side.digest, asdict(side.session)) for side in (baseline, variant)],
        job.measurement.model_dump(exclude={"batch_sizes"}),
        batch_size,
        confidence or job.gates.confidence,
        purpose,
        given.evidence.evaluation.file.digest,
        inventory.device_key,
        MEASURE_CODE,
    )

    def measure(folder: Path) -> Latency:
        return compare_latency(
            Contestant(baseline.path, baseline.session),
            Contestant(variant.path, variant.session),
            request_batch(job, given.evidence, batch_size),
            job.measurement,
            confidence=confidence or job.gates.confidence,
            samples_path=folder / "samples.npz",
        )

    return run.store.make("latency", key, Latency, measure)
