"""Closing of runs whose approval nobody gave. Prefect fails them on its own, without running any of our code."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun

from tasks.registry.mlflow_registry import connect, registry_call
from tasks.registry.mlflow_runs import EXPERIMENT, FLOW_RUN
from tasks.run.context import log
from tasks.run.settings import state_folder, tracking_uri
from tasks.run.step import step

_AWAITING = "awaiting_approval"
_OUTCOME = "quantgate.outcome"


@step("settle approvals that nobody gave")
def settle_approvals() -> list[str]:
    """Record as `rejected` the runs that wait in MLflow but no longer on Prefect; return one line for each.

    Their approval expired, or they were cancelled.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
    settled = []
    with connect(tracking_uri(state_folder())) as client:
        known = registry_call(client.get_experiment_by_name, EXPERIMENT)
        if known is None:
            return []
        asked: Any = registry_call(client.search_runs, [known.experiment_id], f"tags.`{_OUTCOME}` = '{_AWAITING}'")
        ended = {str(run.id): run for run in _flow_runs([one.data.tags[FLOW_RUN] for one in asked])}
        for record in asked:
            flow_run = ended.get(record.data.tags[FLOW_RUN])
            if flow_run is not None and (flow_run.state is None or not flow_run.state.is_final()):
                continue
            reason = _reason(record.data.tags.get("mlflow.note.content", ""), flow_run)
            _settle(client, record, reason)
            log.info("%s: %s", record.info.run_name, reason)
            settled.append(f"{record.info.run_name}: {reason}")
    return settled


def _flow_runs(ids: list[str]) -> list[FlowRun]:
    if not ids:
        return []
    with get_client(sync_client=True) as client:
        wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(one) for one in ids]))
        return client.read_flow_runs(flow_run_filter=wanted)


def _reason(asked: str, flow_run: FlowRun | None) -> str:
    cancelled = flow_run is not None and flow_run.state is not None and flow_run.state.is_cancelled()
    told = (
        "its run was cancelled" if cancelled else "nobody answered in time" if flow_run else "its run no longer exists"
    )
    return f"{asked}; {told}, and nothing was promoted"


def _settle(client: Any, record: Any, reason: str) -> None:
    """Record the rejection in MLflow's run and, if its status still refers to this run, on the source's version."""
    tags, run_id = record.data.tags, record.info.run_id
    _, _, version = tags.get("quantgate.source_uri", "").partition("models:/")
    name, _, number = version.partition("/")
    key = f"quantgate.{record.data.params.get('target', '')}"
    if number:
        shown = registry_call(client.get_model_version, name, number).tags
        if (shown.get(f"{key}.status"), shown.get(f"{key}.flow_run")) == (_AWAITING, tags[FLOW_RUN]):
            registry_call(client.set_model_version_tag, name, number, f"{key}.reason", reason)
            registry_call(client.set_model_version_tag, name, number, f"{key}.status", "rejected")
    registry_call(client.set_tag, run_id, "mlflow.note.content", reason)
    registry_call(client.set_tag, run_id, _OUTCOME, "rejected")
    registry_call(client.set_terminated, run_id, "FINISHED")
