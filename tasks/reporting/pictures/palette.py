"""Colours of pages and pictures, light and dark. Text on its background has a contrast of at least 4.5:1."""

from __future__ import annotations

import re

LIGHT: dict[str, str] = {
    "ground": "#ffffff",
    "surface": "#f5f6f7",
    "ink": "#1c2229",
    "muted": "#59636e",
    "line": "#d7dce1",
    "accent": "#2a5db0",
    "passed": "#1d7447",
    "passed-ground": "#e9f3ed",
    "failed": "#a4433b",
    "failed-ground": "#f8eceb",
    "inconclusive": "#855a08",
    "inconclusive-ground": "#f8f1e0",
}
DARK: dict[str, str] = {
    "ground": "#14181c",
    "surface": "#1d2227",
    "ink": "#e3e7eb",
    "muted": "#9ba6b1",
    "line": "#343b43",
    "accent": "#8ab3f4",
    "passed": "#6cc494",
    "passed-ground": "#1a2c22",
    "failed": "#e59088",
    "failed-ground": "#332120",
    "inconclusive": "#d8ab54",
    "inconclusive-ground": "#2e2716",
}


def as_variables(svg: str) -> str:
    """Replace the colours of a light SVG by CSS variables of the page, which follow the reader's colour scheme.

    The light colour remains as fallback, so that the picture also works outside of the page.

    >>> as_variables('<path style="fill: #1c2229"/>')
    '<path style="fill: var(--ink, #1c2229)"/>'
    """
    names = {colour: name for name, colour in LIGHT.items()}
    return re.sub(
        r"#[0-9a-f]{6}\b",
        lambda match: f"var(--{names[match[0]]}, {match[0]})" if match[0] in names else match[0],
        svg,
    )
