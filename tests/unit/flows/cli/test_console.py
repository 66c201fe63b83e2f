"""Tables on terminals of every width: no cell is cropped, and no line is longer than the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flows.cli import console
from validators.records.answer import Table

REASON = "the drop is 3.1 points (2.2 to 4.0), more than the 1.0 that `gates.max_drop` allows: keep more parts in float"
HEADINGS = ("Candidate", "Result", "accuracy", "Drop", "Speedup", "p50 ms", "Size", "Coverage", "Why")
ROWS = [
    ("int8-static-percentile-pc+smooth@ort-cpu", "failed", "0.881", "3.1 pp", "1.91x", "0.42", "0.26", "98 %", REASON),
    ("int8-dynamic-pc@ort-cpu", "passed", "0.911", "0.1 pp", "1.22x", "0.71", "0.27", "96 %", ""),
    ("int4-g32-hqq@openvino", "refused", "", "", "", "", "", "", "not [label=3] of " + "a/long/path" * 20),
]


def printed(monkeypatch: pytest.MonkeyPatch, width: int, table: Table) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=stream, width=width, force_terminal=True, color_system=None))
    console.print_table(table)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_cell_is_cropped_at_any_width(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    lines = printed(monkeypatch, width, Table([HEADINGS, *ROWS]))
    assert max(map(len, lines)) <= width
    told = "".join("".join(lines).split())
    if width < 200:  # words of neighbours do not mix where a row has lines of its own
        for row in ROWS:
            assert [cell for cell in row if "".join(cell.split()) not in told] == []
    words = {word for line in lines for word in line.split()}
    assert {word for row in ROWS[:2] for cell in row for word in cell.split()} <= words
    assert "\N{HORIZONTAL ELLIPSIS}" not in told


def test_columns_stand_side_by_side_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = (printed(monkeypatch, width, Table([HEADINGS, *ROWS])) for width in (200, 80))
    assert wide[0].split() == " ".join(HEADINGS).split()
    assert narrow[0] == ROWS[0][0] and narrow[1].split()[:2] == ["Result", "failed"]
    named = [("Candidate", "Why"), ("int8-static-percentile-pc+smooth@ort-cpu (chosen, from store)", REASON)]
    assert any(line.startswith(named[1][0]) for line in printed(monkeypatch, 120, Table(named))), "a name is not folded"
    small = printed(monkeypatch, 80, Table([("Part", "Why"), ("a", "b")]))
    assert small[0].split() == ["Part", "Why"] and small[1].split() == ["a", "b"]
