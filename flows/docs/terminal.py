"""Pictures of the terminal at the end of a run: `python -m flows.docs.terminal RESULT.json docs/pictures`."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, MONOKAI

from flows.cli.console import print_table
from flows.cli.results import result_parts
from validators.plain_text import plain
from validators.records.answer import Table
from validators.records.result import Result

# Columns of a terminal: the least that terminals open with, a usual one, and half of a wide screen.
WIDTHS = (80, 120, 200)
THEMES = {"light": DEFAULT_TERMINAL_THEME, "dark": MONOKAI}


def draw(result: Result, width: int, theme: str) -> str:
    """Return an SVG of what the terminal shows of a result; equal results give equal text."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    for part in result_parts(result):
        if isinstance(part, Table):
            print_table(part, console)
        else:
            console.print(plain(part), highlight=False, markup=False)
    return console.export_svg(title="quantgate run", theme=THEMES[theme], unique_id=f"terminal-{width}-{theme}")


def main(document: str, folder: str) -> None:
    """Write a picture for each width and theme."""
    result = Result.model_validate_json(Path(document).read_text(encoding="utf-8"))
    for width in WIDTHS:
        for theme in THEMES:
            Path(folder, f"terminal-{width}-{theme}.svg").write_text(draw(result, width, theme), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
