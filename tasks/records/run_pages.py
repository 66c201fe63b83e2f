"""Pages of several recorded runs: all, newest first, with links to the reports that this machine has, and a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.records.run_lookup import Recorded, find_recorded, latest, recorded_job, recorded_result, write_page
from tasks.reporting.comparison import ComparedRun, render_comparison
from tasks.reporting.tables import Cell, Column, ReportTable
from tasks.reporting.templates import render
from validators.errors import JobError
from validators.redact import redact
from validators.samples.words import count

if TYPE_CHECKING:
    from mlflow import MlflowClient

MOST_RUNS = 500


def list_runs(client: MlflowClient, page: Path) -> list[Recorded]:
    """Write the page of the latest runs, up to `MOST_RUNS`, and return them; links are relative to its folder.

    Raises:
        ServiceDown: the tracking server does not answer.
        JobError: the page cannot be written.
    """
    found = latest(client, MOST_RUNS)
    told = f"The latest {MOST_RUNS} runs." if len(found) == MOST_RUNS else f"{count(len(found), 'run')}."
    write_page(page, redact(render("index.html.j2", runs=runs_table(found, page.parent), told=told)).encode())
    return found


def runs_table(runs: list[Recorded], folder: Path) -> ReportTable:
    """Return the table of runs, each with a link if `folder` has its report."""
    columns = [
        Column("Run", "name"),
        Column("Started (UTC)", "text"),
        Column("Source", "text"),
        Column("Target", "text"),
        Column("Outcome", "pill"),
        Column("Chosen", "text"),
        Column("Why", "text"),
    ]
    rows: list[list[Cell | str]] = []
    for run in runs:
        report = f"{run.id}/report.html"
        link = report if (folder / report).exists() else ""
        name = Cell(run.id[:8], link=link, title=run.id)
        outcome = run.outcome or run.status.lower()
        rows.append([name, run.started, run.source, run.target, outcome, run.chosen, run.reason])
    return ReportTable("verdicts sortable", "all runs", columns, rows)


def compare_runs(client: MlflowClient, names: Sequence[str], path: Path) -> list[Recorded]:
    """Write the page that compares runs, given by id, id prefix or `last`, in the given order; return the runs.

    Raises:
        JobError: there are fewer than two runs, one is missing or has no result, or the file cannot be written.
        ServiceDown: the tracking server does not answer.
    """
    runs = [find_recorded(client, name) for name in names]
    if len({run.id for run in runs}) < 2:
        raise JobError(
            found=f"{len(names)} names of the same run" if len(names) > 1 else "only one run",
            expected="two or more runs",
            fix="`quantgate status` lists the runs; `quantgate report RUN` is the page of one",
        )
    compared = [_compared(client, run) for run in dict.fromkeys(runs)]
    write_page(path, redact(render_comparison(compared)).encode())
    return list(dict.fromkeys(runs))


def _compared(client: MlflowClient, run: Recorded) -> ComparedRun:
    result = recorded_result(client, run)
    with suppress(JobError):  # a run without a recorded job can still be compared otherwise
        return ComparedRun(run.id, run.started, result, recorded_job(client, run))
    return ComparedRun(run.id, run.started, result)
