"""Drawing what loses most: a horizontal bar for the noise of each part, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tasks.reporting import formats
from tasks.reporting.drawing import FONT_POINTS, set_frame
from tasks.reporting.palette import LIGHT
from tasks.reporting.parts import label
from validators.recovery import RankedPart

WIDTH_INCHES, BAR_INCHES, AXIS_INCHES = 10.4, 0.235, 0.62
LABEL_LENGTH = 38
# The room of the names, as a share of the width.
NAMES = 0.33
# Decades below the least noise: its bar would have no length otherwise.
LEAST_BAR = 0.04
# How far a bar goes that has no end, as a share of the axis: its label needs the rest.
ENDLESS_BAR = 0.9


def draw_noise(parts: Sequence[RankedPart]) -> Figure:
    """Bars of the parts in their order, at least one with a finite noise above zero, on a transparent ground.

    Kept parts are in the accent colour. A noise that is not finite has a bar almost to the right edge.
    """
    height = BAR_INCHES * len(parts) + AXIS_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height), dpi=72)
    figure.patch.set_alpha(0.0)
    axes = figure.add_axes((NAMES, AXIS_INCHES / height, 0.985 - NAMES, 1 - AXIS_INCHES / height))
    axes.patch.set_alpha(0.0)
    finite = [part.noise for part in parts if part.noise]
    low, high = decades(min(finite), max(finite))
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(len(parts) - 0.4, -0.6)
    for place, part in enumerate(parts):
        _draw_bar(axes, place, part, low, high)
    _set_axes(axes, parts, low, high)
    return figure


def decades(least: float, most: float) -> tuple[float, float]:
    """Ends of the axis: whole powers of ten around the noises, with room on the right for the longest bar's value.

    >>> decades(0.0002, 0.3)
    (0.0001, 3.0)
    """
    low = 10.0 ** math.floor(math.log10(least) - LEAST_BAR)
    span = math.log10(most / low)
    return low, float(f"{most * 10 ** max(1.0, 0.1 * span):.3g}")


def _draw_bar(axes: Axes, place: int, part: RankedPart, low: float, high: float) -> None:
    colour = LIGHT["accent"] if part.kept else LIGHT["muted"]
    end = low * (high / low) ** ENDLESS_BAR if part.noise is None else max(part.noise, low)
    axes.barh(place, end - low, left=low, height=0.62, color=colour, alpha=0.85 if part.kept else 0.45, linewidth=0)
    text = axes.annotate(
        formats.decibels(part.noise),
        (end, place),
        (5, 0),
        textcoords="offset points",
        ha="left",
        va="center",
        fontsize=FONT_POINTS - 1,
        color=LIGHT["accent"] if part.kept else LIGHT["muted"],
    )
    text.set_parse_math(False)


def _set_axes(axes: Axes, parts: Sequence[RankedPart], low: float, high: float) -> None:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = math.ceil(len(powers) / 10)
    shown = [power for power in powers if power % every == 0]
    axes.set_xticks([10.0**power for power in shown], [f"{10 * power:+d} dB" if power else "0 dB" for power in shown])
    names = [f"{rank}. {label(part, LABEL_LENGTH)}" for rank, part in enumerate(parts, start=1)]
    axes.set_yticks(range(len(parts)), names)
    axes.set_xlabel("noise in the output when this part alone is quantized, logarithmic (worse →)")
    set_frame(axes)
    axes.grid(False, axis="y")
    for part, text in zip(parts, axes.get_yticklabels(), strict=True):
        text.set_parse_math(False)
        text.set_color(LIGHT["accent"] if part.kept else LIGHT["ink"])
