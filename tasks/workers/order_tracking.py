"""Orders as Prefect flow runs: find the workers of a target, submit orders, and wait until they end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, WorkerStatus
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling
from pydantic import TypeAdapter

from tasks.run.context import Run, log
from tasks.workers.orders import Order
from validators.errors import InfrastructureError, StorageFull, WorkLost
from validators.job.job import Job
from validators.records.run import Inventory

FLOW = "candidate"
# Patience counts these seconds between two looks, and not how long a look takes: while the server does not answer, it records
# no heartbeat of a living worker either.
POLL_SECONDS = 1.0
WORKER_LABEL = "prefect.worker.name"


def variable_of(worker: str) -> str:
    """Return the Prefect variable with the inventory of a worker: the worker's name without its process id.

    >>> variable_of("quantgate-worker-host-ort-cpu-4711")
    'quantgate-worker-host-ort-cpu'
    """
    return worker.rpartition("-")[0]


def published_inventory(target: str, patience_seconds: float) -> Inventory:
    """Return the inventory that the workers of a target publish.

    Raises:
        InfrastructureError: after `patience_seconds` the target still has no worker, or it has several kinds of devices.
    """
    waited_seconds = 0.0
    with get_client(sync_client=True) as client:
        while not (found := _inventories(client, target)):
            if waited_seconds >= patience_seconds:
                raise no_worker(target, patience_seconds)
            time.sleep(POLL_SECONDS)
            waited_seconds += POLL_SECONDS
    kinds = sorted({inventory.device_key for inventory in found})
    if len(kinds) > 1:
        raise InfrastructureError(
            found=f"workers of {target} on devices of {len(kinds)} kinds: {' | '.join(kinds)}",
            expected="one kind of device per pool: an approval is for one device, and latencies do not compare across devices",
            fix="stop the workers of one kind, or give them their own Prefect server",
        )
    return found[0]


def no_worker(target: str, seconds: float) -> InfrastructureError:
    """Return the error for a target without workers."""
    return InfrastructureError(
        found=f"no worker of {target} for {seconds:.0f} s",
        expected="a worker that is online in the target's pool",
        fix=f"start a worker: quantgate worker --target {target}",
    )


@dataclass
class _Handed:
    """A submitted order, its flow run, for how long it has had no worker online, and since when (monotonic) it runs."""

    order: Order
    target: str
    flow_run: UUID | None
    unattended_seconds: float | None = None
    running_since: float | None = None
    failure: InfrastructureError | None = None
    ended: bool = field(default=False)


def hand_over(job: Job, orders: Iterable[Order]) -> list[_Handed]:
    """Submit each order as a flow run of `candidate/<target>`; an order has none if no worker made that deployment yet."""
    handed, target = [], job.target
    for order in orders:
        parameters = {"job": job.model_dump(mode="json"), "order": asdict(order)}
        flow_run: Any = None
        try:
            flow_run = run_deployment(
                f"{FLOW}/{target}",
                parameters=parameters,
                timeout=0,
                as_subflow=True,
                # Prefect's client repeats a request whose answer was lost; by this key the server returns the same flow run.
                idempotency_key=os.urandom(16).hex(),
            )
            log.info("%s: submitted to the workers of %s", order.label, target)
        except ObjectNotFound:
            log.warning("%s: no worker of %s has registered yet", order.label, target)
        handed.append(_Handed(order, target, flow_run.id if flow_run else None))
    return handed


def wait_for(run: Run, handed: list[_Handed], patience_seconds: float) -> dict[str, InfrastructureError | None]:
    """Wait until all orders end; return the failure or None by the order's answer key. On an exception, cancel the rest."""
    with get_client(sync_client=True) as client:
        try:
            while left := [one for one in handed if not one.ended]:
                online = _online(client, run.job.target)
                for one in left:
                    _look(client, run, one, online, patience_seconds)
                if any(not one.ended for one in handed):
                    time.sleep(POLL_SECONDS)
        finally:
            for one in handed:
                if not one.ended:
                    _cancel(client, one, "the run that submitted it has ended")
    return {one.order.answer: one.failure for one in handed}


def _look(client: SyncPrefectClient, run: Run, one: _Handed, online: set[str], patience_seconds: float) -> None:
    """Record that an order has ended, or a reason to stop waiting for it."""
    now = time.monotonic()
    found = client.read_flow_run(one.flow_run) if one.flow_run else None
    if found is not None and found.state is not None and found.state.is_final():
        one.ended = True
        one.failure = None if found.state.is_completed() else _failed(one, found)
        return
    worker = found.labels.get(WORKER_LABEL) if found is not None else None
    attended = worker in online if worker else bool(online)
    before = one.unattended_seconds
    one.unattended_seconds = None if attended else 0.0 if before is None else before + POLL_SECONDS
    running = found is not None and found.state is not None and found.state.is_running()
    one.running_since = (one.running_since or now) if running else None
    budget = run.job.budgets.seconds
    if one.unattended_seconds is not None and one.unattended_seconds >= patience_seconds:
        one.failure = _died(one, str(worker)) if worker else no_worker(one.target, patience_seconds)
    elif worker is None and run.clock.spent_seconds > budget:
        one.failure = _late(one, f"the budget of {budget:.0f} s was spent before a worker of {one.target} was free")
    elif one.running_since is not None and now - one.running_since > budget:
        one.failure = _late(one, f"the step has run for {budget:.0f} s on {worker}")
    if one.failure is not None:
        one.ended = True
        _cancel(client, one, one.failure.found)


def _failed(one: _Handed, found: FlowRun) -> InfrastructureError:
    assert found.state is not None
    is_full = found.state.name == StorageFull.__name__
    kind = WorkLost if found.state.is_crashed() else StorageFull if is_full else InfrastructureError
    return kind(
        found=f"the flow run on a worker of {one.target} ended as {found.state.name}: {found.state.message or 'no message'}",
        expected="a flow run that completes",
        fix=f"read the log of the flow run {found.name} in the Prefect UI, and run again: finished work is kept",
    )


def _died(one: _Handed, worker: str) -> InfrastructureError:
    return WorkLost(
        found=f"the worker {worker} took the order, and has sent no heartbeat since",
        expected="a worker that stays online until its work is done",
        fix=f"read its log, start it again (quantgate worker --target {one.target}), and run again: finished work is kept",
    )


def _late(one: _Handed, found: str) -> InfrastructureError:
    return InfrastructureError(
        found=found,
        expected="a step that ends within the job's budget",
        fix=f"raise `budgets.seconds`, or start more workers of {one.target}",
    )


def _cancel(client: SyncPrefectClient, one: _Handed, reason: str) -> None:
    """Cancel an order: a worker that runs it ends it; otherwise none will start it."""
    if one.flow_run is None:
        return
    state: Any = Cancelling(message=reason) if one.running_since is not None else Cancelled(message=reason)
    client.set_flow_run_state(one.flow_run, state, force=True)


def _online(client: SyncPrefectClient, target: str) -> set[str]:
    """Return the names of the workers that Prefect lists as online in the pool of a target's deployment."""
    try:
        pool = client.read_deployment_by_name(f"{FLOW}/{target}").work_pool_name
        workers = client.read_workers_for_work_pool(pool) if pool else []
    except ObjectNotFound:
        return set()
    return {worker.name for worker in workers if worker.status == WorkerStatus.ONLINE}


def _inventories(client: SyncPrefectClient, target: str) -> list[Inventory]:
    found = []
    for name in sorted({variable_of(worker) for worker in _online(client, target)}):
        variable = client.read_variable_by_name(name)
        if variable is not None:
            found.append(TypeAdapter(Inventory).validate_json(str(variable.value)))
    return found
