"""Flow that lists old variants and files every night, and deletes them if its deployment says so."""

# No `from __future__ import annotations`: Prefect reads the parameters' types from the signature.
from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import Field

from tasks.service.registry_retention import RetentionOutcome, tell_kept
from tasks.service.retention_policy import Policy
from tasks.service.retention_steps import delete_all, list_kept, publish_kept

Versions = Annotated[int, Field(ge=1, le=10_000, description="Newest versions to keep per model and target.")]
Days = Annotated[int, Field(ge=1, le=36_500, description="Keep whatever was made or last used within so many days.")]
Delete = Annotated[bool, Field(description="Delete instead of only listing.")]


@flow(name="retention", flow_run_name="older than {older_than_days} days, delete {delete}")
def retention(
    keep_versions: Versions = 5, older_than_days: Days = 30, delete: Delete = False
) -> State[RetentionOutcome]:
    """List old variants, their artifacts, finished work and reports; with `delete`, delete them.

    The champion, its predecessor and every version that an alias names are always kept.
    """
    policy = Policy(keep_versions=keep_versions, older_than_days=older_than_days)
    kept = list_kept(policy)
    if delete:
        kept = delete_all(policy, kept)
    publish_kept(kept, deleted=delete)
    return Completed(name="Deleted" if delete else "Listed", message=tell_kept(kept, deleted=delete), data=kept)
