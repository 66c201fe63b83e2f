"""Workers of the service.

A target's worker publishes its inventory and takes the steps that runs hand to its pool, one at a time. A worker of the pool
`quantgate` takes the runs themselves, one at a time if they measure in their own process, and the other deployments.
"""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from flows.service.describe import target_rows
from flows.service.serve import Ready
from tasks.engines.catalog import absent_engines
from tasks.measure.inventory import take_inventory
from tasks.run.settings import check_server, hands_to_workers
from validators.child_environment import run_environment
from validators.errors import InfrastructureError, JobError
from validators.records.run import Inventory
from validators.targets import target_names

if TYPE_CHECKING:
    from prefect.workers.process import ProcessWorker

ENTRYPOINT = "flows.target_step.candidate"


def serve_worker(state: Path, target: str, pool: str | None, console: Console, ready: Ready) -> None:
    """Take steps of a target until SIGTERM or Ctrl-C; a step in progress is then ended and marked as crashed.

    Raises:
        JobError: there is no such target; its pool has another type; or its deployment has another pool.
        InfrastructureError: the target cannot run here, or there is no Prefect server that runs share.
    """
    inventory = check_worker(target)
    _settle(state)

    from prefect.workers.process import ProcessWorker

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
    # One at a time: another candidate's computation would distort the measured latency.
    _take_work(pool, console, ProcessWorker(work_pool_name=pool, name=name, limit=1))


def serve_runs(state: Path, console: Console, ready: Ready) -> None:
    """Take runs of the pool `quantgate` until SIGTERM or Ctrl-C; runs in progress are then ended and marked as crashed.

    Raises:
        JobError: the pool is not a process pool.
        InfrastructureError: there is no such pool, or no Prefect server.
    """
    check_server("that runs hand their work to")
    _settle(state)
    from prefect.workers.process import ProcessWorker

    from tasks.workers.run_pool import OTHERS_QUEUE, POOL, RUNS_QUEUE, check_process_pool
    from tasks.workers.target_pool import host_name

    check_process_pool()
    # The queue's limit counts the runs of all machines: without one of its own, the first worker that asks takes them all.
    limit = None if hands_to_workers() else 1
    runs = "as many runs as its queue allows" if limit is None else "one run at a time"
    console.print(f"pool    {POOL}, {runs}, and its other flows", highlight=False, markup=False)
    name = f"quantgate-worker-{host_name()}-runs-{os.getpid()}"
    ready({"pool": POOL, "worker": name})
    takes_runs = ProcessWorker(work_pool_name=POOL, name=name, work_queues=[RUNS_QUEUE], limit=limit)
    # What a person waits for must not wait behind a run.
    others = name.replace("-runs-", "-others-")
    takes_others = ProcessWorker(work_pool_name=POOL, name=others, work_queues=[OTHERS_QUEUE])
    _take_work(POOL, console, takes_runs, takes_others)


def _settle(state: Path) -> None:
    # Runs get the environment of the worker that starts them.
    for name in os.environ.keys() - run_environment(os.environ).keys():
        del os.environ[name]
    # The worker does its work in a process with another working directory.
    os.environ["QUANTGATE_STATE"] = str(state)
    state.mkdir(parents=True, exist_ok=True)


def _take_work(pool: str, console: Console, *workers: ProcessWorker) -> None:
    from tasks.workers.target_pool import give_up_work

    async def work() -> None:
        await asyncio.gather(*(worker.start(printer=console.print) for worker in workers))

    # A service manager sends SIGTERM; a process that a shell started in the background ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        for worker in workers:
            give_up_work(worker.name, pool)
        console.print("stopped", highlight=False)


def check_worker(target: str) -> Inventory:
    """Return the inventory of this machine for the target.

    Raises:
        JobError: there is no such target.
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
            expected="a machine that can run this target",
            fix="run `quantgate doctor` to see what is missing",
        )
    check_server("that runs hand their work to")
    inventory = take_inventory(target)
    return replace(inventory, absent=absent_engines(inventory))
