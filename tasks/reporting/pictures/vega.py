"""Drawing by Vega-Lite: a specification becomes SVG or PNG when the page is rendered.

Vega rather than Plotly, because it draws without a browser. The page contains the finished picture, with searchable text and
colours that follow the reader's scheme. It works in a mail, on paper and without scripts, and takes tens of kilobytes, where a
drawing library would take megabytes.
"""

from __future__ import annotations

import re
from html import escape
from typing import Any

from tasks.reporting.pictures.palette import LIGHT, as_variables

Spec = dict[str, Any]

# About the width of a page on a wide screen, so that letters have the size of its text.
WIDTH = 1080
FONT_PIXELS = 13.0
PNG_SCALE = 2.0
# The space on the right allows for a wider font of the reader in names at the edge.
_PADDING = {"left": 4, "top": 4, "right": 20, "bottom": 4}
# Pinned, so that a release of the library with newer versions does not change pictures.
_VEGA_LITE = "6.4"
_SVG_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_CONFIG: Spec = {
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "domainColor": LIGHT["line"],
        "gridColor": LIGHT["line"],
        "gridOpacity": 0.6,
        "labelColor": LIGHT["muted"],
        "labelFontSize": FONT_PIXELS,
        "labelFlush": False,
        "labelOverlap": "greedy",
        "labelLimit": 0,
        "labelPadding": 6,
        "ticks": False,
        "titleColor": LIGHT["muted"],
        "titleFontSize": FONT_PIXELS,
        "titleFontWeight": "normal",
        "titlePadding": 10,
    },
    "rule": {"aria": False},
    "text": {"aria": False, "fontSize": FONT_PIXELS},
}
# Axis of names of rows; each picture adds its width, `minExtent`.
NAMES_AXIS: Spec = {"title": None, "grid": False, "domain": False, "labelColor": LIGHT["ink"]}


def picture(layers: list[Spec], *, height: float, width: float = WIDTH, **more: Any) -> Spec:
    """Return a specification of stacked layers; `width` and `height` in pixels exclude the axes."""
    return {"width": width, "height": height, "layer": layers, **more}


def in_pixels(x: str, y: str) -> Spec:
    """Return the encoding of fields that hold pixels from the upper left corner."""
    shared: Spec = {"type": "quantitative", "scale": None, "axis": None}
    return {"x": shared | {"field": x}, "y": shared | {"field": y}}


def name_at(text: str, x: float, y: float, *, align: str, colour: str, bold: bool) -> Spec:
    """Return a text beside a mark, with its `align` side at x and its middle at y in pixels."""
    look = {"type": "text", "align": align, "baseline": "middle", "text": text}
    look |= {"color": colour, "fontWeight": "bold" if bold else "normal"}
    return {"data": {"values": [{"x": x, "y": y}]}, "mark": look, "encoding": in_pixels("x", "y")}


def to_svg(spec: Spec, description: str) -> str:
    """Render an SVG element for a page, on a transparent background, without external URLs, with the page's colour variables.

    `description` is the accessible name. Equal specifications give equal text.
    """
    import vl_convert  # 84 MB; a page can do without pictures

    svg: str = vl_convert.vegalite_to_svg(_whole(spec), vl_version=_VEGA_LITE, allowed_base_urls=[])
    opening, rest = svg[svg.index("<svg") :].split(">", 1)
    # Width and height would fix the size; the view box keeps the aspect ratio.
    opening = re.sub(r' (width|height|version|class|xmlns:xlink|xmlns)="[^"]*"', "", opening)
    name = f' xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(description)}"'
    rest = re.sub(r"<rect [^>]*fill=\"transparent\"></rect>", "", rest).replace('font-family="sans-serif"', "")
    # Empty background and foreground paths are a third of Vega's output.
    rest = re.sub(r'<path class="(background|foreground)" aria-hidden="true" d="[^"]*"[^>]*></path>', "", rest)
    rest = re.sub(r' (class="[^"]*"|pointer-events="none"|aria-hidden="true"|stroke-miterlimit="10")', "", rest)
    return as_variables(f'{opening}{name} font-family="{_SVG_FONT}">{rest}')


def to_png(spec: Spec) -> bytes:
    """Render a PNG file on a white background."""
    import vl_convert

    whole = _whole(spec) | {"background": LIGHT["ground"], "padding": 12}
    drawn: bytes = vl_convert.vegalite_to_png(whole, vl_version=_VEGA_LITE, scale=PNG_SCALE, allowed_base_urls=[])
    return drawn


def text_width(text: str, pixels: float = FONT_PIXELS) -> float:
    """Estimate the width of a text in pixels: readers have their own fonts, so no label may depend on a pixel."""
    return 0.58 * pixels * len(text)


def _whole(spec: Spec) -> Spec:
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "padding": _PADDING,
        "config": _CONFIG,
        **spec,
    }
