"""A page of all recorded runs, newest first, with links to the reports that this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.records.run_lookup import Recorded, latest, write_page
from tasks.reporting.tables import Cell, Column, ReportTable
from tasks.reporting.templates import render
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
