"""MLflow runs that exist once per identity: found again by their tags, with duplicates deleted when the record closes.

The server can die between creating a run and answering, and a request that it accepted can take effect after the client has
looked for the run. Three rules keep one run per identity:

1. Look for the run before every attempt to create it.
2. Send each creation once (`mlflow_registry.sent_once`): MLflow's own retries would repeat it without looking.
3. When the record closes, delete every other run with the same identity.

All functions raise ServiceDown if the tracking server does not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.registry.mlflow_registry import pages, registry_call, sent_once

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Experiment of the runs, and tags of a run.
EXPERIMENT = "quantgate"
FLOW_RUN = "quantgate.flow_run"
OUTCOME = "quantgate.outcome"
PARENT, NAME, KIND = "mlflow.parentRunId", "mlflow.runName", "quantgate.kind"

log = logging.getLogger("quantgate")


def find_runs(client: MlflowClient, experiment: str, identity: Mapping[str, str]) -> list[Any]:
    """Return the runs with these tags, latest start first. Of duplicates, the latest is the one whose creation was answered."""
    condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
    order = ["attributes.start_time DESC", "attributes.run_id ASC"]
    return list(pages(client.search_runs, experiment_ids=[experiment], filter_string=condition, order_by=order))


def find_or_create_run(
    client: MlflowClient, experiment: str, identity: Mapping[str, str], more_tags: Mapping[str, str] | None = None
) -> Any:
    """Return the run with these tags; create it, with `more_tags` as well, if there is none.

    Raises:
        ServiceDown: the tracking server does not answer. The call can be repeated, since it looks first.
    """
    found = find_runs(client, experiment, identity)
    if found:
        return found[0]
    with sent_once():
        return registry_call(client.create_run, experiment, tags={**identity, **(more_tags or {})})


def candidate_identity(run_id: str) -> dict[str, str]:
    """Return the tags that the runs of all candidates below a parent run share."""
    return {PARENT: run_id, KIND: "candidate"}


def close_candidates(client: MlflowClient, experiment: str, run_id: str) -> None:
    """Keep one run per candidate below a parent run, and end those that still run.

    A run with an outcome is kept first. A kept run that is still running has no outcome, and is ended as KILLED.
    """
    kept: dict[str, Any] = {}
    nested = find_runs(client, experiment, candidate_identity(run_id))
    for run in sorted(nested, key=lambda run: OUTCOME not in run.data.tags):
        first = kept.setdefault(run.data.tags[NAME], run)
        if first is not run:
            _delete(client, run)
        elif run.info.status == "RUNNING":
            registry_call(client.set_terminated, run.info.run_id, "KILLED")


def delete_duplicates(client: MlflowClient, experiment: str, identity: Mapping[str, str], keep: str) -> None:
    """Delete every run with these tags except `keep`, with the candidates' runs below it."""
    for run in find_runs(client, experiment, identity):
        if run.info.run_id == keep:
            continue
        for nested in find_runs(client, experiment, candidate_identity(run.info.run_id)):
            _delete(client, nested)
        _delete(client, run)


def _delete(client: MlflowClient, run: Any) -> None:
    """End and delete a duplicate: MLflow keeps deleted runs until `mlflow gc`, and they must not appear as running."""
    log.warning("deleting MLflow run %s, a duplicate whose creation was never answered", run.info.run_id)
    if run.info.status == "RUNNING":
        registry_call(client.set_terminated, run.info.run_id, "KILLED")
    registry_call(client.delete_run, run.info.run_id)
