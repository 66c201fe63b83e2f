"""Model card of a version: its description in MLflow, stored in a column of 5,000 characters."""

from __future__ import annotations

from tasks.serving import sections
from tasks.serving.promoted import Promoted
from tasks.serving.sections import document, shown

# Limit of `description` in MLflow's tables; SQLite accepts more, PostgreSQL, MySQL and SQL Server do not. It counts bytes in
# UTF-8, as SQL Server does.
MOST_BYTES = 5000
# Sections that a longer card loses, those best covered by the MLflow run first. The rest then fits, because all external text
# in it is truncated.
LEFT_OUT_FIRST = ("Beside the source", "Verdicts", "Data", "Limits", "Load it", "Champions before")
LEFT_OUT = "*Left out here, for its length: {}. `README.md` among the artifacts of this version has all of it.*"
README = (
    "*`README.md` among the artifacts of this version has its files, session options and an example without MLflow.*"
)


def model_card(promoted: Promoted) -> str:
    """Render the card as Markdown, at most `MOST_BYTES` long."""
    title = f"**`{promoted.approval.variant.candidate}`** of {shown(promoted.source.name, 80)}"
    parts = {
        "Approved for": sections.device(promoted),
        "Verdicts": sections.verdicts(promoted),
        "Beside the source": sections.figures(promoted, points=1),
        "Data": sections.data(promoted),
        "Champions before": sections.history(promoted),
        "Limits": sections.limits(promoted),
        "Load it": sections.load(promoted),
    }
    for count in range(len(LEFT_OUT_FIRST) + 1):
        dropped = LEFT_OUT_FIRST[:count]
        kept = {heading: blocks for heading, blocks in parts.items() if heading not in dropped}
        end = LEFT_OUT.format(", ".join(dropped).lower()) if dropped else README
        card = document([title, *sections.origin(promoted)], kept, "###") + f"\n{end}\n"
        if len(card.encode()) <= MOST_BYTES:
            break
    return card
