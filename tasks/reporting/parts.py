"""Parts of a model ranked by noise, and the frontier of their forms, shared by the HTML report and the Markdown."""

from __future__ import annotations

from collections import Counter
from itertools import compress

from tasks.reporting import formats
from tasks.reporting.tables import Cell, Column, ReportTable
from validators.records.result import Result
from validators.records.verdicts import RankedPart, Recovery

SHOWN_PARTS = 20
LABEL_LENGTH = 60
# Characters shown of the start of a truncated name.
HEAD_LENGTH = 8
COLUMNS = (
    Column("Rank"),
    Column("Part", "name"),
    *map(Column, ("Noise dB", "Weight outlier ratio", "Activation outlier ratio", "Cost µs")),
)


def parts_table(recovery: Recovery, count: int = SHOWN_PARTS) -> ReportTable:
    """Return the table of at most `count` of the noisiest parts, without columns that have no value in any row.

    Another form than the candidate's own is a pill.
    """
    shown = recovery.parts[:count]
    rows = [_row(rank, part) for rank, part in enumerate(shown, start=1)]
    filled = [any(row[index] != formats.NO_VALUE for row in rows) for index in range(len(COLUMNS))]
    columns, rows = list(compress(COLUMNS, filled)), [list(compress(row, filled)) for row in rows]
    return ReportTable("parts", "the most sensitive parts", columns, rows, ["kept" * bool(part.form) for part in shown])


def _row(rank: int, part: RankedPart) -> list[Cell | str]:
    nodes = f"{len(part.nodes)} nodes" if len(part.nodes) > 1 else ""
    return [
        str(rank),
        Cell(label(part), nodes, title=part.name, pill=f"in {part.form}" * bool(part.form)),
        formats.decibels(part.noise),
        formats.significant(part.weight_outlier_ratio),
        formats.significant(part.activation_outlier_ratio),
        formats.NO_VALUE if part.cost_us is None else f"{part.cost_us:+.0f}",
    ]


def label(part: RankedPart, length: int = LABEL_LENGTH) -> str:
    """Return a part's name in at most `length` characters; for several nodes, the first and the number of others.

    A long name is cut in the middle and keeps more of its end, where the names of layers differ.

    >>> label(RankedPart("query, key, value", ("query", "key", "value"), 0.1, 2.0, 3.0))
    'query +2'
    >>> label(RankedPart("/encoder/layer.0/MatMul", ("/encoder/layer.0/MatMul",), 0.1, 2.0, 3.0), 11)
    '/en…/MatMul'
    """
    joined = len(part.nodes) > 1 and part.name == ", ".join(part.nodes)
    more = f" +{len(part.nodes) - 1}" if joined else ""
    name, room = part.nodes[0] if joined else part.name, length - len(more)
    if len(name) > room:
        head = min(HEAD_LENGTH, (room - 1) // 3)
        name = f"{name[:head]}…{name[head + 1 - room :]}"
    return name + more


FRONTIER_COLUMNS = (
    Column("Noise below dB"),
    Column("Predicted dB"),
    Column("Cost"),
    Column("Candidate", "code name"),
    Column("Accuracy", "text"),
)


# Divisors and words of units of cost.
UNITS = {"bytes": (1e6, "MB"), "µs": (1.0, "µs")}


def in_unit(cost_unit: str) -> tuple[float, str]:
    """Return the divisor and the word with which costs in this unit are shown."""
    return UNITS.get(cost_unit, (1.0, cost_unit))


def frontier_table(recovery: Recovery) -> ReportTable:
    """Return the points that a search tried, cheapest first; the picture has all, and the result document."""
    shown = [point for point in recovery.frontier if point.candidate]
    divisor, unit = in_unit(recovery.cost_unit)
    rows: list[list[Cell | str]] = [
        [
            f"-{point.level_db}",
            formats.decibels(point.noise),
            f"{formats.significant(point.cost / divisor)} {unit}",
            Cell(point.candidate),
            point.outcome or "refused",
        ]
        for point in shown
    ]
    kinds = ["kept" * (point.candidate == recovery.recovered) for point in shown]
    return ReportTable("parts", "the frontier of cost and noise", FRONTIER_COLUMNS, rows, kinds)


def tell_recovery(result: Result) -> str:
    """Return one sentence on the recovery's attempts and outcome; empty without a recovery."""
    recovery = result.recovery
    if recovery is None:
        return ""
    start = f"{recovery.candidate} {'passes' if recovery.passes else 'fails on accuracy alone'}"
    attempts = f"{recovery.attempts} of at most {recovery.allowed} attempts"
    if not recovery.frontier and recovery.passes:
        beside = "no candidate that fails on accuracy alone is better by more than a ninth"
        return f"{start}. Its parts have no cheaper forms, and {beside}."
    if not recovery.frontier:
        return f"{start}, and no other forms of its parts have less noise."
    if recovery.recovered is None:
        which = "cheaper" if recovery.passes else "other"
        return f"{start}; it was made again with {which} forms of its parts, and did not pass within {attempts}."
    outcome = next((c.outcome for c in result.candidates if c.name == recovery.recovered), "refused")
    end = "passes every gate" if outcome == "passed" else "passes in accuracy, though not every other gate"
    tried = {point.candidate for point in recovery.frontier} - {recovery.recovered}
    other = f"; {result.chosen}, which passed too, was confirmed in its place" if result.chosen in tried else ""
    return f"{start}; with {tell_forms(recovery)}, as {recovery.recovered}, it {end} (found in {attempts}){other}."


def tell_forms(recovery: Recovery) -> str:
    """Return how many parts of the recovered candidate have which other forms.

    >>> parts = [RankedPart(form, (form,), 0.1, None, None, form=form) for form in ("float", "float", "")]
    >>> tell_forms(Recovery("a", tuple(parts), 1, 6))
    '2 of 3 parts in float'
    """
    counts = Counter(part.form for part in recovery.parts if part.form)
    forms = ", ".join(f"{count} in {form}" for form, count in counts.items()) or "none in another form"
    return forms.replace(" in", f" of {len(recovery.parts)} parts in", 1)
