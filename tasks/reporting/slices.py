"""Slices and flips of a candidate as text."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.reporting import formats
from validators.records.result import CandidateResult

# The result document has all of them.
SHOWN_SLICES = 10


@dataclass(frozen=True)
class SliceRow:
    """A group of a slice; `bounds` hold for all groups jointly."""

    name: str
    samples: str
    drop: str
    bounds: str


def slice_rows(candidate: CandidateResult, metric: str) -> tuple[SliceRow, ...]:
    """Return rows for the groups that may have lost most, worst first."""
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
    """Return a sentence on the number of samples that became worse or better; empty without flips."""
    flips = candidate.flips
    if flips is None:
        return ""
    return f"Of {flips.n:,} samples {flips.lost:,} became worse than the source's and {flips.gained:,} better."
