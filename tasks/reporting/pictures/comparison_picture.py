"""Chart of the winners of several runs: speedup and drop with intervals, one row per run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.reporting import formats
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import Scale, drop_ticks, ratio_ticks
from tasks.reporting.pictures.vega import Spec
from validators.job.metric_facts import metric_facts
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
    speedups = [(run, run.speedup, 1.0) for run in runs if run.speedup and _is_finite(run.speedup)]
    if not speedups:
        return None
    low = min(1.0, *(_low(speedup) for _, speedup, _ in speedups)) / 1.05
    high = max(1.0, *(_high(speedup) for _, speedup, _ in speedups)) * 1.05
    x = Scale("log", low, high, PANEL_WIDTH, tuple(ratio_ticks(low, high)))
    words = {tick: f"{tick:g}x" for tick in x.ticks}
    panels = [_panel(runs, speedups, x, words, "speedup of p50 latency (faster →)", 1.0)]
    drops = [
        (run, run.drop, formats.drop_scale(metric)) for run in runs if metric and run.drop and _is_finite(run.drop)
    ]
    if metric and drops:
        ends = [0.0, *(scale * end for _, drop, scale in drops for end in (_low(drop), _high(drop)))]
        room = 0.05 * (max(ends) - min(ends) or 1.0)
        low, high = min(ends) - room, max(ends) + room
        unit = " pp" if metric_facts(metric).is_share else ""
        x = Scale("linear", low, high, PANEL_WIDTH, tuple(drop_ticks(low, high, high)))
        words = {tick: f"{tick:+g}{unit}" if tick else "0" for tick in x.ticks}
        panels.append(_panel(runs, drops, x, words, f"drop of {metric} (worse →)", 0.0, named=False))
    return {"hconcat": panels, "spacing": 24}


def _panel(
    runs: Sequence[Ends],
    values: Sequence[tuple[Ends, Estimate, float]],
    x: Scale,
    words: dict[float, str],
    title: str,
    nothing: float,
    *,
    named: bool = True,
) -> Spec:
    """Return one panel; `nothing` is the baseline's value."""
    marks = [
        {
            "label": run.label,
            "value": scale * value.value,
            "low": scale * _low(value),
            "high": scale * _high(value),
            "told": f"{run.label}: {run.chosen}",
        }
        for run, value, scale in values
    ]
    names = {"title": None, "grid": False, "domain": False, "labelColor": LIGHT["ink"], "minExtent": NAMES_WIDTH}
    y: Spec = {
        "field": "label",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": [run.label for run in runs]},
        "axis": names if named else None,
    }
    across: Spec = {"type": "quantitative", "scale": x.spec, "axis": {"title": title, **x.axis(words)}}
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


def _low(value: Estimate) -> float:
    return value.value if value.low is None or not math.isfinite(value.low) else value.low


def _high(value: Estimate) -> float:
    return value.value if value.high is None or not math.isfinite(value.high) else value.high


def _is_finite(value: Estimate) -> bool:
    return math.isfinite(value.value)
