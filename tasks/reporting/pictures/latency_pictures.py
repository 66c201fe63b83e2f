"""Charts of latency: its distribution, and the speedup by operating point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasks.reporting import formats
from tasks.reporting.pictures.pareto import STYLES
from tasks.reporting.pictures.scales import Scale, ratio_ticks
from tasks.reporting.pictures.vega import FONT_PIXELS, WIDTH, Spec, name_at, picture, text_width
from validators.records.latencies import Latency, point_labels

HEIGHT = 300
# Steps of a curve: more would not be visible on a screen.
STEPS = 200
# The slowest requests of a shared machine would squeeze all others to the left; the table has p99.
SHOWN_SHARE = 0.995


@dataclass(frozen=True)
class Curve:
    """A line with a name; `kind` is a key of `STYLES`, `told` is its tooltip."""

    name: str
    kind: str
    points: tuple[tuple[float, float], ...]
    told: str = ""


def ecdf(samples_ms: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return the empirical distribution of samples, shape (n,), as (milliseconds, share) pairs.

    There are at most `STEPS` pairs, up to the share `SHOWN_SHARE`.

    >>> ecdf(np.array([3.0, 1.0, 2.0, 4.0]))
    ((1.0, 0.25), (2.0, 0.5), (3.0, 0.75))
    """
    ordered = np.sort(samples_ms)
    count = math.floor(SHOWN_SHARE * len(ordered))
    places = np.unique(np.linspace(0, count - 1, min(STEPS, count)).round().astype(int))
    return tuple((float(ordered[place]), float((place + 1) / len(ordered))) for place in places)


def ecdf_spec(curves: Sequence[Curve]) -> Spec:
    """Return a chart of several distributions, on a logarithmic axis of milliseconds."""
    times = [time for curve in curves for time, _ in curve.points]
    x = Scale(
        "log", min(times) / 1.05, max(times) * 1.05, WIDTH, tuple(round_ticks(min(times) / 1.05, max(times) * 1.05))
    )
    shares = {0.0: "0", 0.25: "25 %", 0.5: "50 %", 0.75: "75 %", 0.95: "95 %"}
    y = Scale("linear", 1.0, 0.0, HEIGHT, tuple(shares))
    layers = curve_layers(
        curves,
        x=x.encoding("latency of a request in milliseconds, logarithmic (← faster)", "{:g}"),
        y=y.encoding("share of requests answered", shares),
        interpolate="step-after",
    )
    return picture(layers + _names_beside(curves, x, y), height=HEIGHT)


def batch_spec(curves: Sequence[Curve], labels: Sequence[str]) -> Spec:
    """Return a chart of speedups by operating point; `points` of a curve are (index of the operating point, speedup)."""
    ratios = [ratio for curve in curves for _, ratio in curve.points]
    low, high = min(ratios) / 1.1, max(ratios) * 1.1
    y = Scale("log", high, low, HEIGHT, tuple(ratio_ticks(low, high)))
    room = 0.12 * max(len(labels) - 1, 1)
    longest = max(text_width(curve.name) for curve in curves)
    # The library measures names in a font that is narrower than many a reader's.
    width, padding = WIDTH - 24 - 1.2 * longest, {"left": 16, "top": 4, "right": 20 + 0.2 * longest, "bottom": 4}
    x = Scale("linear", -room, len(labels) - 1 + room, width, tuple(map(float, range(len(labels)))))
    layers = curve_layers(
        curves,
        x=x.encoding("operating point: batch size, axes, threads", dict(zip(x.ticks, labels, strict=True))),
        y=y.encoding("speedup of p50 (faster →)", "{:g}x"),
        interpolate="linear",
    )
    return picture(layers + names_at_end(curves, x, y), height=HEIGHT, width=width, padding=padding)


def speed_curve(name: str, kind: str, latencies: Sequence[Latency]) -> Curve:
    """Return the curve of a candidate's speedups at its operating points."""
    points = tuple((float(index), latency.speedup.value) for index, latency in enumerate(latencies))
    labels = point_labels(latencies)
    told = ", ".join(f"{label} {formats.speedup(ratio)}" for label, (_, ratio) in zip(labels, points, strict=True))
    return Curve(name, kind, points, f"{name}: {told}")


def curve_layers(curves: Sequence[Curve], *, x: Spec, y: Spec, interpolate: str) -> list[Spec]:
    """Return a line for each curve, the chosen one's last; `x` and `y` encode the axes."""
    layers: list[Spec] = []
    for curve in sorted(curves, key=lambda curve: curve.kind == "chosen"):
        style = STYLES[curve.kind]
        strong = curve.kind in ("chosen", "baseline")
        values = [{"x": at, "y": value, "told": curve.told} for at, value in curve.points]
        dash: Spec = {"strokeDash": [5, 3]} if curve.kind == "baseline" else {}
        look: Spec = {"type": "line", "interpolate": interpolate, "color": style.colour, **dash}
        look |= {"strokeWidth": 2.2 if strong else 1.2, "opacity": style.alpha if strong else 0.6 * style.alpha}
        encoding = {"description": {"field": "told"}, "x": {"field": "x", **x}, "y": {"field": "y", **y}}
        layers.append({"data": {"values": values}, "mark": look, "encoding": encoding})
    return layers


def names_at_end(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Spec]:
    """Return the names at the right ends of the curves, moved down if two would overlap."""
    ends = [(x.pixel(curve.points[-1][0]), y.pixel(curve.points[-1][1]), curve) for curve in curves]
    names, last = [], -math.inf
    for left, top, curve in sorted(ends, key=lambda end: end[1]):
        last = max(top, last + FONT_PIXELS + 3)
        names.append(_name(curve, left + 8, last, "left"))
    return names


def _names_beside(curves: Sequence[Curve], x: Scale, y: Scale) -> list[Spec]:
    """Return the names at the medians of the curves: left of the fastest curve if there is room, right of the others."""
    middles = [min(curve.points, key=lambda point: abs(point[1] - 0.5)) for curve in curves]
    fastest = min(time for time, _ in middles)
    names = []
    for curve, (time, share) in zip(curves, middles, strict=True):
        left = x.pixel(time) - 10
        if time == fastest and text_width(curve.name) <= left:
            names.append(_name(curve, left, y.pixel(share), "right"))
        else:
            names.append(_name(curve, x.pixel(time) + 10, y.pixel(share), "left"))
    return names


def _name(curve: Curve, left: float, top: float, align: str) -> Spec:
    colour, is_chosen = STYLES[curve.kind].colour, curve.kind == "chosen"
    return name_at(curve.name, left, top, align=align, colour=colour, bold=is_chosen)


def round_ticks(low: float, high: float) -> list[float]:
    """Return round times between two: 1, 1.5, 2, 3, 5 and 7 of each decade; the two ends if none lies between."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**decade for decade in decades for digit in (1, 1.5, 2, 3, 5, 7)]
    return [tick for tick in ticks if low <= tick <= high] or [low, high]
