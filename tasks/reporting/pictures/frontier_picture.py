"""Chart of the frontier that a search found: what forms of all parts cost, and the noise that they are predicted to have."""

from __future__ import annotations

import math

from tasks.reporting.parts import in_unit
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.vega import Spec, picture
from validators.records.verdicts import FrontierPoint, Recovery

WIDTH, HEIGHT = 800, 260


def frontier_spec(recovery: Recovery) -> Spec:
    """Return a chart with a step line through all points, and a mark for the candidate and for each point that was tried."""
    divisor, unit = in_unit(recovery.cost_unit)
    points = [_point(one, divisor) for one in recovery.frontier if one.noise > 0]
    encoding: Spec = {
        "x": {
            "field": "cost",
            "type": "quantitative",
            "title": f"Cost beyond the candidate's own forms, {unit}",
            "scale": {"zero": False, "nice": True},
            "axis": {"tickCount": 10},
        },
        "y": {
            "field": "decibels",
            "type": "quantitative",
            "title": "Predicted noise, dB",
            "scale": {"zero": False, "nice": True},
        },
    }
    tried = [point for point in [*_own(recovery), *points] if point["told"]]
    marks = {"data": {"values": tried}, "encoding": encoding | {"color": {"field": "colour", "scale": None}}}
    return picture(
        [
            {"mark": {"type": "line", "interpolate": "step-after", "color": LIGHT["muted"]}, "encoding": encoding},
            marks
            | {
                "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
                "encoding": marks["encoding"] | {"description": {"field": "told"}},
            },
            marks
            | {
                "mark": {"type": "text", "align": "left", "dx": 9, "dy": -9},
                "encoding": marks["encoding"] | {"text": {"field": "level"}},
            },
        ],
        width=WIDTH,
        height=HEIGHT,
        data={"values": points},
    )


def describe_frontier(recovery: Recovery) -> str:
    """Return the accessible name of the chart."""
    tried = ", ".join(f"{one.candidate} {one.outcome or 'refused'}" for one in recovery.frontier if one.candidate)
    return f"Cost against predicted noise of {len(recovery.frontier)} choices of forms. Tried: {tried or 'none'}."


def _own(recovery: Recovery) -> list[Spec]:
    """Return the candidate itself, whose noise is the sum of that of its parts; nothing if that is not finite."""
    noise = sum(math.inf if part.noise is None else part.noise for part in recovery.parts)
    if not 0 < noise < math.inf:
        return []
    own = FrontierPoint(0, noise, 0.0, recovery.candidate, "passed" if recovery.passes else "failed")
    return [_point(own, 1.0) | {"level": "its own forms"}]


def _point(one: FrontierPoint, divisor: float) -> Spec:
    outcome = one.outcome if one.outcome in ("passed", "inconclusive") else "failed"
    return {
        "cost": one.cost / divisor,
        "decibels": 10 * math.log10(one.noise),
        "level": f"-{one.level_db}db" if one.candidate else "",
        "colour": LIGHT[outcome],
        "told": f"{one.candidate}: {one.outcome}" if one.candidate else "",
    }
