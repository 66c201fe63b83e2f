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
    """Return how candidates were judged again, on other samples and on other draws; empty if none was."""
    metric = metric_of(result)
    return " ".join(filter(None, [_tell_samples(result), *(_tell_draws(one, metric) for one in result.candidates)]))


def _tell_draws(candidate: CandidateResult, metric: str) -> str:
    draws = candidate.draws
    if draws is None:
        return ""
    least, most, own = (formats.metric_drop(drop, metric) for drop in (min(draws.drops), max(draws.drops), draws.drop))
    spread, most_spread = (
        formats.metric_drop(one, metric).removeprefix("+") for one in (draws.spread.value, draws.spread.high)
    )
    moved = draws.ranges[0] if draws.ranges else None
    return (
        f"{candidate.name} was made again from {len(draws.drops)} other draws of its {draws.samples} calibration samples: on "
        f"all evaluation samples their drops are {least} to {most}, its own is {own}, and the standard deviation between draws "
        f"is {spread}, with {100 * draws.confidence:.3g} % confidence at most {most_spread}."
        + (f" The range that moves most is that of {moved.tensor}, by a factor of {moved.ratio:.2f}." if moved else "")
    )


def _tell_samples(result: Result) -> str:
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
