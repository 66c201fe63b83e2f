"""MLflow runs that exist once: found again by their identity tags, and cleared of duplicates when the record closes.

The server can die between creating a run and answering, and a request that it accepted before can take effect after the client
has looked for the run. Three rules keep one run for each identity:

1. Look for the run before every attempt to create it.
2. Send each creation once (`registry.sent_once`): MLflow's own retries would repeat it without looking.
3. When the record closes, delete every other run with the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.registry.mlflow_registry import pages, registry_call, sent_once
from tasks.run.context import log

if TYPE_CHECKING:
    from mlflow import MlflowClient

OUTCOME = "quantgate.outcome"
PARENT, NAME, KIND = "mlflow.parentRunId", "mlflow.runName", "quantgate.kind"


def find_runs(client: MlflowClient, experiment: str, identity: Mapping[str, str]) -> list[Any]:
    """Return the runs with these tags, the one that was started last first: of duplicates it is the one that was answered.

    Raises:
        ServiceDown: the tracking server does not answer.
    """
    condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
    order = ["attributes.start_time DESC", "attributes.run_id ASC"]
    return list(pages(client.search_runs, experiment_ids=[experiment], filter_string=condition, order_by=order))


def find_or_create_run(
    client: MlflowClient, experiment: str, identity: Mapping[str, str], more_tags: Mapping[str, str] | None = None
) -> Any:
    """Return the run with these tags, created with `more_tags` as well if there is none.

    Raises:
        ServiceDown: the tracking server does not answer; call again, which looks first.
    """
    found = find_runs(client, experiment, identity)
    if found:
        return found[0]
    with sent_once():
        return registry_call(client.create_run, experiment, tags={**identity, **(more_tags or {})})


def candidate_identity(run_id: str) -> dict[str, str]:
    """Return the tags that all candidates' runs below a parent run share."""
    return {PARENT: run_id, KIND: "candidate"}


def close_candidates(client: MlflowClient, experiment: str, run_id: str) -> None:
    """Leave one run for each candidate below a parent run, and none of them running.

    The recorded run stays, which has an outcome; a run that is still running then has none, and is killed.

    Raises:
        ServiceDown: the tracking server does not answer.
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
    """Delete every run with these tags but one, with the candidates' runs below it.

    Raises:
        ServiceDown: the tracking server does not answer.
    """
    for run in find_runs(client, experiment, identity):
        if run.info.run_id == keep:
            continue
        for nested in find_runs(client, experiment, candidate_identity(run.info.run_id)):
            _delete(client, nested)
        _delete(client, run)


def _delete(client: MlflowClient, run: Any) -> None:
    """Kill and delete a duplicate; MLflow keeps deleted runs until `mlflow gc`, and none shall look as if it went on."""
    log.warning("deleting MLflow run %s, a duplicate whose creation was never answered", run.info.run_id)
    if run.info.status == "RUNNING":
        registry_call(client.set_terminated, run.info.run_id, "KILLED")
    registry_call(client.delete_run, run.info.run_id)
