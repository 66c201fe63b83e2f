"""What the command line prints and writes of a result or an error."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.clock import Clock
from tasks.conclude import conclude_error
from validators.errors import QuantgateError
from validators.job import Job
from validators.plain_text import plain
from validators.result import Result

out = Console()
err = Console(stderr=True)


def show_result(result: Result) -> None:
    """The table of candidates, or of checks where there are none, and where to look further."""
    from tasks.reporting.markdown import check_rows, terminal_rows

    # Before candidates are built, or without any, the checks are all there is to see.
    print_table(terminal_rows(result) or check_rows(result))
    out.print(f"{result.outcome.replace('_', ' ')}: {result.reason}", highlight=False, markup=False, soft_wrap=True)
    if result.champion:
        uri = f"models:/{result.champion.name}@{result.champion.alias}"
        out.print(
            f"champion:  {uri} (version {result.champion.version})", highlight=False, markup=False, soft_wrap=True
        )
    if result.calibration and result.calibration.page:
        out.print(f"checks:    {result.calibration.page}", highlight=False, markup=False, soft_wrap=True)
    if result.report:
        out.print(f"report:    {result.report}", highlight=False, markup=False, soft_wrap=True)
    seconds = result.seconds
    steps = ", ".join(f"{step} {value:.1f}" for step, value in seconds.by_step.items() if value >= 0.05)
    line = f"seconds:   {seconds.total:.1f} in all, {seconds.overhead:.1f} overhead ({steps})"
    out.print(line, highlight=False, markup=False, soft_wrap=True)


def print_table(rows: list[tuple[str, ...]]) -> None:
    """Rows, headings first; off a terminal the table takes the width that it needs."""
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(rows[0]):
        last = index == len(rows[0]) - 1
        table.add_column(escape(heading), no_wrap=not last, overflow="fold")
    for row in rows[1:]:
        table.add_row(*(escape(plain(cell)) for cell in row))
    console = out if out.is_terminal else Console(file=sys.stdout, width=240)
    console.print(table)


def fail(
    error: QuantgateError, result_path: Path | None = None, job: Job | None = None, clock: Clock | None = None
) -> int:
    """Say what is wrong, write the result document of it, and return the exit code."""
    for label in ("found", "expected", "fix"):
        err.print(f"[bold]{label + ':':<10}[/bold]{escape(getattr(error, label))}", highlight=False, soft_wrap=True)
    if result_path is not None and result_path.resolve().parent.is_dir():
        write_result(conclude_error(job, error, clock or Clock()), result_path)
    return error.exit_code


def write_result(result: Result, path: Path | None) -> None:
    """Write the document whole or not at all."""
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(result.model_dump_json(indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
