"""Parts of a model ranked by quantization noise, shared by the HTML report and the Markdown."""

from __future__ import annotations

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
    """Return the table of at most `count` of the noisiest parts; a part in float has that as its pill."""
    shown = recovery.parts[:count]
    rows = [_row(rank, part) for rank, part in enumerate(shown, start=1)]
    return ReportTable("parts", "the most sensitive parts", COLUMNS, rows, ["kept" * part.kept for part in shown])


def _row(rank: int, part: RankedPart) -> list[Cell | str]:
    nodes = f"{len(part.nodes)} nodes" if len(part.nodes) > 1 else ""
    return [
        str(rank),
        Cell(label(part), nodes, title=part.name, pill="left in float" * part.kept),
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


def tell_recovery(result: Result) -> str:
    """Return one sentence on the recovery's attempts and outcome; empty without a recovery."""
    recovery = result.recovery
    if recovery is None:
        return ""
    attempts = f"{recovery.attempts} of at most {recovery.allowed} attempts"
    if recovery.recovered is None:
        return (
            f"{recovery.candidate} fails on accuracy alone; it was made again with its noisiest parts in float, and did not "
            f"pass within {attempts}."
        )
    kept = sum(part.kept for part in recovery.parts)
    parts = "its noisiest part" if kept == 1 else f"its {kept} noisiest parts"
    outcome = next((c.outcome for c in result.candidates if c.name == recovery.recovered), "refused")
    end = "passes every gate" if outcome == "passed" else "passes in accuracy, though not every other gate"
    return (
        f"{recovery.candidate} fails on accuracy alone; with {parts} in float, as {recovery.recovered}, it {end} "
        f"(found in {attempts})."
    )
