"""Runs on the Prefect server that wait for an approval, and the answers to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.client.schemas.sorting import FlowRunSort

from tasks.champion.ask_approval import CANDIDATE_LABEL
from tasks.run.prefect_server import server_client
from tasks.run.settings import check_server
from validators.errors import JobError
from validators.targets import DEFAULT_TARGET

_FLOW = "quantize"
_PAGE = 200


@dataclass(frozen=True)
class PendingApproval:
    """A run that waits for an approval: what it would promote, since when and until when (UTC)."""

    id: UUID
    name: str
    source: str
    target: str
    candidate: str
    since: str
    expires: str


def list_waiting() -> list[PendingApproval]:
    """Return the runs that wait for an approval, longest wait first.

    Raises:
        InfrastructureError: no Prefect server is configured, or it does not answer.
    """
    check_server("whose runs wait")
    with server_client() as client:
        return sorted(map(_waiting, _suspended(client)), key=lambda one: one.since)


def answer_approval(run: str, decision: str, *, who: str, comment: str) -> PendingApproval:
    """Resume the waiting run with this id or name with an answer, and return the run.

    Raises:
        JobError: no such run waits, several with this name do, or the server refuses the answer.
        InfrastructureError: no Prefect server is configured, or it does not answer.
    """
    check_server("whose runs wait")
    with server_client() as client:
        found = [one for one in _suspended(client) if run in (str(one.id), one.name)]
        if len(found) != 1:
            raise JobError(
                found=f"{len(found) or 'no'} runs with the id or name {run!r} wait for an approval",
                expected="the id or name of exactly one waiting run",
                fix="`quantgate approvals` lists what waits",
            )
        given: dict[str, Any] = {"decision": decision, "who": who, "comment": comment}
        answer = client.resume_flow_run(found[0].id, run_input=given)
    if answer.status != SetStateStatus.ACCEPT:
        reason = getattr(answer.details, "reason", None) or "no reason given"
        raise JobError(
            found=f"the Prefect server rejected the answer for {run!r}: {reason}",
            expected="a run that is still waiting, and an answer that fits its form",
            fix="`quantgate approvals` lists the waiting runs; after an approval expires, the next run asks again",
        )
    return _waiting(found[0])


def _suspended(client: SyncPrefectClient) -> list[FlowRun]:
    """Return all runs suspended for an approval, read page by page."""
    paused = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED]))
    found: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[_FLOW])),
            flow_run_filter=FlowRunFilter(state=paused),
            sort=FlowRunSort.ID_DESC,
            limit=_PAGE,
            offset=len(found),
        )
        found += page
        if len(page) < _PAGE:
            return [run for run in found if CANDIDATE_LABEL in run.labels]


def _waiting(run: FlowRun) -> PendingApproval:
    job = run.parameters["job"]
    expires = run.state.state_details.pause_timeout if run.state else None
    return PendingApproval(
        id=run.id,
        name=run.name,
        source=str(job["source"]),
        target=str(job.get("target", DEFAULT_TARGET)),
        candidate=str(run.labels[CANDIDATE_LABEL]),
        since=f"{run.state.timestamp:%Y-%m-%d %H:%M}" if run.state else "",
        expires=f"{expires:%Y-%m-%d %H:%M}" if expires else "never",
    )
