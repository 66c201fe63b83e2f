"""Deployment of the service to a Prefect server; safe to repeat."""

from __future__ import annotations

from pathlib import Path

from prefect.settings import get_current_settings
from prefect.workers.process import ProcessWorker
from rich.console import Console

from tasks.run.prefect_server import server_client
from tasks.run.settings import beside_the_packages, check_server
from tasks.workers.deployments import DeployedObject, apply_automation, apply_deployments
from tasks.workers.run_pool import (
    POD_START_SECONDS,
    POOL,
    START_SECONDS,
    apply_pool,
    stuck_automation,
    zombie_automation,
)


def deploy(console: Console, job_template: Path | None = None, runs: int | None = None) -> list[DeployedObject]:
    """Create or update the pool, deployments and automations on the server of `PREFECT_API_URL`, and print each outcome.

    Raises:
        InfrastructureError: no server is named, or it does not answer, or refuses.
        JobError: the pool exists, with another type than the template's.
    """
    check_server("to deploy to")
    with server_client() as client:
        done = [_print(console, made) for made in apply_pool(client, job_template, runs)]
        file = beside_the_packages("infra/prefect.yaml")
        done += [_print(console, made) for made in apply_deployments(client, file)]
        ours = [made.deployment for made in done if made.deployment]
        is_here = client.read_work_pool(POOL).type == ProcessWorker.type
        start_seconds = START_SECONDS if is_here else POD_START_SECONDS
        automations = (zombie_automation(ours), stuck_automation(ours, start_seconds))
        return [*done, *(_print(console, apply_automation(client, one)) for one in automations)]


def _print(console: Console, made: DeployedObject) -> DeployedObject:
    address = f"  {get_current_settings().ui_url or ''}{made.path}" if made.path else ""
    line = f"{made.outcome:<10} {made.name}{f': {made.detail}' if made.detail else ''}{address}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    return made
