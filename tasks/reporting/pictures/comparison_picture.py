"""Chart of the winners of several runs: speedup and drop with intervals, one row per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import Scale, bar_ends, drop_encoding, in_axis_units, ratio_ticks
from tasks.reporting.pictures.vega import NAMES_AXIS, Spec
from validators.records.measurements import Estimate

NAMES_WIDTH, PANEL_WIDTH, ROW_HEIGHT = 300, 360, 34


@dataclass(frozen=True)
class Ends:
    """A run's label, with its chosen candidate, or its outcome if it chose none."""

    label: str
    chosen: str
    speedup: Estimate | None = None
    drop: Estimate | None = None


def compare_spec(runs: Sequence[Ends], metric: str | None) -> Spec | None:
    """Return a panel of speedups, and one of drops if all runs share a metric; None if no run has a finite speedup."""
    speedups = [(run, run.speedup) for run in runs if run.speedup and math.isfinite(run.speedup.value)]
    if not speedups:
        return None
    ends = [1.0, *(end for _, speedup in speedups for end in bar_ends(speedup))]
    low, high = min(ends) / 1.05, max(ends) * 1.05
    scale = Scale("log", low, high, PANEL_WIDTH, tuple(ratio_ticks(low, high)))
    panels = [_panel(runs, speedups, scale.encoding("speedup of p50 latency (faster →)", "{:g}x"), 1.0)]
    found = [(run, run.drop) for run in runs if run.drop and math.isfinite(run.drop.value)]
    if metric and found:
        drops = [(run, in_axis_units(drop, metric)) for run, drop in found]
        across = drop_encoding((end for _, drop in drops for end in bar_ends(drop)), metric, PANEL_WIDTH)
        panels.append(_panel(runs, drops, across, 0.0, named=False))
    return {"hconcat": panels, "spacing": 24}


def _panel(
    runs: Sequence[Ends],
    values: Sequence[tuple[Ends, Estimate]],
    across: Spec,
    nothing: float,
    *,
    named: bool = True,
) -> Spec:
    """Return one panel; `across` encodes the values, and `nothing` is the baseline's."""
    marks = [
        {"label": run.label, "value": value.value, "low": low, "high": high, "told": f"{run.label}: {run.chosen}"}
        for run, value in values
        for low, high in (bar_ends(value),)
    ]
    y: Spec = {
        "field": "label",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": [run.label for run in runs]},
        "axis": NAMES_AXIS | {"minExtent": NAMES_WIDTH} if named else None,
    }
    base: Spec = {
        "data": {"values": [{"nothing": nothing}]},
        "mark": {"type": "rule", "color": LIGHT["muted"], "strokeDash": [5, 3]},
        "encoding": {"x": {**across, "field": "nothing"}},
    }
    bars: Spec = {
        "mark": {"type": "rule", "color": LIGHT["accent"], "strokeWidth": 1.5, "opacity": 0.7},
        "encoding": {"y": y, "x": {**across, "field": "low"}, "x2": {"field": "high"}},
    }
    points: Spec = {
        "mark": {"type": "point", "filled": True, "size": 80, "color": LIGHT["accent"], "opacity": 1},
        "encoding": {"y": y, "x": {**across, "field": "value"}, "description": {"field": "told"}},
    }
    height = ROW_HEIGHT * len(runs)
    return {"width": PANEL_WIDTH, "height": height, "data": {"values": marks}, "layer": [base, bars, points]}
