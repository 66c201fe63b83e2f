"""HTML page that compares runs: of one model over time, of several models, or on several targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasks.reporting import formats
from tasks.reporting.inventory import inventory_facts
from tasks.reporting.pictures.comparison_picture import Ends, compare_spec
from tasks.reporting.pictures.run_pictures import Picture, draw_pareto
from tasks.reporting.rows import metric_of, shown_outcome, verdict_table
from tasks.reporting.tables import Cell, Column, ReportTable, drop_cell, speedup_cell
from tasks.reporting.templates import render
from validators.job.job import Job
from validators.records.result import CandidateResult, Result

# Facts that differ between any two runs without meaning.
_FLEETING = frozenset({"load at the start"})


@dataclass(frozen=True)
class ComparedRun:
    """A recorded run; `started` is UTC, `job` is None if none was recorded."""

    id: str
    started: str
    result: Result
    job: Job | None = None

    @property
    def model(self) -> str:
        """Name of the source, with its version."""
        source = self.result.source
        if source is None:
            return "no source"
        return f"{source.name} version {source.version}" if source.version else source.name


def render_comparison(runs: Sequence[ComparedRun]) -> str:
    """Render one HTML document: outcomes side by side, each candidate in each run, differences, and each run's details.

    Runs are numbered from 1, in the given order. The details of a run are its own picture and table.
    """
    return render(
        "comparison.html.j2",
        runs=runs,
        told=tell(runs),
        outcomes=outcomes_table(runs),
        picture=_picture(runs),
        candidates=candidates_table(runs),
        differences=differences_table(runs),
        details=[_detail(run) for run in runs],
    )


def tell(runs: Sequence[ComparedRun]) -> str:
    """Return the heading of the comparison: the number of runs, their models and targets.

    >>> tell([])
    '0 runs'
    """
    models = sorted({run.model for run in runs})
    targets = sorted({run.result.target or "no target" for run in runs})
    parts = [f"{len(runs)} runs"]
    for word, found in (("of", models), ("on", targets)):
        if found:
            parts.append(f"{word} {', '.join(found)}")
    return " ".join(parts)


def outcomes_table(runs: Sequence[ComparedRun]) -> ReportTable:
    """Return the table of one row per run: the chosen candidate and its figures, confirmed ones if available."""
    columns = [
        Column("Run"),
        Column("Model", "name"),
        *(Column(heading, "text") for heading in ("Target", "Started (UTC)")),
        Column("Outcome", "pill"),
        Column("Chosen", "text"),
        *map(Column, ("Metric", "Drop", "Speedup", "p50 ms", "Size MB")),
    ]
    rows = [_outcome_row(str(place), run) for place, run in enumerate(runs, start=1)]
    return ReportTable("runs sortable", "one run a row", columns, rows)


def candidates_table(runs: Sequence[ComparedRun]) -> ReportTable:
    """Return the table of one row per candidate of any run, with its results in each run."""
    names = dict.fromkeys(one.name for run in runs for one in run.result.candidates)
    cells = [{one.name: _cell(one, run.result) for one in run.result.candidates} for run in runs]
    rows = [(Cell(name), *(found.get(name, Cell("", "not tried")) for found in cells)) for name in names]
    return ReportTable("matrix", "candidates by run", [Column("Candidate", "name"), *_columns(runs, "pill")], rows)


def differences_table(runs: Sequence[ComparedRun]) -> ReportTable:
    """Return the table of facts that differ between the runs: source, hardware, versions, job settings."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for one in facts for name in one)
    rows = [(name, *(one.get(name, formats.NO_VALUE) for one in facts)) for name in names]
    differing = [row for row in rows if len(set(row[1:])) > 1]
    columns = [Column("Fact", "name"), *_columns(runs, "text")]
    return ReportTable("checks", "differences between the runs", columns, differing)


def _columns(runs: Sequence[ComparedRun], look: str) -> list[Column]:
    return [Column(f"Run {place}", look) for place in range(1, len(runs) + 1)]


def _outcome_row(place: str, run: ComparedRun) -> list[Cell | str]:
    result, winner, metric = run.result, run.result.winner, metric_of(run.result)
    told = winner and (winner.confirmed or winner)
    return [
        Cell(place, link=f"run-{place}"),
        run.model,
        result.target or formats.NO_VALUE,
        run.started,
        result.outcome,
        result.chosen or formats.NO_VALUE,
        Cell(formats.metric_value(told.metric_value if told else None, metric), metric),
        drop_cell(told.metric_drop if told else None, metric),
        speedup_cell(told.speedup_p50 if told else None),
        formats.milliseconds(told.latency_p50_ms if told else None),
        formats.megabytes(winner.size_bytes if winner else None),
    ]


def _cell(candidate: CandidateResult, result: Result) -> Cell:
    speedup, drop = speedup_cell(candidate.speedup_p50), drop_cell(candidate.metric_drop, metric_of(result))
    pill = "chosen" if candidate.name == result.chosen else ""
    return Cell(shown_outcome(candidate), f"{speedup.text}, {drop.text}", pill=pill)


def _facts(run: ComparedRun) -> dict[str, str]:
    """Return the source, machine and job facts of a run, by name."""
    source = run.result.source
    facts = {"source": run.model, "sha256 of the source": source.digest[:16] if source else formats.NO_VALUE}
    inventory = inventory_facts(run.result.inventory or {})
    facts |= {name: value for name, value in inventory.items() if name not in _FLEETING}
    if run.job is not None:
        settings = run.job.model_dump(mode="json", exclude={"source", "target"})
        facts |= {f"job: {name}": value for name, value in _flat(settings)}
    return facts


def _flat(settings: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            found += _flat(value, f"{above}{name}.")
        else:
            found.append((above + name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))
    return found


def _picture(runs: Sequence[ComparedRun]) -> Picture | None:
    """Draw speedup and drop of each run's winner; drops only if all runs share one metric."""
    ends, told = [], []
    metrics = {metric_of(run.result) for run in runs if run.result.winner}
    for place, run in enumerate(runs, start=1):
        winner = run.result.winner
        label = f"{place}. {run.model}" + (f", {run.result.target}" if run.result.target else "")
        if winner is None:
            ends.append(Ends(label, run.result.outcome.replace("_", " ")))
            continue
        shown = winner.confirmed or winner
        ends.append(Ends(label, winner.name, shown.speedup_p50, shown.metric_drop if len(metrics) == 1 else None))
        told.append(
            f"{label}: {winner.name}, {formats.speedup(shown.speedup_p50.value if shown.speedup_p50 else None)}"
        )
    spec = compare_spec(ends, next(iter(metrics)) if len(metrics) == 1 else None)
    return Picture(spec, f"What each run chose. {'; '.join(told)}.") if spec else None


def _detail(run: ComparedRun) -> dict[str, Any]:
    return {
        "run": run,
        "verdicts": verdict_table(run.result),
        "picture": draw_pareto(run.result, run.job.gates) if run.job else None,
    }
