"""Coverage map: a cell for every node that multiplies, as wide as its work, and below it the time by kernel."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.reporting import formats
from tasks.reporting.pictures.palette import LIGHT
from tasks.reporting.pictures.vega import FONT_PIXELS, WIDTH, Spec, in_pixels, picture, text_width
from validators.records.measurements import Coverage, Precision

STRIP_HEIGHT, HEIGHT = 34, 118
COLOURS: dict[Precision, str] = {
    "low": LIGHT["accent"],
    "half": LIGHT["inconclusive"],
    "float": LIGHT["failed"],
    "unknown": LIGHT["muted"],
}
WORDS: dict[Precision, str] = {
    "low": "low precision",
    "half": "16 bits",
    "float": "in float",
    "unknown": "not told by the runtime",
}
_MARK = "M-1,-1L1,-1L0,0.8Z"


def coverage_spec(coverage: Coverage) -> Spec | None:
    """Return the map; None if no node multiplies. Nodes in float have a mark above them, however little they compute.

    The upper strip shows the nodes in execution order. The lower strip shows the kernels by time, longest first, if the
    runtime reports times.
    """
    nodes = [(node.name, node.kernel, float(node.macs)) for node in coverage.products]
    if not nodes:
        return None
    kernels = sorted(coverage.us_by_kernel.items(), key=lambda item: -item[1])
    times = [(kernel, kernel, microseconds) for kernel, microseconds in kernels]
    cells = _cells(coverage, nodes, 22, "of multiply-accumulates")
    titles = [
        {"top": 11, "text": f"multiply-accumulates, node by node: {formats.percent(coverage.share)} % in low precision"}
    ]
    if coverage.time_share is not None:
        cells += _cells(coverage, times, 22 + STRIP_HEIGHT + 28, "of kernel time")
        told = f"kernel time, longest first: {formats.percent(coverage.time_share)} % in low precision"
        titles.append({"top": 22 + STRIP_HEIGHT + 16, "text": told})
    height = HEIGHT if len(titles) > 1 else 22 + STRIP_HEIGHT
    layers = [_titles(titles), _strip(cells), _words(cells)]
    marks = [cell for cell in cells if cell["kind"] == "float" and cell["top"] == 22]
    return picture(layers + ([_marks(marks)] if marks else []), height=height)


def _cells(coverage: Coverage, parts: Iterable[tuple[str, str, float]], top: float, unit: str) -> list[Spec]:
    """Return cells from left to right; `parts` are name, kernel and amount."""
    parts = list(parts)
    total = sum(amount for _, _, amount in parts) or 1.0
    cells, left = [], 0.0
    for name, kernel, amount in parts:
        kind, right = coverage.precision(kernel), left + WIDTH * amount / total
        cells.append(
            {
                "left": left,
                "right": right,
                "top": top,
                "bottom": top + STRIP_HEIGHT,
                "middle": (left + right) / 2,
                "kind": kind,
                "colour": COLOURS[kind],
                "text": _fitting(name, right - left - 8),
                "told": f"{name}: {kernel if kernel != name else WORDS[kind]}, {100 * amount / total:.2g} % {unit}",
            }
        )
        left = right
    return cells


def _fitting(name: str, width: float) -> str:
    """Return the longest end of a path that fits into `width` pixels; empty if not even its last segment fits.

    >>> _fitting("/layer.0/query/MatMul", 110), _fitting("/layer.0/query/MatMul", 10)
    ('query/MatMul', '')
    """
    parts = name.strip("/").split("/")
    shown = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((text for text in shown if text_width(text) <= width), "")


def _strip(cells: list[Spec]) -> Spec:
    return {
        "data": {"values": cells},
        "mark": {"type": "rect", "stroke": LIGHT["ground"], "strokeWidth": 1, "opacity": 0.85},
        "encoding": in_pixels("left", "top")
        | {
            "x2": {"field": "right"},
            "y2": {"field": "bottom"},
            "color": {"field": "colour", "type": "nominal", "scale": None},
            "description": {"field": "told"},
        },
    }


def _words(cells: list[Spec]) -> Spec:
    """Return the names of cells with enough room."""
    named = [cell | {"line": cell["top"] + STRIP_HEIGHT / 2} for cell in cells if cell["text"]]
    look = {"type": "text", "baseline": "middle", "color": LIGHT["ground"], "fontSize": FONT_PIXELS - 1}
    return {
        "data": {"values": named},
        "mark": look,
        "encoding": in_pixels("middle", "line") | {"text": {"field": "text"}},
    }


def _marks(cells: list[Spec]) -> Spec:
    values = [cell | {"line": cell["top"] - 5} for cell in cells]
    look = {"type": "point", "shape": _MARK, "size": 40, "filled": True, "color": COLOURS["float"], "opacity": 1}
    told = {"description": {"field": "told"}}
    return {"data": {"values": values}, "mark": look, "encoding": in_pixels("middle", "line") | told}


def _titles(titles: list[Spec]) -> Spec:
    look = {"type": "text", "align": "left", "baseline": "middle", "color": LIGHT["muted"]}
    values = [title | {"left": 0} for title in titles]
    return {
        "data": {"values": values},
        "mark": look,
        "encoding": in_pixels("left", "top") | {"text": {"field": "text"}},
    }
