"""Report of retention, for the Prefect UI and the terminal."""

from __future__ import annotations

from collections import Counter

from prefect.artifacts import create_table_artifact

from tasks.service.registry_retention import RetentionOutcome

# Nobody reads a longer table in the UI; the log of the flow run lists every deletion.
MAX_ROWS = 500


def publish_kept(kept: RetentionOutcome, *, deleted: bool) -> None:
    """Publish the table of decisions, deletions first, as an artifact of the flow run."""
    rows = [
        {"what": fate.kind, "name": fate.name, "fate": "goes" if fate.goes else "stays", "why": fate.reason}
        for fate in sorted(kept.fates, key=lambda fate: not fate.goes)
    ]
    if rows:
        create_table_artifact(rows[:MAX_ROWS], key="retention", description=tell_kept(kept, deleted=deleted))


def tell_kept(kept: RetentionOutcome, *, deleted: bool) -> str:
    """Return a summary in one sentence."""
    goes = Counter(fate.kind for fate in kept.fates if fate.goes)
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(goes.items())) or "nothing"
    stays = sum(not fate.goes for fate in kept.fates)
    if not deleted:
        return f"may go: {counts}; {stays} stay; nothing was deleted"
    left = f"; {len(kept.failed)} stay after all: {'; '.join(kept.failed[:5])}" if kept.failed else ""
    return f"deleted {len(kept.deleted)} ({counts}){left}; {stays} stay"
