"""Share of the reference samples' activations that the fixed ranges of variants cut off."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tasks.measure.activations import Ranges, describe_clipping, open_tapped
from tasks.measure.taps import taps_of
from tasks.ptq.calibrate.fixed_ranges import read_fixed_ranges
from validators.calibration.model_view import draw_rows, usable_rows
from validators.errors import CandidateRefused
from validators.records.measurements import Saturation, worst_first
from validators.records.run import SessionSettings, Variant
from validators.samples.evidence import Evidence

log = logging.getLogger("quantgate")
FixedRanges = dict[str, tuple[float, float]]


# By the digest of the variant.
Saturations = dict[str, Saturation]


def make_saturations(
    variants: Mapping[str, Variant],
    prepared: Callable[[], Path],
    evidence: Evidence,
    settings: SessionSettings,
    samples: int,
    seed: int,
    _: Path,
) -> Saturations:
    """Measure the variants that fix ranges in one pass of the prepared graph over a seeded draw of the reference."""
    fixed = {digest: read_fixed_ranges(variant.path) for digest, variant in variants.items()}
    fixed = {digest: ranges for digest, ranges in fixed.items() if ranges}
    if not fixed:
        return {}
    rows = draw_rows(usable_rows(evidence.reference.inputs), samples, evidence.batch_axis or 1, seed)
    tensors = dict.fromkeys(name for ranges in fixed.values() for name in ranges)
    graph = prepared()
    try:
        with open_tapped(graph, settings, lambda graph: taps_of(graph, evidence.output.name, tensors)) as watch:
            names = [tap.tensor for tap in watch.taps.watched]
            asked = [_as_ranges(ranges, names) for ranges in fixed.values()]
            counts, _samples = watch.count_outside(evidence.reference, rows, evidence.batch_axis, asked)
    except CandidateRefused as error:
        # The variants were made and judged: what is missing is a figure to watch.
        log.warning("saturation is not known: %s", error.found)
        return {}
    return {
        digest: Saturation(worst_first(describe_clipping(watch.taps, ranges, count)), len(rows))
        for digest, ranges, count in zip(fixed, asked, counts, strict=True)
    }


def _as_ranges(fixed: FixedRanges, names: list[str]) -> Ranges:
    """Return the ranges in the order of the watched tensors; NaN if the variant fixes none."""
    ends = np.array([fixed.get(name, (np.nan, np.nan)) for name in names], np.float64).reshape(-1, 2)
    return Ranges(ends[:, 0], ends[:, 1])
