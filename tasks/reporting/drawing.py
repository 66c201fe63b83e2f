"""Drawing the accuracy-latency picture: axes, gates, bars, markers and labels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from tasks.reporting import formats
from tasks.reporting.labels import Box, place
from tasks.reporting.palette import LIGHT
from validators.measurements import Estimate

SIZE_INCHES = (10.4, 5.2)
FONT_POINTS = 9.5
# Beyond this multiple of what the gate allows, one broken candidate would press all others onto a line.
MAX_LINEAR_SPAN = 4.0


@dataclass(frozen=True)
class Style:
    """How a kind of point is drawn: failed is pale, passed strong; shapes differ for who sees no colours."""

    marker: str
    colour: str
    alpha: float
    points: float


STYLES: dict[str, Style] = {
    "passed": Style("o", LIGHT["passed"], 1.0, 7.5),
    "inconclusive": Style("D", LIGHT["inconclusive"], 0.8, 5.5),
    "failed": Style("X", LIGHT["failed"], 0.5, 7.0),
    "chosen": Style("*", LIGHT["accent"], 1.0, 16.0),
    "baseline": Style("s", LIGHT["muted"], 1.0, 6.0),
}


@dataclass(frozen=True)
class Point:
    """A measured candidate; `kind` is a key of `STYLES`, `drop` in the units of the y axis (points for accuracy)."""

    name: str
    kind: str
    speedup: Estimate
    drop: Estimate

    @property
    def label(self) -> str:
        """The name without its target, which all points share."""
        return self.name.rpartition("@")[0] or self.name

    @property
    def bars(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Both ends of the speedup's and the drop's bar; the value itself where there is no end, or no finite one."""
        return _ends(self.speedup), _ends(self.drop)


class Lines(NamedTuple):
    """The gates that the picture shows as lines: the largest drop, and the smallest speedup if there is that gate."""

    max_drop: float
    min_speedup: float | None


BASELINE = Point("baseline", "baseline", Estimate(1.0), Estimate(0.0))


def draw(points: list[Point], gates: Lines, metric: str) -> Figure:
    """The picture on a transparent ground, in light colours."""
    figure = Figure(figsize=SIZE_INCHES, dpi=72)
    canvas: Any = FigureCanvasAgg(figure)
    figure.patch.set_alpha(0.0)
    axes = figure.add_axes((0.085, 0.115, 0.905, 0.865))
    axes.patch.set_alpha(0.0)
    bound = gates.max_drop * formats.drop_scale(metric)
    shown = [*points, BASELINE]
    ratios = [end for point in shown for end in (*point.bars[0], point.speedup.value) if end > 0]
    drops = [end for point in shown for end in (*point.bars[1], point.drop.value)]
    _set_x_axis(axes, [gates.min_speedup or 1.0, *ratios])
    _set_y_axis(axes, [bound, *drops], bound, metric)
    set_frame(axes)
    in_the_way = _draw_gates(axes, gates, metric)
    front = pareto_front(points)
    axes.plot(*zip(*front, strict=True), color=LIGHT["muted"], linewidth=0.9, linestyle=(0, (1, 2.5)), zorder=1.5)
    for point in shown:
        _draw_point(axes, point)
    # The chosen one takes its place first, since it matters most.
    order = sorted(shown, key=lambda point: (point.kind != "chosen", point.kind != "passed"))
    _label(axes, canvas, order, in_the_way)
    return figure


def pareto_front(points: Iterable[Point]) -> list[tuple[float, float]]:
    """The (speedup, drop) pairs, baseline included, that no other beats in both, fastest last.

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


def ratio_ticks(low: float, high: float) -> list[float]:
    """Round ratios between two positive ones: powers of two when they are far apart, at most eleven tenths when near.

    >>> ratio_ticks(0.23, 2.2), ratio_ticks(0.87, 1.33)
    ([0.25, 0.5, 1.0, 2.0], [0.9, 1.0, 1.1, 1.2, 1.3])
    """
    if high / low > 4:
        return [2.0**power for power in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    tenths = range(math.ceil(low * 10), math.floor(high * 10) + 1)
    every = math.ceil(len(tenths) / 11) or 1
    return [tenth / 10 for tenth in tenths if tenth % every == 0]


def drop_ticks(low: float, high: float, linear: float) -> list[float]:
    """Round drops: evenly up to `linear`, and beyond it by the factors 1, 2, 5, 10; all evenly if `high` is not beyond.

    >>> drop_ticks(-0.4, 20.0, 3.0), drop_ticks(-0.2, 2.1, 3.0)
    ([0.0, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0], [0.0, 0.5, 1.0, 1.5, 2.0])
    """
    end = min(linear, high)
    rough = (end - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    even = [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(end / step) + 1)]
    decades = range(math.floor(math.log10(linear)), math.ceil(math.log10(max(high, linear))) + 1)
    factors = (digit * 10.0**decade for decade in decades for digit in (1, 2, 5))
    return even + [drop for drop in factors if linear * 1.3 < drop <= high]


def _set_x_axis(axes: Axes, ratios: list[float]) -> None:
    least, most = min(ratios), max(ratios)
    # Room on the right for the label of the fastest, which is often the chosen one.
    low, high = least / 1.12, most * max(1.25, (most / least) ** 0.22)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    ticks = ratio_ticks(low, high)
    axes.set_xticks(ticks, [f"{ratio:g}x" for ratio in ticks])
    axes.set_xlabel("speedup of p50 latency against the baseline, logarithmic (faster →)")


def _set_y_axis(axes: Axes, drops: list[float], bound: float, metric: str) -> None:
    least, most = min(drops), max(drops)
    linear = 1.5 * bound or most or 1.0
    is_linear = most <= MAX_LINEAR_SPAN * linear
    if is_linear:
        linear = most + 0.12 * (most - least or 1.0)
    else:
        axes.set_yscale("symlog", linthresh=linear, linscale=2.2)
    low, high = least - 0.12 * linear, linear if is_linear else most * 1.45
    # Turned over: up and right is better.
    axes.set_ylim(high, low)
    ticks = drop_ticks(low, high, linear)
    unit = " pt" if metric in formats.POINT_METRICS else ""
    axes.set_yticks(ticks, [f"{drop:+g}{unit}" if drop else "0" for drop in ticks])
    beyond = "" if is_linear else f", logarithmic beyond {linear:+g}{unit}"
    axes.set_ylabel(f"drop of {metric}{beyond} (better →)")


def set_frame(axes: Axes) -> None:
    """Axes, ticks and grid in the quiet style that pictures share."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([], minor=True)
        axis.set_tick_params(colors=LIGHT["muted"], labelsize=FONT_POINTS, length=0, pad=5)
        axis.label.set(color=LIGHT["muted"], fontsize=FONT_POINTS)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(LIGHT["line"])
    axes.grid(True, color=LIGHT["line"], linewidth=0.6, alpha=0.7, zorder=0)
    axes.set_axisbelow(True)


def _draw_gates(axes: Axes, gates: Lines, metric: str) -> list[Artist]:
    """The gates as lines with their words, and a tint on the corner that they leave; what labels should keep clear of."""
    bound = gates.max_drop * formats.drop_scale(metric)
    (left, right), (_, top) = axes.get_xlim(), axes.get_ylim()
    start = left if gates.min_speedup is None else gates.min_speedup
    axes.fill_between([start, right], bound, top, color=LIGHT["passed"], alpha=0.07, linewidth=0, zorder=0.4)
    line: dict[str, Any] = {"color": LIGHT["muted"], "linewidth": 1.0, "linestyle": (0, (5, 3)), "zorder": 1}
    words: dict[str, Any] = {"textcoords": "offset points", "va": "top", "fontsize": 9, "color": LIGHT["muted"]}
    drop = formats.metric_drop(gates.max_drop, metric)
    artists: list[Artist] = [
        axes.axhline(bound, **line),
        axes.annotate(f"gate: drop at most {drop}", (left, bound), (4, -4), **words),
    ]
    if gates.min_speedup is not None:
        text = f"gate: at least {formats.speedup(gates.min_speedup)}"
        corner = (gates.min_speedup, axes.get_ylim()[0])
        artists += [axes.axvline(gates.min_speedup, **line), axes.annotate(text, corner, (4, 14), **words)]
    return artists


def _draw_point(axes: Axes, point: Point) -> None:
    style, ((left, right), (low, high)) = STYLES[point.kind], point.bars
    ratio, drop = point.speedup.value, point.drop.value
    bar: dict[str, Any] = {"color": style.colour, "linewidth": 1.3, "alpha": style.alpha * 0.7, "zorder": 2}
    axes.plot([max(left, axes.get_xlim()[0]), right], [drop, drop], **bar)
    axes.plot([ratio, ratio], [low, high], **bar)
    mark: dict[str, Any] = {"marker": style.marker, "markersize": style.points, "markeredgewidth": 0}
    front = 4 if point.kind == "chosen" else 3
    axes.plot([ratio], [drop], linestyle="none", color=style.colour, alpha=style.alpha, zorder=front, **mark)


def _label(axes: Axes, canvas: Any, points: list[Point], in_the_way: list[Artist]) -> None:
    """Every point's name beside it, with a thin line to it where it lies far off."""
    renderer = canvas.get_renderer()
    texts = [_annotation(axes, point) for point in points]
    to_pixels = axes.transData.transform
    centres = [(float(x), float(y)) for x, y in (to_pixels((p.speedup.value, p.drop.value)) for p in points)]
    obstacles = [_box(artist.get_window_extent(renderer), 2) for artist in in_the_way]
    for point, (x, y) in zip(points, centres, strict=True):
        (left, right), (low, high) = point.bars
        (x0, y0), (x1, y1) = to_pixels((max(left, axes.get_xlim()[0]), high)), to_pixels((right, low))
        obstacles += [Box(x - 7, y - 7, x + 7, y + 7), Box(x0, y - 2, x1, y + 2), Box(x - 2, y0, x + 2, y1)]
    extents = [text.get_window_extent(renderer) for text in texts]
    frame = _box(axes.get_window_extent(renderer), -2)
    boxes = place(centres, [(extent.width, extent.height) for extent in extents], obstacles, frame)
    for text, box, (x, y) in zip(texts, boxes, centres, strict=True):
        text.set_position((box.x0 - x, box.y0 - y))
        far = math.hypot(max(box.x0 - x, x - box.x1, 0.0), max(box.y0 - y, y - box.y1, 0.0))
        if text.arrow_patch is not None:
            text.arrow_patch.set_visible(far > 14)


def _annotation(axes: Axes, point: Point) -> Annotation:
    chosen = point.kind == "chosen"
    look: dict[str, Any] = {"fontsize": FONT_POINTS, "fontweight": "bold" if chosen else "normal", "zorder": 5}
    look["color"] = LIGHT["accent"] if chosen else LIGHT["ink"] if point.kind == "passed" else LIGHT["muted"]
    look["arrowprops"] = {"arrowstyle": "-", "color": LIGHT["muted"], "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
    spot = (point.speedup.value, point.drop.value)
    text = axes.annotate(point.label, spot, (0, 0), textcoords="offset points", ha="left", va="bottom", **look)
    # A dollar sign in a name is no formula.
    text.set_parse_math(False)
    return text


def _box(extent: Any, margin: float) -> Box:
    return Box(extent.x0 - margin, extent.y0 - margin, extent.x1 + margin, extent.y1 + margin)


def _ends(estimate: Estimate) -> tuple[float, float]:
    low, high = (
        estimate.value if end is None or not math.isfinite(end) else end for end in (estimate.low, estimate.high)
    )
    return low, high
