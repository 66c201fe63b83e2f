"""Step 5, between making and timing: what the fixed ranges of each variant cut off of the reference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tasks.measure.activations import Ranges, describe_clipping, open_tapped
from tasks.measure.inventory import usable_cores
from tasks.measure.taps import taps_of
from tasks.ptq.calibrate.fixed_ranges import read_fixed_ranges
from tasks.run.context import MAKER_CODE, MEASURE_CODE, Given, Run, log
from tasks.run.step import step
from tasks.trials.make_candidate import materials_of
from validators.calibration.model_view import draw_rows, usable_rows
from validators.errors import CandidateRefused
from validators.providers import CPU_PROVIDER
from validators.records.measurements import Saturation, worst_first
from validators.records.run import Inventory, SessionSettings, Trial, Variant

FixedRanges = dict[str, tuple[float, float]]


@dataclass(frozen=True)
class _Saturations:
    """Saturation by the digest of the variant."""

    by_variant: dict[str, Saturation]


@step("measure saturation")
def measure_saturation(run: Run, given: Given, inventory: Inventory, trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """The trials whose variants fix ranges, with what these cut off; one pass of the float graph serves all."""
    variants = {trial.variant.digest: trial.variant for trial in trials if trial.variant}
    bounds = run.job.calibration
    if not variants or not bounds.model_samples:
        return trials
    key = (
        sorted(variants),
        given.source.digest,
        sorted(inventory.runtimes.items()),
        given.evidence.output.name,
        given.evidence.reference.file.digest,
        bounds.model_samples,
        run.job.seed,
        MAKER_CODE,
        MEASURE_CODE,
    )
    with run.clock.work("measure saturation"):
        found, _ = run.store.make(
            "saturation", key, _Saturations, lambda _: _Saturations(_measure(run, given, inventory, variants))
        )
    return tuple(
        replace(trial, saturation=found.by_variant.get(trial.variant.digest)) if trial.variant else trial
        for trial in trials
    )


def _measure(run: Run, given: Given, inventory: Inventory, variants: dict[str, Variant]) -> dict[str, Saturation]:
    fixed = {digest: read_fixed_ranges(variant.path) for digest, variant in variants.items()}
    fixed = {digest: ranges for digest, ranges in fixed.items() if ranges}
    if not fixed:
        return {}
    evidence = given.evidence
    rows = draw_rows(
        usable_rows(evidence.reference.inputs),
        run.job.calibration.model_samples,
        evidence.batch_axis or 1,
        run.job.seed,
    )
    tensors = dict.fromkeys(name for ranges in fixed.values() for name in ranges)
    settings = SessionSettings(
        CPU_PROVIDER, run.job.measurement.points[0].threads or usable_cores(), libraries=run.libraries
    )
    prepared: Path = materials_of(run, given, inventory).prepared()
    try:
        with open_tapped(prepared, settings, lambda graph: taps_of(graph, evidence.output.name, tensors)) as watch:
            names = [tap.tensor for tap in watch.taps.watched]
            asked = [_as_ranges(ranges, names) for ranges in fixed.values()]
            counts, _ = watch.count_outside(evidence.reference, rows, evidence.batch_axis, asked)
    except CandidateRefused as error:
        # The variants were made and judged: what is missing is a figure to watch.
        log.warning("saturation is not known: %s", error.found)
        return {}
    return {
        digest: Saturation(worst_first(describe_clipping(watch.taps, ranges, count)), len(rows))
        for digest, ranges, count in zip(fixed, asked, counts, strict=True)
    }


def _as_ranges(fixed: FixedRanges, names: list[str]) -> Ranges:
    """The ranges in the order of the watched tensors, NaN where the variant fixes none."""
    ends = np.array([fixed.get(name, (np.nan, np.nan)) for name in names], np.float64).reshape(-1, 2)
    return Ranges(ends[:, 0], ends[:, 1])
