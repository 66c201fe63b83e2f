"""Charts of a decoder's answers: tokens a second against the metric, the first token by prompt, memory by cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tasks.reporting.pictures.labels import Box, place
from tasks.reporting.pictures.latency_pictures import Curve, curve_layers, names_at_end, round_ticks
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.pareto import STYLES
from tasks.reporting.pictures.scales import Scale, drop_ticks
from tasks.reporting.pictures.vega import FONT_PIXELS, WIDTH, Spec, name_at, picture, text_width

HEIGHT = 300
# Beyond this ratio of the largest to the smallest value, an axis is logarithmic.
MOST_LINEAR = 4.0


@dataclass(frozen=True)
class PacePoint:
    """A candidate or the baseline: `kind` is a key of `STYLES`, `told` its tooltip."""

    name: str
    kind: str
    tokens_per_s: float
    perplexity: float
    told: str


def pace_spec(points: Sequence[PacePoint]) -> Spec:
    """Return a chart of tokens a second (x) against perplexity (y); up and to the right is better."""
    x = _scale([point.tokens_per_s for point in points], WIDTH)
    y = _scale([point.perplexity for point in points], HEIGHT)
    encoding: Spec = {
        "description": {"field": "told"},
        "x": {"field": "x", **x.encoding("tokens a second after the first (faster →)", "{:g}")},
        "y": {"field": "y", **y.encoding("perplexity (better →)", "{:g}")},
    }
    layers: list[Spec] = []
    for point in sorted(points, key=lambda point: point.kind == "chosen"):
        style = STYLES[point.kind]
        look: Spec = {"type": "point", "shape": style.shape, "size": style.area, "filled": True}
        look |= {"color": style.colour, "opacity": style.alpha}
        values = [{"x": point.tokens_per_s, "y": point.perplexity, "told": point.told}]
        layers.append({"data": {"values": values}, "mark": look, "encoding": encoding})
    return picture(layers + _names(points, x, y), height=HEIGHT)


def first_token_spec(curves: Sequence[Curve]) -> Spec:
    """Return a chart of milliseconds to the first token by length of the prompt; points are (tokens, milliseconds)."""
    lengths = sorted({length for curve in curves for length, _ in curve.points})
    return _lines(
        curves,
        ("tokens of the prompt", tuple(lengths)),
        "milliseconds to the first token (← faster)",
        start=lengths[0] - 0.05 * (lengths[-1] - lengths[0]),
    )


def memory_spec(curves: Sequence[Curve], lengths: Sequence[int]) -> Spec:
    """Return a chart of memory by length of the cache; points are (tokens, MB)."""
    return _lines(curves, ("tokens in the cache", (0.0, *map(float, lengths))), "MB of weights and cache (← smaller)")


def _lines(curves: Sequence[Curve], across: tuple[str, tuple[float, ...]], upwards: str, start: float = 0.0) -> Spec:
    title, ticks = across
    longest = max(text_width(curve.name) for curve in curves)
    width = WIDTH - 24 - longest
    most = 1.08 * max(value for curve in curves for _, value in curve.points)
    x = Scale("linear", start, ticks[-1], width, ticks)
    y = Scale("linear", most, 0.0, HEIGHT, tuple(drop_ticks(0.0, most, most)))
    layers = curve_layers(
        curves,
        x=x.encoding(title, "{:g}"),
        y=y.encoding(upwards, "{:g}"),
        interpolate="linear",
    )
    # The chosen name is bold, and wider in a reader's font.
    room = {"left": 4, "top": 4, "bottom": 4, "right": 20 + 0.25 * longest}
    return picture(layers + names_at_end(curves, x, y), height=HEIGHT, width=width, padding=room)


def _scale(values: Sequence[float], length: float) -> Scale:
    """Return a scale with room around positive values, the smallest at the left or top; logarithmic if they are far apart."""
    least, most = min(values), max(values)
    if most > MOST_LINEAR * least > 0:
        low, high = least / 1.2, most * 1.2
        return Scale("log", low, high, length, tuple(round_ticks(low, high)))
    room = 0.12 * (most - least) or 0.1 * most
    low, high = least - room, most + room
    return Scale("linear", low, high, length, tuple(drop_ticks(low, high, high)))


def _names(points: Sequence[PacePoint], x: Scale, y: Scale) -> list[Spec]:
    """Return every point's name beside it, the chosen one's placed first."""
    order = sorted(points, key=lambda point: point.kind != "chosen")
    centres = [(x.pixel(point.tokens_per_s), y.pixel(point.perplexity)) for point in order]
    marks = [Box(left - 8, top - 8, left + 8, top + 8) for left, top in centres]
    # The star of the chosen one is wider.
    marks += [Box(left - 14, top - 14, left + 14, top + 14) for left, top in centres[: order[0].kind == "chosen"]]
    sizes = [(1.15 * text_width(point.name), FONT_PIXELS + 1) for point in order]
    names = []
    for point, box in zip(order, place(centres, sizes, marks, Box(2, 2, WIDTH - 2, HEIGHT - 2)), strict=True):
        chosen, middle = point.kind == "chosen", ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        colour = LIGHT["accent" if chosen else "ink" if point.kind == "passed" else "muted"]
        names.append(name_at(point.name, *middle, align="center", colour=colour, bold=chosen))
    return names
