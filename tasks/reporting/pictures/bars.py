"""Bar charts: the noise of each part, and samples by how far their outputs moved."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tasks.reporting import formats
from tasks.reporting.parts import label
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.scales import Scale
from tasks.reporting.pictures.vega import FONT_PIXELS, NAMES_AXIS, Spec, picture
from validators.records.verdicts import RankedPart

NAMES_WIDTH, BARS_WIDTH, BAR_HEIGHT = 330, 750, 21
LABEL_LENGTH = 38
# Least decades between the axis start and the least noise, so that its bar has a length.
LEAST_BAR = 0.04
# Length of the bar of a non-finite noise, as a share of the axis; its label needs the rest.
ENDLESS_BAR = 0.9
BINS, HISTOGRAM_HEIGHT = 40, 160


def noise_spec(parts: Sequence[RankedPart]) -> Spec:
    """Return a bar chart of the parts in the given order; at least one needs a finite noise above zero.

    Parts in another form than the candidate's own have the accent colour.
    The bar of a non-finite noise almost reaches the right edge.
    """
    finite = [part.noise for part in parts if part.noise]
    low, high = decades(min(finite), max(finite))
    values = [_bar(rank, part, low, high) for rank, part in enumerate(parts, start=1)]
    x = Scale("log", low, high, BARS_WIDTH, _ticks(low, high))
    words = {tick: f"{10 * math.log10(tick):+.0f} dB" if tick != 1 else "0 dB" for tick in x.ticks}
    title = "noise in the output when this part alone is quantized, logarithmic (worse →)"
    colour = {"field": "colour", "type": "nominal", "scale": None}
    encoding: Spec = {
        "x": {"field": "low", **x.encoding(title, words)},
        "y": {
            "field": "name",
            "sort": None,
            "scale": {"paddingInner": 0.35, "paddingOuter": 0.2},
            "axis": NAMES_AXIS | {"minExtent": NAMES_WIDTH},
        },
    }
    bars = {
        "mark": {"type": "bar"},
        "encoding": {
            "x2": {"field": "end"},
            "color": colour,
            "opacity": {"field": "opacity", "type": "quantitative", "scale": None},
            "description": {"field": "told"},
        },
    }
    figures = {
        "mark": {"type": "text", "align": "left", "dx": 5, "fontSize": FONT_PIXELS - 1},
        "encoding": {"x": {"field": "end", "type": "quantitative"}, "text": {"field": "noise"}, "color": colour},
    }
    return picture(
        [bars, figures], width=BARS_WIDTH, height=BAR_HEIGHT * len(parts), data={"values": values}, encoding=encoding
    )


def decades(least: float, most: float) -> tuple[float, float]:
    """Return the ends of the axis: a power of ten below the least noise, and room for the longest bar's value on the right.

    >>> decades(0.0002, 0.3)
    (0.0001, 3.0)
    """
    low = 10.0 ** math.floor(math.log10(least) - LEAST_BAR)
    span = math.log10(most / low)
    return low, float(f"{most * 10 ** max(1.0, 0.1 * span):.3g}")


def _bar(rank: int, part: RankedPart, low: float, high: float) -> Spec:
    end = low * (high / low) ** ENDLESS_BAR if part.noise is None else max(part.noise, low)
    noise = formats.decibels(part.noise)
    unit = "" if part.noise is None else " dB"
    return {
        "name": f"{rank}. {label(part, LABEL_LENGTH)}",
        "low": low,
        "end": end,
        "noise": noise,
        "colour": LIGHT["accent" if part.form else "muted"],
        "opacity": 0.85 if part.form else 0.5,
        "told": f"{part.name}: {noise}{unit}{f', in {part.form}' if part.form else ''}",
    }


def _ticks(low: float, high: float) -> tuple[float, ...]:
    powers = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = math.ceil(len(powers) / 10)
    return tuple(10.0**power for power in powers if power % every == 0)


def histogram_spec(values: Sequence[float]) -> Spec:
    """Return a histogram of finite ratios of signal to noise in dB, at least one, in `BINS` bins of equal width."""
    low, high = min(values), max(values)
    room = 0.02 * (high - low or 1.0)
    counts, edges = np.histogram(values, BINS, (low - room, high + room))
    bins = [
        {"from": start, "to": end, "count": count, "told": f"{start:.1f} to {end:.1f}: {count:,}"}
        for count, start, end in zip(counts.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    title = "signal to quantization noise of a sample, dB (better →)"
    x = {"field": "from", "type": "quantitative", "scale": {"zero": False, "nice": False}, "axis": {"title": title}}
    return picture(
        [{"mark": {"type": "bar", "color": LIGHT["accent"], "binSpacing": 1}}],
        height=HISTOGRAM_HEIGHT,
        data={"values": bins},
        encoding={
            "x": x,
            "x2": {"field": "to"},
            "y": {"field": "count", "type": "quantitative", "axis": {"title": "samples", "tickMinStep": 1}},
            "y2": {"datum": 0},
            "description": {"field": "told"},
        },
    )
