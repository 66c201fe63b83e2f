"""Results of the confirmation, shared by the HTML report and the Markdown."""

from __future__ import annotations

from tasks.reporting import formats
from tasks.reporting.rows import metric_of
from tasks.reporting.tables import Cell, Column, ReportTable, drop_cell, speedup_cell
from validators.records.result import CandidateResult, Result

COLUMNS = (
    Column("Candidate", "code name"),
    Column("Outcome", "pill"),
    *map(Column, ("Samples", "Baseline", "Metric", "Drop")),
    Column("When chosen", "number quiet"),
    Column("Speedup"),
    Column("When chosen", "number quiet"),
)


def confirmation_table(result: Result) -> ReportTable:
    """Return the table of the candidates that were judged again, beside their figures when they were chosen."""
    rows = [_row(candidate, metric_of(result)) for candidate in result.candidates if candidate.confirmed]
    return ReportTable("confirmed", "candidates that were judged again", COLUMNS, rows)


def tell_confirmation(result: Result) -> str:
    """Return one sentence on how the winner was confirmed; empty if no candidate was judged again."""
    tried = [candidate for candidate in result.candidates if candidate.confirmed]
    if not tried:
        return ""
    confirmed = tried[0].confirmed
    assert confirmed is not None
    count = "One candidate was" if len(tried) == 1 else f"{len(tried)} candidates were, best first,"
    return (
        f"{count} judged again on {confirmed.n} evaluation samples that had no say in the choice and, if passed there, timed "
        f"anew; each bound holds with {100 * confirmed.confidence:.3g} % confidence, so that all that may be tried share the "
        "error of one."
    )


def _row(candidate: CandidateResult, metric: str) -> list[Cell | str]:
    confirmed, before, ratio = candidate.confirmed, candidate.metric_drop, candidate.speedup_p50
    assert confirmed is not None
    return [
        candidate.name,
        candidate.outcome,
        str(confirmed.n),
        formats.metric_value(confirmed.baseline_value, metric),
        formats.metric_value(confirmed.metric_value, metric),
        drop_cell(confirmed.metric_drop, metric),
        formats.metric_drop(before.value if before else None, metric),
        speedup_cell(confirmed.speedup_p50),
        formats.speedup(ratio.value if ratio else None),
    ]
