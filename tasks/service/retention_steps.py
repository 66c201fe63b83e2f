"""Steps of the retention flow, and its table; apart from the listing, which `quantgate retention` does without Prefect."""

from __future__ import annotations

from prefect.artifacts import create_table_artifact

from tasks.run.step import step
from tasks.service import registry_retention
from tasks.service.registry_retention import RetentionOutcome, tell_kept

# Nobody reads a longer table in the UI; the log of the flow run lists every deletion.
MAX_ROWS = 500

list_kept = step("list what is kept")(registry_retention.list_kept)
delete_all = step("delete what goes")(registry_retention.delete_all)


def publish_kept(kept: RetentionOutcome, *, deleted: bool) -> None:
    """Publish the table of decisions, deletions first, as an artifact of the flow run."""
    rows = [
        {"what": fate.kind, "name": fate.name, "fate": "goes" if fate.goes else "stays", "why": fate.reason}
        for fate in sorted(kept.fates, key=lambda fate: not fate.goes)
    ]
    if rows:
        create_table_artifact(rows[:MAX_ROWS], key="retention", description=tell_kept(kept, deleted=deleted))
