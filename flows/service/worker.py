"""Workers. One of a target says what it has, and takes the work that runs hand to its pool, one at a time; one of the pool
`quantgate` takes the runs themselves, and what else is deployed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from rich.console import Console

from flows.service.describe import target_rows
from flows.service.serve import Ready
from tasks.measure.inventory import take_inventory
from tasks.run.settings import check_server
from validators.errors import InfrastructureError, JobError
from validators.records.run import Inventory
from validators.targets import target_names

ENTRYPOINT = "flows.target_step.candidate"


def serve_worker(state: Path, target: str, pool: str | None, console: Console, ready: Ready) -> None:
    """Take work for a target until SIGTERM or Ctrl-C; what is being done then is ended, and told so to whoever waits for it.

    Raises:
        JobError: no such target, or its pool is taken by something else.
        InfrastructureError: the target cannot run here, or there is no Prefect server that runs share.
    """
    inventory = check_worker(target)
    _settle(state)

    from flows.target_step import candidate
    from tasks.workers.device_limits import limit_of
    from tasks.workers.target_pool import prepare_server, worker_name

    pool = pool or f"quantgate-{inventory.target}"
    name = worker_name(inventory)
    prepare_server(candidate, ENTRYPOINT, pool, inventory)
    for line in (
        f"target  {target} on {inventory.device_key}",
        f"pool    {pool}, one at a time, alone on {limit_of(inventory)}",
    ):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    ready({"target": target, "device": inventory.device_key, "pool": pool, "worker": name})
    # One at a time: what another candidate computes meanwhile would be in the latency of the one that is timed.
    _take_work(pool, name, 1, console)


def serve_runs(state: Path, console: Console, ready: Ready) -> None:
    """Take what is due in the pool `quantgate` until SIGTERM or Ctrl-C; what is being done then is ended and marked as crashed.

    Raises:
        JobError: the pool is not one of processes.
        InfrastructureError: there is no such pool, or no Prefect server.
    """
    check_server("that runs hand their work to")
    _settle(state)
    from tasks.workers.run_pool import POOL, check_process_pool
    from tasks.workers.target_pool import host_name

    check_process_pool()
    console.print(f"pool    {POOL}, as much as it and its queues allow", highlight=False, markup=False)
    name = f"quantgate-worker-{host_name()}-runs-{os.getpid()}"
    ready({"pool": POOL, "worker": name})
    # No limit of its own: a worker with one ends ("this borrower is already holding one of this CapacityLimiter's tokens",
    # Prefect 3.8.8) when a run is tried again in the second in which its process was lost.
    _take_work(POOL, name, None, console)


def _settle(state: Path) -> None:
    # Work is done in a process with another working directory.
    os.environ["QUANTGATE_STATE"] = str(state)
    state.mkdir(parents=True, exist_ok=True)


def _take_work(pool: str, name: str, limit: int | None, console: Console) -> None:
    from prefect.workers.process import ProcessWorker

    from tasks.workers.target_pool import give_up_work

    # A service manager ends it by SIGTERM; a shell that starts it in the background lets SIGINT be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        asyncio.run(ProcessWorker(work_pool_name=pool, name=name, limit=limit).start(printer=console.print))
    except KeyboardInterrupt:
        give_up_work(name, pool)
        console.print("stopped", highlight=False)


def check_worker(target: str) -> Inventory:
    """The inventory of this machine for the target.

    Raises:
        JobError: no such target.
        InfrastructureError: the target cannot run here, or PREFECT_API_URL is not set.
    """
    if target not in target_names():
        raise JobError(
            found=f"target {target!r}", expected=f"one of {', '.join(target_names())}", fix="correct --target"
        )
    here, why = next((row[1], row[2]) for row in target_rows() if row[0] == target)
    if here != "yes":
        raise InfrastructureError(
            found=f"target {target} cannot run here: {why}",
            expected="a machine that can run what it is asked for",
            fix="`quantgate doctor` says what is missing",
        )
    check_server("that runs hand their work to")
    return take_inventory(target)
