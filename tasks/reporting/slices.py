"""Slices and flips of a candidate as text."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.reporting import formats
from validators.records.result import CandidateResult

# All are in the result document.
SHOWN_SLICES = 10


@dataclass(frozen=True)
class SliceRow:
    """A group of a slice; `bounds` hold for all groups at once."""

    name: str
    samples: str
    drop: str
    bounds: str


def slice_rows(candidate: CandidateResult, metric: str) -> tuple[SliceRow, ...]:
    """The groups that may have lost most, worst first."""
    rows = []
    for found in candidate.slices[:SHOWN_SLICES]:
        drop = found.metric_drop
        ends = (drop.low, drop.high) if drop else (None, None)
        known = None not in ends
        bounds = " to ".join(formats.metric_drop(end, metric) for end in ends) if known else formats.NO_VALUE
        value = formats.metric_drop(drop.value if drop else None, metric)
        rows.append(SliceRow(f"{found.column} {found.group}", str(found.n), value, bounds))
    return tuple(rows)


def tell_flips(candidate: CandidateResult) -> str:
    """How many samples changed sides; empty where none can."""
    flips = candidate.flips
    if flips is None:
        return ""
    return f"Of {flips.n:,} samples {flips.lost:,} became worse than the source's and {flips.gained:,} better."
