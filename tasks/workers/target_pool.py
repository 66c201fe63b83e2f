"""Objects that a target's worker creates on the Prefect server: its pool, deployment, concurrency limit and inventory."""

from __future__ import annotations

import os
import re
import socket
from typing import Any

from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate, VariableUpdate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema
from prefect.workers.process import ProcessWorker
from pydantic import TypeAdapter

from tasks.workers.deployments import read_deployment
from tasks.workers.device_limits import limit_of
from tasks.workers.order_tracking import WORKER_LABEL, variable_of
from tasks.workers.run_pool import PROCESS_TEMPLATE
from validators.errors import JobError
from validators.records.run import Inventory


def worker_name(inventory: Inventory) -> str:
    """Return a unique name of host, target, GPU and process; without the process it names the worker's variable."""
    gpu = f"-{inventory.gpu.uuid.removeprefix('GPU-')[:8].lower()}" if inventory.gpu else ""
    return f"quantgate-worker-{host_name()}-{inventory.target}{gpu}-{os.getpid()}"


def host_name() -> str:
    """Return this machine's name, in characters that Prefect allows in names."""
    return re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-")


def prepare_server(work: Flow[..., Any], entrypoint: str, pool: str, inventory: Inventory) -> None:
    """Create the missing objects and publish this worker's inventory; safe to repeat.

    `work` is the flow that the workers run, and `entrypoint` its dotted name: by file path, Prefect would import the file under
    another module name.

    Raises:
        JobError: the target's deployment has another pool, or the pool has another type.
    """
    with get_client(sync_client=True) as client:
        _ensure_pool(client, pool)
        _ensure_deployment(client, work, entrypoint, pool, inventory.target)
        client.upsert_global_concurrency_limit_by_name(limit_of(inventory), 1)
        _publish(client, inventory)


def give_up_work(worker: str, pool: str) -> None:
    """Mark the flow runs of a stopping worker as crashed and remove it from its pool, so that nobody waits for it."""
    busy = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
    )
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    with get_client(sync_client=True) as client:
        for found in client.read_flow_runs(flow_run_filter=busy, work_pool_filter=of_pool):
            if found.labels.get(WORKER_LABEL) == worker:
                state: Any = Crashed(message=f"the worker {worker} was stopped")
                client.set_flow_run_state(found.id, state, force=True)
        path = {"work_pool_name": pool, "name": worker}
        client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=path).raise_for_status()


def _ensure_pool(client: SyncPrefectClient, pool: str) -> None:
    try:
        client.create_work_pool(WorkPoolCreate(name=pool, type=ProcessWorker.type, base_job_template=PROCESS_TEMPLATE))
    except ObjectAlreadyExists as error:
        found = client.read_work_pool(pool)
        if found.type != ProcessWorker.type:
            raise JobError(
                found=f"the work pool {pool} of type {found.type}",
                expected=f"type {ProcessWorker.type}",
                fix="name another pool with --pool",
            ) from error
        if found.base_job_template != PROCESS_TEMPLATE:
            client.update_work_pool(pool, WorkPoolUpdate(base_job_template=PROCESS_TEMPLATE))


def _ensure_deployment(
    client: SyncPrefectClient, work: Flow[..., Any], entrypoint: str, pool: str, target: str
) -> None:
    name = f"{work.name}/{target}"
    found = read_deployment(client, work.name, target)
    if found is not None and found.work_pool_name not in (None, pool):
        raise JobError(
            found=f"the deployment {name} in the pool {found.work_pool_name}, not {pool}",
            expected="one pool per target",
            fix=f"start with --pool {found.work_pool_name}, or move it: prefect deployment delete {name}",
        )
    # Update an existing one as well: its parameters may be those of an older version.
    client.create_deployment(
        flow_id=client.create_flow(work),
        name=target,
        work_pool_name=pool,
        entrypoint=entrypoint,
        parameter_openapi_schema=parameter_schema(work).model_dump_for_openapi(),
        enforce_parameter_schema=False,
        description=f"Steps of quantgate's runs that must run on {target}.",
    )


def _publish(client: SyncPrefectClient, inventory: Inventory) -> None:
    name = variable_of(worker_name(inventory))
    value = TypeAdapter(Inventory).dump_json(inventory).decode()
    if client.read_variable_by_name(name) is None:
        client.create_variable(VariableCreate(name=name, value=value, tags=["quantgate-worker"]))
    else:
        client.update_variable(VariableUpdate(name=name, value=value, tags=["quantgate-worker"]))
