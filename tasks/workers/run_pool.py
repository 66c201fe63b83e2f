"""The work pool of runs, and the automation that crashes runs whose process is gone."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.events import ResourceSpecification
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from prefect.workers.process import ProcessWorker

from tasks.workers.deployments import DeployedObject
from validators.errors import InfrastructureError, JobError

POOL, RUNS_QUEUE, OTHERS_QUEUE = "quantgate", "runs", "default"
# Enough for every deployment at once and a few runs that wait for workers; more processes would only load the server.
POOL_LIMIT = 16
# Three heartbeats.
MISSING_SECONDS = 90.0
# A process of a run imports for a minute on a busy machine; a pod waits for its image up to the 600 s of job-template.json.
START_SECONDS, POD_START_SECONDS = 300.0, 900.0
# Prefect's own template of a process pool lets the caller that starts a run set its command, environment and folder.
PROCESS_TEMPLATE: dict[str, Any] = {
    "job_configuration": {"env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": f"{MISSING_SECONDS / 3:.0f}"}},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}


def apply_pool(client: SyncPrefectClient, job_template: Path | None, runs: int | None) -> Iterator[DeployedObject]:
    """Create the pool `quantgate` and its queue `runs` if missing; set the pool's template and the queue's limit.

    Without a template the pool is a process pool. `runs` is the number of runs that may measure at a time, 1 for a new queue.

    Raises:
        JobError: the template is not a base job template, or is for another type of pool.
    """
    template = _read_template(job_template) if job_template else PROCESS_TEMPLATE
    kind = "kubernetes" if job_template else ProcessWorker.type
    path = f"/work-pools/work-pool/{POOL}"
    try:
        found = client.read_work_pool(POOL)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(name=POOL, type=kind, base_job_template=template, concurrency_limit=POOL_LIMIT)
        )
        yield DeployedObject(f"work pool {POOL}", "made", f"of type {kind}, limit {POOL_LIMIT}", path)
    else:
        if job_template and found.type != kind:
            raise JobError(
                found=f"the work pool {POOL} of type {found.type}",
                expected=f"type {kind}, which the template is for",
                fix=f"leave the template out, or delete the pool first: prefect work-pool delete {POOL}",
            )
        differs = found.type == kind and found.base_job_template != template
        if differs:
            client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=template))
        outcome = "changed" if differs else "as it was"
        yield DeployedObject(
            f"work pool {POOL}", outcome, f"of type {found.type}, limit {found.concurrency_limit}", path
        )
    yield _apply_queue(client, runs)


def check_process_pool() -> None:
    """Check that a process worker can serve the pool `quantgate`.

    Raises:
        InfrastructureError: the pool does not exist.
        JobError: the pool has another type.
    """
    with get_client(sync_client=True) as client:
        try:
            found = client.read_work_pool(POOL)
        except ObjectNotFound as error:
            raise InfrastructureError(
                found=f"no work pool {POOL}", expected="the pool of the deployments", fix="run `quantgate deploy`"
            ) from error
    if found.type != ProcessWorker.type:
        raise JobError(
            found=f"the work pool {POOL} of type {found.type}",
            expected=f"type {ProcessWorker.type}",
            fix=f"start its own kind of worker: prefect worker start --pool {POOL} --type {found.type}",
        )


def _apply_queue(client: SyncPrefectClient, runs: int | None) -> DeployedObject:
    try:
        queue = client.read_work_queue_by_name(RUNS_QUEUE, POOL)
        outcome, limit = "as it was", queue.concurrency_limit
    except ObjectNotFound:
        queue = client.create_work_queue(RUNS_QUEUE, concurrency_limit=runs or 1, work_pool_name=POOL)
        outcome, limit = "made", runs or 1
    if runs is not None and limit != runs:
        client.update_work_queue(queue.id, concurrency_limit=runs)
        outcome, limit = "changed", runs
    path = f"/work-pools/work-pool/{POOL}/queue/{RUNS_QUEUE}"
    return DeployedObject(f"work queue {POOL}/{RUNS_QUEUE}", outcome, f"{limit} at a time", path)


def _read_template(path: Path) -> dict[str, Any]:
    try:
        template = json.loads(path.read_text(encoding="utf-8"))
        if {"job_configuration", "variables"} <= template.keys():
            return dict(template)
        found = f"{path} with the keys {', '.join(template)}"
    except (OSError, ValueError, AttributeError) as error:
        found = f"{path}: {error}"
    raise JobError(
        found=found,
        expected="a base job template: job_configuration and variables",
        fix="see infra/kubernetes/job-template.json for an example",
    )


def zombie_automation(deployments: Collection[UUID], missing_seconds: float = MISSING_SECONDS) -> AutomationCore:
    """Return the automation that crashes a run without events for `missing_seconds`, 10 at least, after its first heartbeat.

    Covers only these deployments: other runs may send heartbeats less often. Any event of a run counts, not only heartbeats
    and `Completed`: our runs end in states with names of their own, and suspended runs send no heartbeats.
    """
    return _crash_after_silence("quantgate zombie runs", {"heartbeat"}, deployments, missing_seconds)


def stuck_automation(deployments: Collection[UUID], start_seconds: float = START_SECONDS) -> AutomationCore:
    """Return the automation that crashes a run without events for `start_seconds`, 10 at least, after a worker took it.

    A worker that is killed before it starts the run's process leaves the run `Pending`, in a slot of its queue.
    """
    taken = {"Pending", "Submitting", "InfrastructurePending"}
    return _crash_after_silence("quantgate stuck runs", taken, deployments, start_seconds)


def _crash_after_silence(name: str, after: set[str], deployments: Collection[UUID], seconds: float) -> AutomationCore:
    return AutomationCore(
        name=name,
        description=f"Crashes a run without events for {seconds:.0f} s; `prefect flow-run retry` resumes it.",
        trigger=EventTrigger(
            after={f"prefect.flow-run.{event}" for event in after},
            expect={"prefect.flow-run.*"},
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification(
                {
                    "prefect.resource.role": "deployment",
                    "prefect.resource.id": sorted(f"prefect.deployment.{one}" for one in deployments),
                }
            ),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=seconds),
        ),
        actions=[
            ChangeFlowRunState(
                name=None,
                state=StateType.CRASHED,
                message=f"No event for {seconds:.0f} s: its process and its worker are gone.",
                force=False,
            )
        ],
    )
