"""Model card of a version: its description in MLflow, stored in a column of 5,000 characters."""

from __future__ import annotations

from tasks.serving import sections
from tasks.serving.promoted import Promoted
from tasks.serving.sections import shown

# Limit of `description` in MLflow's tables; SQLite accepts more, PostgreSQL, MySQL and SQL Server do not. It counts bytes in
# UTF-8, as SQL Server does.
MOST_BYTES = 5000
LEFT_OUT = "*Left out here, for its length: {}. `README.md` among the artifacts of this version has all of it.*"
README = (
    "*`README.md` among the artifacts of this version has its files, session options and an example without MLflow.*"
)


def model_card(promoted: Promoted) -> str:
    """Render the card as Markdown, at most `MOST_BYTES` long.

    A longer card loses whole sections, those best covered by the MLflow run first. The rest then fits, because all external
    text in it is truncated.
    """
    variant = promoted.approval.variant
    # Heading, lines, and the rank in which the section is dropped; without a rank it stays.
    parts: list[tuple[str, list[str], int | None]] = [
        ("", [f"**`{variant.candidate}`** of {shown(promoted.source.name, 80)}", "", *sections.origin(promoted)], None),
        ("Approved for", sections.device(promoted), None),
        ("Verdicts", sections.verdicts(promoted), 2),
        ("Beside the source", sections.figures(promoted, points=1), 1),
        ("Data", sections.data(promoted), 3),
        ("Champions before", sections.history(promoted), 6),
        ("Limits", sections.limits(promoted), 4),
        ("Load it", sections.load(promoted), 5),
    ]
    dropped: list[str] = []
    while True:
        kept = [(heading, lines) for heading, lines, _ in parts if heading not in dropped]
        told = LEFT_OUT.format(", ".join(dropped).lower()) if dropped else README
        text = "\n\n".join([*(_part(heading, lines) for heading, lines in kept), told]) + "\n"
        left = sorted((rank, heading) for heading, _, rank in parts if rank and heading not in dropped)
        if len(text.encode()) <= MOST_BYTES or not left:
            return text
        dropped.append(left[0][1])


def _part(heading: str, lines: list[str]) -> str:
    return "\n".join([*([f"### {heading}", ""] if heading else []), *lines])
