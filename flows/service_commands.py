"""The commands of a deployment: servers, workers and what connects them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.console import fail, out, print_table
from tasks.settings import prepare_environment, state_folder
from validators.errors import QuantgateError

MlflowPort = Annotated[int, typer.Option(help="Port of the MLflow server.")]
PrefectPort = Annotated[int, typer.Option(help="Port of the Prefect server.")]


def ui(mlflow_port: MlflowPort = 5000, prefect_port: PrefectPort = 4200) -> None:
    """Start the MLflow and Prefect servers on the embedded state, print their addresses, stop both with Ctrl-C.

    Example: quantgate ui
    """
    state = state_folder()
    prepare_environment(state)
    from flows.serve import serve_pages

    try:
        serve_pages(state, mlflow_port, prefect_port, out)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error


def serve(
    mlflow_port: MlflowPort = 5000,
    prefect_port: PrefectPort = 4200,
    receiver_port: Annotated[int, typer.Option(help="Port of the receiver of MLflow's webhook.")] = 4280,
) -> None:
    """Start the whole service on this machine: both servers, the receiver, the deployments, a worker. Ctrl-C stops all.

    Example: quantgate serve
    """
    state = state_folder()
    prepare_environment(state)
    from flows.serve import serve_all

    try:
        serve_all(state, mlflow_port, prefect_port, receiver_port, out)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error


def worker(
    target: Annotated[
        str | None,
        typer.Option(help="Take the work of this target: ort-cpu, ort-cuda, tensorrt, ...; runs without it."),
    ] = None,
    pool: Annotated[
        str | None, typer.Option(metavar="NAME", help="The Prefect work pool; quantgate-<target> by default.")
    ] = None,
) -> None:
    """Take runs and what else is deployed, or the work that runs hand to a target (QUANTGATE_DISPATCH=pools), until SIGTERM.

    Needs PREFECT_API_URL, and the state folder of the runs. Exit code 1: the target cannot run here; 2: no such target.

    Example: quantgate worker --target ort-cpu
    """
    state = state_folder()
    prepare_environment(state)
    from flows.worker import serve_runs, serve_worker

    try:
        if target is None:
            serve_runs(state, out)
        else:
            serve_worker(state, target, pool, out)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error


def webhook(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Where the receiver takes deliveries: http(s)://.../webhook.")
    ] = None,
    name: Annotated[str, typer.Option(help="What the registry calls it.")] = "quantgate",
    test: Annotated[bool, typer.Option(help="Let the registry send its example to the receiver.")] = True,
) -> None:
    """Make the MLflow registry tell the receiver of each new model version; without URL, list what it tells to whom.

    As often as one likes: one of that name is changed to the URL and the first secret of QUANTGATE_WEBHOOK_SECRET. Exit code 1:
    the receiver did not answer the example as it should; 2: the registry cannot do it, or there is no secret.

    Example: quantgate webhook http://127.0.0.1:4280/webhook
    """
    prepare_environment(state_folder())
    from tasks.webhook import list_webhooks, register_webhook, try_webhook

    try:
        if url is not None:
            register_webhook(name, url)
        print_table(list_webhooks())
        if url is not None and test:
            out.print(try_webhook(name), highlight=False, markup=False)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error


def deploy(
    job_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Base job template of a Kubernetes work pool; processes without one."),
    ] = None,
    runs: Annotated[
        int | None, typer.Option(min=1, help="How many runs may measure at a time; 1 for a new pool.")
    ] = None,
) -> None:
    """Make work pool, deployments and automations on the Prefect server of PREFECT_API_URL, or bring them up to date.

    What an operator switched off stays off. A flow that does not import is left out, and the exit code is 1.

    Example: quantgate deploy
    """
    prepare_environment(state_folder())
    from flows.deploy import deploy as apply

    try:
        done = apply(out, job_template, runs)
    except QuantgateError as error:
        raise typer.Exit(fail(error)) from error
    raise typer.Exit(1 if any(made.outcome == "left out" for made in done) else 0)
