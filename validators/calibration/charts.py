"""Vega-Lite charts for the page, with strings and numbers only.

Data Docs writes a chart into JavaScript as a Python literal, and JavaScript does not define True, False and None.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

COLORS = {"calibration": "#D55E00", "reference": "#56B4E9"}


def draw_shares(
    edges: list[float], counts: list[int], reference_counts: list[int], title: str = "value"
) -> dict[str, Any]:
    """Draw the share of calibration samples and of reference samples in each bin.

    Narrow bars of the calibration samples lie in front of wide bars of the reference, so that neither hides the other. Sky blue
    and vermilion come from the palette of Okabe and Ito, "Color Universal Design" (2008). They differ in lightness too, and
    from the page's green and red.
    """
    names = _name_bins(edges)
    bars = [
        {"bin": name, "samples": who, "share": count / sum(column)}
        for who, column in (("calibration", counts), ("reference", reference_counts))
        for name, count in zip(names, column, strict=True)
    ]
    layers = [
        {"transform": [{"filter": f"datum.samples == '{who}'"}], "mark": {"type": "bar", "width": {"band": band}}}
        for who, band in (("reference", 0.9), ("calibration", 0.45))
    ]
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": bars},
        "width": 440,
        "height": 150,
        "encoding": {
            "x": {"field": "bin", "type": "ordinal", "title": title, "sort": names, "axis": {"labelAngle": -35}},
            "y": {
                "field": "share",
                "type": "quantitative",
                "title": "share of samples",
                "axis": {"format": ".0%", "tickCount": 4},
            },
            "color": {
                "field": "samples",
                "type": "nominal",
                "title": "",
                "scale": {"domain": list(COLORS), "range": list(COLORS.values())},
            },
        },
        "layer": layers,
        "config": {
            "axis": {"labelFontSize": 11, "titleFontSize": 12, "titleFontWeight": "normal"},
            "legend": {"orient": "top", "labelFontSize": 12, "symbolType": "square"},
        },
    }


def _name_bins(edges: list[float]) -> list[str]:
    """Name the right-closed bins between ascending inner edges with the fewest digits, at least three, that keep them distinct.

    >>> _name_bins([0.123456, 0.2, 1.0])
    ['≤ 0.123', '0.123 to 0.2', '0.2 to 1', '> 1']
    >>> _name_bins([0.9999999999999999, 1.0])  # as made by `find_edges` for a value that many samples have
    ['< 1', '= 1', '> 1']
    """
    below_value = [float(np.nextafter(after, -np.inf)) == edge for edge, after in pairwise(edges)] + [False]
    # Label the edge just below such a value with the value itself.
    shown = [edges[place + below] for place, below in enumerate(below_value)]
    for digits in range(3, 18):
        ends = [_write(edge, digits) for edge in shown]
        if len(set(ends)) == len(set(shown)):
            break
    middle = [
        f"= {_write(value, digits)}" if single else f"{start} to {end}"
        for start, end, value, single in zip(ends, ends[1:], edges[1:], below_value, strict=False)
    ]
    return [f"{'<' if below_value[0] else '≤'} {ends[0]}", *middle, f"> {ends[-1]}"]


def _write(number: float, digits: int) -> str:
    if number.is_integer() and abs(number) < 1e6:
        return f"{number:.0f}"
    if 1e-4 <= abs(number) < 1e6:
        return str(np.format_float_positional(number, precision=digits, fractional=False, trim="-"))
    return f"{number:.{digits}g}"


def draw_bars(names: list[str], shares: list[float], title: str) -> dict[str, Any]:
    """Draw one bar per name, in the given order; `shares` are from 0 to 1."""
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": [{"name": name, "percent": 100 * share} for name, share in zip(names, shares, strict=True)]},
        "mark": {"type": "bar", "color": COLORS["reference"]},
        "width": 240,
        "height": {"step": 18},
        "encoding": {
            "y": {"field": "name", "type": "nominal", "title": "", "sort": names, "axis": {"labelLimit": 260}},
            "x": {"field": "percent", "type": "quantitative", "title": title, "axis": {"format": "~g", "tickCount": 4}},
        },
    }
