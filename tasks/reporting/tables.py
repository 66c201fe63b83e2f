"""A table of the report: built once from a result, and written by pages, Markdown, artifacts and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tasks.reporting import formats
from validators.plain_text import as_markdown, markdown_table
from validators.records.measurements import Estimate


@dataclass(frozen=True)
class Cell:
    """One cell, as text in the unit of its heading; `small` is a bound or a remark after it, `pill` a mark beside it.

    On a page, `link` is the id that the text leads to, or a relative path with a slash, and `title` the text in full.
    """

    text: str
    small: str = ""
    link: str = ""
    title: str = ""
    pill: str = ""

    def __str__(self) -> str:
        """Return the text in one line, with the bound or the remarks in parentheses."""
        remarks = ", ".join(filter(None, (self.small, self.pill)))
        return f"{self.text} ({remarks})" if remarks else self.text


@dataclass(frozen=True)
class Column:
    """A heading, and how pages show the cells below it: `name`, `code name`, `pill`, `number`, `number quiet` or `text`."""

    heading: str
    look: str = "number"


@dataclass(frozen=True)
class ReportTable:
    """A table; `label` names it for screen readers, `kind` is its class on a page, and `kinds` are those of its rows."""

    kind: str
    label: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    kinds: Sequence[str] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def headings(self) -> tuple[str, ...]:
        """The heading of each column."""
        return tuple(column.heading for column in self.columns)

    def shown(self) -> Iterator[tuple[str, list[tuple[Column, Cell]]]]:
        """Yield each row with its class and, for each cell, the column."""
        kinds = self.kinds or [""] * len(self.rows)
        for kind, row in zip(kinds, self.rows, strict=True):
            cells = [Cell(cell) if isinstance(cell, str) else cell for cell in row]
            yield kind, list(zip(self.columns, cells, strict=True))

    def without(self, *headings: str) -> ReportTable:
        """Return the table without some columns."""
        kept = [index for index, column in enumerate(self.columns) if column.heading not in headings]
        columns = [self.columns[index] for index in kept]
        return replace(self, columns=columns, rows=[[row[index] for index in kept] for row in self.rows])

    def texts(self) -> list[tuple[str, ...]]:
        """Return the rows as text."""
        return [tuple(map(str, row)) for row in self.rows]

    def markdown(self, escaped: Callable[[str], str] = as_markdown) -> str:
        """Return the table as Markdown, numbers aligned right."""
        right = [index for index, column in enumerate(self.columns) if "number" in column.look]
        return markdown_table(self.headings, [list(map(escaped, row)) for row in self.texts()], right)


def drop_cell(drop: Estimate | None, metric: str) -> Cell:
    """Return a drop with the upper bound that gates judge, if there is one."""
    bound = f"≤ {formats.metric_drop(drop.high, metric)}" if drop and drop.high is not None else ""
    return Cell(formats.metric_drop(drop.value if drop else None, metric), bound)


def speedup_cell(ratio: Estimate | None) -> Cell:
    """Return a speedup with the lower bound that gates judge, if there is one."""
    bound = f"≥ {formats.speedup(ratio.low)}" if ratio and ratio.low is not None else ""
    return Cell(formats.speedup(ratio.value if ratio else None), bound)
