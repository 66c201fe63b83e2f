"""Chart of the drop in each group of a slice, with joint bounds for all groups and the gate as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.reporting import formats
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import drop_encoding
from tasks.reporting.pictures.vega import NAMES_AXIS, Spec, picture
from validators.records.result import SliceResult

NAMES_WIDTH, WIDTH, ROW_HEIGHT = 260, 800, 24
SHOWN = 25


def slices_spec(slices: Sequence[SliceResult], max_drop: float | None, metric: str) -> Spec | None:
    """Return a chart of the groups in the given order, with the gate `max_drop` as a line, if any.

    None if no group has a finite drop with bounds.
    """
    scale = formats.drop_scale(metric)
    bound = None if max_drop is None else scale * max_drop
    groups = []
    for found in slices[:SHOWN]:
        drop = found.metric_drop
        if drop is None or not all(end is not None and math.isfinite(end) for end in (drop.value, drop.low, drop.high)):
            continue
        assert drop.low is not None and drop.high is not None
        groups.append(_group(found, [scale * end for end in (drop.value, drop.low, drop.high)], bound, metric))
    if not groups:
        return None
    ends = [bound or 0.0, *(group[end] for group in groups for end in ("low", "high"))]
    names = NAMES_AXIS | {"minExtent": NAMES_WIDTH}
    encoding: Spec = {
        "y": {"field": "name", "type": "nominal", "sort": None, "axis": names},
        "x": drop_encoding(ends, metric, WIDTH),
        "color": {"field": "colour", "type": "nominal", "scale": None},
    }
    return picture(
        [
            {
                "data": {"values": [{"bound": bound}] if bound is not None else []},
                "mark": {"type": "rule", "strokeDash": [6, 4], "color": LIGHT["muted"]},
                "encoding": {"x": {**encoding["x"], "field": "bound"}},
            },
            {
                "mark": {"type": "rule", "strokeWidth": 1.5},
                "encoding": encoding | {"x": {**encoding["x"], "field": "low"}, "x2": {"field": "high"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
                "encoding": encoding | {"x": {**encoding["x"], "field": "value"}, "description": {"field": "told"}},
            },
        ],
        width=WIDTH,
        height=ROW_HEIGHT * len(groups),
        data={"values": groups},
    )


def _group(found: SliceResult, ends: list[float], bound: float | None, metric: str) -> Spec:
    value, low, high = ends
    kind = "muted"
    if bound is not None:
        kind = "passed" if high <= bound else "failed" if low > bound else "inconclusive"
    drop = found.metric_drop
    assert drop is not None
    told = [formats.metric_drop(end, metric) for end in (drop.value, drop.low, drop.high)]
    name = f"{found.column} {found.group}"
    return {
        "name": f"{name} ({found.n:,})",
        "value": value,
        "low": low,
        "high": high,
        "colour": LIGHT[kind],
        "told": f"{name}, {found.n:,} samples: {told[0]}, {told[1]} to {told[2]}",
    }
