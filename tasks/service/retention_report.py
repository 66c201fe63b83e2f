"""What retention did, for who reads it in the Prefect UI or on a terminal."""

from __future__ import annotations

from collections import Counter

from prefect.artifacts import create_table_artifact

from tasks.service.registry_retention import RetentionOutcome

# A table of the UI with more rows is read by nobody; the log of the flow run has what was deleted.
MAX_ROWS = 500


def publish_kept(kept: RetentionOutcome, *, deleted: bool) -> None:
    """The table of everything with its fate, what goes first, as an artifact of the flow run."""
    rows = [
        {"what": fate.kind, "name": fate.name, "fate": "goes" if fate.goes else "stays", "why": fate.reason}
        for fate in sorted(kept.fates, key=lambda fate: not fate.goes)
    ]
    if rows:
        create_table_artifact(rows[:MAX_ROWS], key="retention", description=tell_kept(kept, deleted=deleted))


def tell_kept(kept: RetentionOutcome, *, deleted: bool) -> str:
    """In a sentence."""
    goes = Counter(fate.kind for fate in kept.fates if fate.goes)
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(goes.items())) or "nothing"
    stays = sum(not fate.goes for fate in kept.fates)
    if not deleted:
        return f"may go: {counts}; {stays} stay; nothing was deleted"
    left = f"; {len(kept.failed)} stay after all: {'; '.join(kept.failed[:5])}" if kept.failed else ""
    return f"deleted {len(kept.deleted)} ({counts}){left}; {stays} stay"
