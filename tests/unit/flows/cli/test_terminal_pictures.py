"""The pictures of the terminal in the documentation are what the command line prints of the recorded demo today."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from docs_pages import ROOT

from flows.cli.results import result_parts
from flows.docs.terminal import THEMES, WIDTHS, draw
from validators.records.answer import Table
from validators.records.result import Result

RESULT = Result.model_validate_json((ROOT / "benchmarks" / "results" / "demo_result.json").read_text(encoding="utf-8"))


def words_of(svg: str) -> str:
    return " ".join(html.unescape(" ".join(re.findall(r"<text [^>]*>([^<]*)</text>", svg))).split())


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_pictures_show_every_cell_of_today(width: int, theme: str) -> None:
    """If it fails: python -m flows.docs.terminal benchmarks/results/demo_result.json docs/pictures."""
    drawn = draw(RESULT, width, theme)
    assert Path(ROOT, "docs", "pictures", f"terminal-{width}-{theme}.svg").read_text(encoding="utf-8") == drawn
    (table,) = (part for part in result_parts(RESULT) if isinstance(part, Table))
    shown = words_of(drawn)
    for cell in (cell for row in table.rows[1:] for cell in row[:-1]):
        assert cell in shown, cell
    assert all(word in shown for row in table.rows[1:] for word in row[-1].split())
