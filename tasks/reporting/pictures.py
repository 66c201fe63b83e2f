"""The pictures: speedup against drop, with gates as lines and the chosen candidate in front; noise by part of the model."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from html import escape
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from tasks.reporting import formats
from tasks.reporting.bars import draw_noise
from tasks.reporting.drawing import Lines, Point, draw
from tasks.reporting.palette import LIGHT, as_variables
from tasks.reporting.parts import SHOWN_PARTS
from tasks.reporting.rows import metric_of
from validators.job_gates import Gates
from validators.measurements import Estimate
from validators.result import Result

PNG_DPI = 160
_SVG_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def pareto_svg(result: Result, gates: Gates) -> str | None:
    """The picture as an SVG element for a page, or None when no candidate has both a drop and a speedup.

    The ground is transparent and the colours are the page's variables, so that it reads in light and dark.
    """
    points = measured_points(result)
    if not points:
        return None
    return _svg(lambda: draw(points, _lines(result, gates), metric_of(result)), describe(result, len(points)))


def _lines(result: Result, gates: Gates) -> Lines:
    return Lines(gates.max_drop, gates.speedup_bound(result.target or ""))


def noise_svg(result: Result) -> str | None:
    """Bars of the noise that the worst parts bring, as an SVG element for a page; None without any that can be drawn."""
    parts = result.recovery.parts[:SHOWN_PARTS] if result.recovery else ()
    if not any(part.noise for part in parts):
        return None
    worst, kept = parts[0], sum(part.kept for part in parts)
    unit = "" if worst.noise is None else " dB"
    description = (
        f"Noise in the output by part, for {len(parts)} parts quantized alone, the noisiest first: {worst.name}, "
        f"{formats.decibels(worst.noise)}{unit}. {kept} of them are left in float. The table holds the same numbers."
    )
    return _svg(lambda: draw_noise(parts), description)


def _svg(drawn: Callable[[], Figure], description: str) -> str:
    # Text stays text: it can be searched, and takes the reader's font. A fixed salt makes equal pictures equal bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quantgate"}):
        # Any: matplotlib leaves the printing methods untyped.
        canvas: Any = FigureCanvasSVG(drawn())
        stream = io.StringIO()
        canvas.print_svg(stream, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _inline(stream.getvalue(), description)


def pareto_png(result: Result, gates: Gates) -> bytes:
    """The picture as a PNG file on white; where no candidate was measured, it shows the baseline and the gates."""
    figure = draw(measured_points(result), _lines(result, gates), metric_of(result))
    figure.patch.set_facecolor(LIGHT["ground"])
    figure.patch.set_alpha(1.0)
    figure.set_dpi(PNG_DPI)
    canvas: Any = FigureCanvasAgg(figure)
    stream = io.BytesIO()
    canvas.print_png(stream)
    return stream.getvalue()


def measured_points(result: Result) -> list[Point]:
    """The candidates with a finite drop and a positive speedup, in the order of the result; a refused one has neither."""
    scale = formats.drop_scale(metric_of(result))
    points = []
    for candidate in result.candidates:
        drop, ratio = candidate.metric_drop, candidate.speedup_p50
        if drop is None or ratio is None or not math.isfinite(drop.value + ratio.value) or ratio.value <= 0:
            continue
        kind = "chosen" if candidate.name == result.chosen else candidate.outcome
        low, high = (None if end is None else end * scale for end in (drop.low, drop.high))
        points.append(Point(candidate.name, kind, ratio, Estimate(drop.value * scale, low, high)))
    return points


def describe(result: Result, count: int) -> str:
    """The picture in words, for who does not see it: how many candidates it shows, and where the chosen one lies."""
    metric = metric_of(result)
    text = f"Speedup against drop of {metric} for {count} measured candidates and the baseline."
    for candidate in result.candidates:
        if candidate.name == result.chosen and candidate.speedup_p50 and candidate.metric_drop:
            ratio = formats.speedup(candidate.speedup_p50.value)
            text += f" Chosen: {candidate.name}, {ratio}, {formats.metric_drop(candidate.metric_drop.value, metric)}."
    return text + " The verdict table holds the same numbers."


def _inline(svg: str, description: str) -> str:
    """An SVG document as an element: no prolog, no addresses, colours as variables, a name for screen readers."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", _SVG_FONT, svg)
    # Width and height would fix the size; the view box keeps the shape.
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (width|height|version|xmlns:xlink|xmlns)="[^"]*"', "", opening)
    name = f' role="img" aria-label="{escape(description)}"'
    namespaces = ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    return as_variables(f"{opening}{namespaces}{name}>{rest}").strip()
