"""Parts of a model ranked by quantization noise, as rows of text shared by the HTML report and the Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.reporting import formats
from validators.records.result import Result
from validators.records.verdicts import RankedPart, Recovery

SHOWN_PARTS = 20
LABEL_LENGTH = 60
# Characters shown of the start of a truncated name.
HEAD_LENGTH = 8
# Attribute of `PartRow` and heading, in the order of the table.
PART_COLUMNS: tuple[tuple[str, str], ...] = (
    ("rank", "Rank"),
    ("label", "Part"),
    ("noise", "Noise dB"),
    ("weight", "Weight outlier ratio"),
    ("activation", "Activation outlier ratio"),
    ("cost", "Cost µs"),
)


@dataclass(frozen=True)
class PartRow:
    """One row of the table, every cell as text; `name` is the full name, `label` a truncated one, `nodes` the node count."""

    rank: str
    label: str
    name: str
    nodes: int
    kept: bool
    noise: str
    weight: str
    activation: str
    cost: str


def part_rows(recovery: Recovery, count: int = SHOWN_PARTS) -> tuple[PartRow, ...]:
    """Return rows for at most `count` of the noisiest parts."""
    return tuple(
        PartRow(
            rank=str(rank),
            label=label(part),
            name=part.name,
            nodes=len(part.nodes),
            kept=part.kept,
            noise=formats.decibels(part.noise),
            weight=formats.significant(part.weight_outlier_ratio),
            activation=formats.significant(part.activation_outlier_ratio),
            cost=formats.NO_VALUE if part.cost_us is None else f"{part.cost_us:+.0f}",
        )
        for rank, part in enumerate(recovery.parts[:count], start=1)
    )


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
