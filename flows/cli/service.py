"""Commands of a deployment: servers, workers, the webhook and the Prefect deployments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.console import out, prepared, target_option, tell
from tasks.run.settings import state_folder
from validators.errors import EXIT_INFRASTRUCTURE, EXIT_OK
from validators.records.answer import CommandAnswer, Table

MlflowPort = Annotated[int, typer.Option(help="Port of the MLflow server.")]
PrefectPort = Annotated[int, typer.Option(help="Port of the Prefect server.")]


def ui(mlflow_port: MlflowPort = 5000, prefect_port: PrefectPort = 4200) -> None:
    """Start MLflow and Prefect servers on the embedded state.

    Prints their addresses once both answer; with --json as a document. Ctrl-C stops both.

    Example: quantgate ui
    """
    prepared()
    from flows.service.serve import serve_pages

    serve_pages(state_folder(), mlflow_port, prefect_port, out, _ready)


def serve(
    mlflow_port: MlflowPort = 5000,
    prefect_port: PrefectPort = 4200,
    receiver_port: Annotated[int, typer.Option(help="Port of the receiver of MLflow's webhook.")] = 4280,
) -> None:
    """Start the whole service on this machine.

    That is both servers, the receiver, the deployments and a worker. Prints the addresses; with --json as a document,
    once all are up. Ctrl-C stops all.

    Example: quantgate serve
    """
    prepared()
    from flows.service.serve import serve_all

    serve_all(state_folder(), mlflow_port, prefect_port, receiver_port, out, _ready)


def worker(
    target: Annotated[
        str | None,
        target_option("Target to work for; without it, the worker takes runs."),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(metavar="NAME", help="The Prefect work pool; quantgate-<target> by default.")
    ] = None,
) -> None:
    """Start a worker for runs, or for one target.

    Works until SIGTERM. Runs hand steps to a target's workers with QUANTGATE_DISPATCH=pools. Needs PREFECT_API_URL, and
    the state folder of the runs. Exit code 1: the target cannot run here; 2: no such target.

    Example: quantgate worker --target ort-cpu
    """
    prepared()
    from flows.service.worker import serve_runs, serve_worker

    if target is None:
        serve_runs(state_folder(), out, _ready)
    else:
        serve_worker(state_folder(), target, pool, out, _ready)


def webhook(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Address of the receiver: http(s)://.../webhook.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the webhook in the registry.")] = "quantgate",
    test: Annotated[bool, typer.Option(help="Make MLflow send a test event.")] = True,
) -> CommandAnswer:
    """Register the webhook that reports new versions.

    Without URL, only lists the webhooks. A webhook of the same name gets the URL and the first secret of
    QUANTGATE_WEBHOOK_SECRET. Exit code 1: the receiver does not accept the test event; 2: the registry refuses the
    webhook, or there is no secret.

    Example: quantgate webhook http://127.0.0.1:4280/webhook
    """
    prepared()
    from tasks.service.webhook import list_webhooks, register_webhook, try_webhook

    if url is not None:
        register_webhook(name, url)
    rows = list_webhooks()
    answered = try_webhook(name) if url is not None and test else None
    document = {"webhooks": [dict(zip(rows[0], row, strict=True)) for row in rows[1:]], "test": answered}
    return CommandAnswer(document, (Table(rows), *([answered] if answered else [])))


def deploy(
    job_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Base job template of a Kubernetes work pool; without it, a process pool."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="How many runs may measure at a time; 1 for a new pool.")
    ] = None,
) -> CommandAnswer:
    """Create what the service needs on the Prefect server.

    Creates or updates the pool, deployments and automations on the server of PREFECT_API_URL. What an operator switched
    off stays off. A flow that does not import is left out, and the exit code is 1.

    Example: quantgate deploy
    """
    prepared()
    from flows.service.deploy import deploy as apply

    done = apply(out, job_template, runs)
    return CommandAnswer(done, (), EXIT_INFRASTRUCTURE if any(made.outcome == "left out" for made in done) else EXIT_OK)


def _ready(document: Mapping[str, object]) -> None:
    """Print the document of a server that is up; its lines were printed while it started."""
    tell(CommandAnswer(document), indent=None)
