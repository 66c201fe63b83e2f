"""All that the service needs on a Prefect server, made by one command that may be run as often as one likes."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings
from rich.console import Console

from tasks.deployments import Made, apply_automation, apply_deployments, deployment_file
from tasks.run_pool import apply_pool, zombie_automation
from validators.errors import InfrastructureError


def deploy(console: Console, job_template: Path | None = None, runs: int | None = None) -> list[Made]:
    """Make the pool, the deployments and the automations on the server of `PREFECT_API_URL`, and print what came of each.

    Raises:
        InfrastructureError: no server is named, or it does not answer, or refuses.
        JobError: the pool is there and of another type than the template.
    """
    if not os.environ.get("PREFECT_API_URL"):
        raise InfrastructureError(
            found="no PREFECT_API_URL",
            expected="the address of the Prefect server to deploy to",
            fix="`quantgate serve` starts one and deploys to it; else set PREFECT_API_URL=http://.../api",
        )
    try:
        with get_client(sync_client=True) as client:
            done = [_print(console, made) for made in apply_pool(client, job_template, runs)]
            done += [_print(console, made) for made in apply_deployments(client, deployment_file())]
            ours = [made.deployment for made in done if made.deployment]
            return [*done, _print(console, apply_automation(client, zombie_automation(ours)))]
    except PrefectHTTPStatusError as error:
        raise InfrastructureError(
            found=f"the Prefect server refuses: {error.response.status_code} {error.response.text[:300]}",
            expected="a server of the version that quantgate is pinned to",
            fix="compare `prefect version` with the server's",
        ) from error
    except httpx.TransportError as error:
        raise InfrastructureError(
            found=f"no answer at {os.environ['PREFECT_API_URL']}: {error}",
            expected="a Prefect server",
            fix="check PREFECT_API_URL, and that the server runs",
        ) from error


def _print(console: Console, made: Made) -> Made:
    address = f"  {get_current_settings().ui_url or ''}{made.path}" if made.path else ""
    line = f"{made.outcome:<10} {made.name}{f': {made.detail}' if made.detail else ''}{address}"
    console.print(line, highlight=False, markup=False, soft_wrap=True)
    return made
