"""Pareto picture of drop against speedup: axes, gates, bars, markers and labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.reporting import formats
from tasks.reporting.pictures.labels import Box, place
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import Scale, bar_ends, drop_ticks, ratio_ticks
from tasks.reporting.pictures.vega import FONT_PIXELS, WIDTH, Spec, in_pixels, name_at, picture, text_width
from validators.job.metric_facts import metric_facts
from validators.records.measurements import Estimate

HEIGHT = 460
# Beyond this multiple of the linear range, one broken candidate would squeeze all others onto a line.
MAX_LINEAR_SPAN = 4.0
# Vega symbol paths in a square from -1 to 1.
_CROSS = "M-1,-.55L-.55,-1L0,-.45L.55,-1L1,-.55L.45,0L1,.55L.55,1L0,.45L-.55,1L-1,.55L-.45,0Z"
_STAR = "M0,-1L.27,-.36L.95,-.31L.43,.14L.59,.81L0,.45L-.59,.81L-.43,.14L-.95,-.31L-.27,-.36Z"


@dataclass(frozen=True)
class Style:
    """Look of a kind of point: failed is pale, passed strong; shapes differ for colour-blind readers. `area` in pixels."""

    shape: str
    colour: str
    alpha: float
    area: float


STYLES: dict[str, Style] = {
    "passed": Style("circle", LIGHT["passed"], 1.0, 80),
    "inconclusive": Style("diamond", LIGHT["inconclusive"], 0.85, 70),
    "failed": Style(_CROSS, LIGHT["failed"], 0.55, 70),
    "chosen": Style(_STAR, LIGHT["accent"], 1.0, 420),
    "baseline": Style("square", LIGHT["muted"], 1.0, 60),
}


@dataclass(frozen=True)
class Point:
    """A measured candidate; `kind` is a key of `STYLES`, `drop` in the units of the y axis (points for accuracy)."""

    name: str
    kind: str
    speedup: Estimate
    drop: Estimate

    @property
    def bars(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Both ends of the speedup's and the drop's bar."""
        return bar_ends(self.speedup), bar_ends(self.drop)


class Lines(NamedTuple):
    """Gates shown as lines: the largest drop, and the smallest speedup if the job has that gate."""

    max_drop: float
    min_speedup: float | None


BASELINE = Point("baseline", "baseline", Estimate(1.0), Estimate(0.0))


def pareto_spec(points: Sequence[Point], gates: Lines, metric: str) -> Spec:
    """Return the picture: the candidates (dominated ones pale), the region within the gates (tinted), the front (dotted)."""
    shown = [*points, BASELINE]
    x, y = _x_scale(shown, gates), _y_scale(shown, gates, metric)
    front = pareto_front(points)
    layers = [
        *_gates(gates, metric, x, y),
        _layer("line", [{"x": ratio, "y": drop} for ratio, drop in front], strokeDash=[1, 3], color=LIGHT["muted"]),
        *(_bars(point, x) for point in shown),
        # Draw the chosen candidate last, in front of the others.
        *(_marker(point, front, metric) for point in sorted(shown, key=lambda point: point.kind == "chosen")),
        *_labels(shown, gates, x, y),
    ]
    unit = " pp" if metric_facts(metric).is_share else ""
    beyond = f", logarithmic beyond {y.constant:+g}{unit}" if y.kind == "symlog" else ""
    axes = {
        "x": x.encoding("speedup of p50 latency against the baseline, logarithmic (faster →)", "{:g}x"),
        "y": y.encoding(f"drop of {metric}{beyond} (better →)", "{:+g}" + unit),
    }
    layers[0]["encoding"] |= {name: layers[0]["encoding"][name] | axis for name, axis in axes.items()}
    return picture(layers, height=HEIGHT)


def pareto_front(points: Iterable[Point]) -> list[tuple[float, float]]:
    """Return the (speedup, drop) pairs, baseline included, that no other pair dominates, fastest last.

    >>> exact = [Point("a", "passed", Estimate(1.5), Estimate(1.0)), Point("b", "failed", Estimate(0.9), Estimate(0.5))]
    >>> pareto_front(exact)
    [(1.0, 0.0), (1.5, 1.0)]
    """
    front: list[tuple[float, float]] = []
    pairs = [(point.speedup.value, point.drop.value) for point in (BASELINE, *points)]
    for ratio, drop in sorted(pairs, key=lambda pair: (-pair[0], pair[1])):
        if not front or drop < front[-1][1]:
            front.append((ratio, drop))
    return front[::-1]


def _x_scale(points: Sequence[Point], gates: Lines) -> Scale:
    ratios = [end for point in points for end in (*point.bars[0], point.speedup.value) if end > 0]
    ratios.append(gates.min_speedup or 1.0)
    least, most = min(ratios), max(ratios)
    # Leave room on the right for the label of the fastest, often the chosen one.
    low, high = least / 1.12, most * max(1.25, (most / least) ** 0.22)
    return Scale("log", low, high, WIDTH, ticks=tuple(ratio_ticks(low, high)))


def _y_scale(points: Sequence[Point], gates: Lines, metric: str) -> Scale:
    bound = gates.max_drop * formats.drop_scale(metric)
    drops = [bound, *(end for point in points for end in (*point.bars[1], point.drop.value))]
    least, most = min(drops), max(drops)
    linear = 1.5 * bound or most or 1.0
    is_linear = most <= MAX_LINEAR_SPAN * linear
    if is_linear:
        linear = most + 0.12 * (most - least or 1.0)
    low, high = least - 0.12 * linear, linear if is_linear else most * 1.45
    # The axis runs from the top down: up and right is better.
    ticks = tuple(drop_ticks(low, high, linear))
    return Scale("linear" if is_linear else "symlog", low, high, HEIGHT, ticks, linear)


def _layer(mark: str, values: list[Spec], *, pixels: bool = False, **look: Any) -> Spec:
    """Return marks at the values' x and y, to their x2 and y2 if given; `pixels` counts from the upper left corner."""
    encoding = in_pixels("x", "y") if pixels else {name: {"field": name, "type": "quantitative"} for name in ("x", "y")}
    encoding |= {name: {"field": name} for name in ("x2", "y2") if name in values[0]}
    return {"data": {"values": values}, "mark": {"type": mark, **look}, "encoding": encoding}


def _gates(gates: Lines, metric: str, x: Scale, y: Scale) -> list[Spec]:
    """Return the gates as labelled lines, and a tint on the region that they allow."""
    bound = gates.max_drop * formats.drop_scale(metric)
    start = x.low if gates.min_speedup is None else gates.min_speedup
    corner = {"x": start, "x2": x.high, "y": bound, "y2": y.low}
    tint = _layer("rect", [corner], color=LIGHT["passed"], opacity=0.08, aria=False)
    lines = [{"x": x.low, "x2": x.high, "y": bound, "y2": bound}]
    if gates.min_speedup is not None:
        lines.append({"x": gates.min_speedup, "x2": gates.min_speedup, "y": y.low, "y2": y.high})
    words = [{"x": left, "y": top, "text": text} for text, left, top in _gate_words(gates, metric, x, y)]
    told = _layer("text", words, pixels=True, align="left", baseline="top", color=LIGHT["muted"])
    told["encoding"]["text"] = {"field": "text"}
    return [tint, _layer("rule", lines, color=LIGHT["muted"], strokeDash=[6, 4]), told]


def _gate_words(gates: Lines, metric: str, x: Scale, y: Scale) -> list[tuple[str, float, float]]:
    """Return the labels of the gates' lines, with their left and upper edges in pixels."""
    drop = formats.metric_drop(gates.max_drop, metric)
    words = [(f"gate: drop at most {drop}", 5.0, y.pixel(gates.max_drop * formats.drop_scale(metric)) + 5)]
    if gates.min_speedup is not None:
        text = f"gate: at least {formats.speedup(gates.min_speedup)}"
        words.append((text, x.pixel(gates.min_speedup) + 5, HEIGHT - FONT_PIXELS - 5))
    return words


def _bars(point: Point, x: Scale) -> Spec:
    style, ((left, right), (low, high)) = STYLES[point.kind], point.bars
    ratio, drop = point.speedup.value, point.drop.value
    ends = [
        {"x": max(left, x.low), "x2": right, "y": drop, "y2": drop},
        {"x": ratio, "x2": ratio, "y": low, "y2": high},
    ]
    return _layer("rule", ends, color=style.colour, opacity=0.7 * style.alpha, strokeWidth=1.5)


def _marker(point: Point, front: list[tuple[float, float]], metric: str) -> Spec:
    style, spot = STYLES[point.kind], (point.speedup.value, point.drop.value)
    # Another candidate, or the baseline, is faster and loses less.
    is_beaten = point.kind == "passed" and spot not in front
    value = {"x": spot[0], "y": spot[1], "told": _tell(point, metric)}
    look: Spec = {"shape": style.shape, "size": style.area, "filled": True, "color": style.colour}
    marker = _layer("point", [value], opacity=0.5 if is_beaten else style.alpha, **look)
    marker["encoding"]["description"] = {"field": "told"}
    return marker


def _tell(point: Point, metric: str) -> str:
    """Return the tooltip of a point."""
    scale = formats.drop_scale(metric)
    ends = [formats.metric_drop(end / scale, metric) for end in point.bars[1]]
    drop = formats.metric_drop(point.drop.value / scale, metric)
    low, high = map(formats.speedup, point.bars[0])
    if point is BASELINE:
        return "baseline: the source at its own precision"
    speed = f"{formats.speedup(point.speedup.value)}, {low} to {high}"
    return f"{point.name} ({point.kind}): {speed}; drop {drop}, {ends[0]} to {ends[1]}"


def short_names(names: Sequence[str]) -> list[str]:
    """Return candidate names without their target if all of them share it; other names stay.

    >>> short_names(["fp32-fused@ort-cpu", "baseline"]), short_names(["bf16@openvino", "fp32-fused@ort-cpu"])
    (['fp32-fused', 'baseline'], ['bf16@openvino', 'fp32-fused@ort-cpu'])
    """
    is_shared = len({target for name in names if (target := name.partition("@")[2])}) <= 1
    return [name.partition("@")[0] for name in names] if is_shared else list(names)


def _labels(points: Sequence[Point], gates: Lines, x: Scale, y: Scale) -> list[Spec]:
    """Return every point's name beside it, with a thin line to the point if it is far away."""
    # Place the chosen candidate first, since it matters most.
    order = sorted(points, key=lambda point: (point.kind != "chosen", point.kind != "passed"))
    centres = [(x.pixel(point.speedup.value), y.pixel(point.drop.value)) for point in order]
    texts = short_names([point.name for point in order])
    sizes = [(text_width(text), FONT_PIXELS + 1) for text in texts]
    frame = Box(2, 2, WIDTH - 2, HEIGHT - 2)
    boxes = place(centres, sizes, _obstacles(order, gates, x, y), frame)
    words, lines = [], []
    for point, text, box, (left, top) in zip(order, texts, boxes, centres, strict=True):
        chosen = point.kind == "chosen"
        colour = LIGHT["accent"] if chosen else LIGHT["ink"] if point.kind == "passed" else LIGHT["muted"]
        # Anchor the text at the side of the point: a reader's font may be narrower than assumed.
        align = "left" if box.x0 >= left else "right" if box.x1 <= left else "center"
        at = {"left": box.x0, "right": box.x1, "center": (box.x0 + box.x1) / 2}[align]
        words.append(name_at(text, at, (box.y0 + box.y1) / 2, align=align, colour=colour, bold=chosen))
        near_x, near_y = min(max(left, box.x0), box.x1), min(max(top, box.y0), box.y1)
        if math.hypot(near_x - left, near_y - top) > 18:
            lines.append({"x": left, "x2": near_x, "y": top, "y2": near_y})
    leaders = [_layer("rule", lines, pixels=True, color=LIGHT["muted"], strokeWidth=0.6)] if lines else []
    return leaders + words


def _obstacles(points: Sequence[Point], gates: Lines, x: Scale, y: Scale) -> list[Box]:
    """Return the boxes that labels should avoid: markers, bars and the gates' labels; pixels from the upper left corner."""
    found = []
    for point in points:
        (left, right), (low, high) = point.bars
        centre_x, centre_y = x.pixel(point.speedup.value), y.pixel(point.drop.value)
        found += [
            Box(centre_x - 8, centre_y - 8, centre_x + 8, centre_y + 8),
            Box(x.pixel(max(left, x.low)), centre_y - 2, x.pixel(right), centre_y + 2),
            Box(centre_x - 2, y.pixel(low), centre_x + 2, y.pixel(high)),
        ]
    # Any metric will do: it hardly changes the width of the text.
    for text, left, top in _gate_words(gates, "accuracy", x, y):
        found.append(Box(left, top, left + text_width(text), top + FONT_PIXELS))
    return found
