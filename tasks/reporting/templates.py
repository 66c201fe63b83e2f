"""Rendering of self-contained HTML pages: no network, no other file, so that a page can be mailed, stored and printed."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from tasks.reporting import formats
from tasks.reporting.pictures.palette import DARK, LIGHT

FOLDER = Path(__file__).parent


def render(template: str, **shown: Any) -> str:
    """Render a template of this folder, with the style and the script that all pages share.

    Every value is escaped. The page declares the digest of its script, so that the browser runs no other.
    """
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    return (
        _templates()
        .get_template(template)
        .render(
            **shown,
            formats=formats,
            light=LIGHT,
            dark=DARK,
            style=(FOLDER / "page.css").read_text(encoding="utf-8"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        )
    )


@cache
def _templates() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
