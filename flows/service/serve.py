"""The service on one machine without containers: child processes of this one, on files of the state folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

from rich.console import Console

from tasks.registry.mlflow_runs import EXPERIMENT
from tasks.run.settings import artifact_location, beside_the_packages, tracking_uri
from tasks.service.generated_secrets import access_file, prefect_auth, secret
from tasks.service.prefect_app import SIGN_IN
from tasks.service.processes import HOST, Program, Programs

RECEIVER = beside_the_packages("infra/receiver")
# Called with the addresses once all programs are up.
Ready = Callable[[Mapping[str, object]], None]
_JOBS_README = (
    "Jobs of the service: every *.yaml here is one, for the model that its `source` names (docs/triggers.md).\n"
)


def serve_pages(state: Path, mlflow_port: int, prefect_port: int, console: Console, ready: Ready) -> None:
    """Run both servers, to view recorded runs, until SIGTERM or Ctrl-C; call `ready` once both answer.

    Raises:
        InfrastructureError: a port is taken, a server does not start, or dies too often.
    """
    _run(state, [mlflow_server(state, mlflow_port), prefect_server(state, prefect_port)], console, ready)


def serve_all(
    state: Path, mlflow_port: int, prefect_port: int, receiver_port: int, console: Console, ready: Ready
) -> None:
    """Run both servers, the deployments, the receiver with its webhook, and a worker, until SIGTERM or Ctrl-C.

    Raises:
        InfrastructureError: a port is taken, a program does not start, or dies too often.
    """
    service = service_environment(state, mlflow_port, prefect_port)
    prepare_jobs(Path(service["QUANTGATE_JOBS"]))
    signed = service | {
        "QUANTGATE_WEBHOOK_SECRET": os.environ.get("QUANTGATE_WEBHOOK_SECRET") or secret(state, "webhook")
    }
    programs = [mlflow_server(state, mlflow_port), prefect_server(state, prefect_port)]
    programs += [quantgate("Deploy", ("deploy",), service, ends=True)]
    url = f"http://{HOST}:{receiver_port}/webhook"
    programs += [receiver(state, receiver_port, signed)]
    programs += [quantgate("Webhook", ("webhook", url), signed, ends=True)]
    programs += [quantgate("Worker", ("worker",), service)]
    _run(state, programs, console, ready)


def service_environment(state: Path, mlflow_port: int, prefect_port: int) -> dict[str, str]:
    """Return the variables that every program of the service gets besides this process's environment."""
    api = prefect_api(prefect_port)
    return {
        "PREFECT_API_URL": api,
        "PREFECT_API_AUTH_STRING": prefect_auth(state, api),
        "MLFLOW_TRACKING_URI": f"http://{HOST}:{mlflow_port}",
        "QUANTGATE_STATE": str(state),
        "QUANTGATE_JOBS": os.environ.get("QUANTGATE_JOBS", str(state / "jobs")),
    }


def _sign_in(programs: list[Program]) -> str:
    """Return the address that signs a browser in to Prefect's pages."""
    prefect = next(one for one in programs if one.name == "Prefect")
    return f"{prefect.address}{SIGN_IN}#{prefect.environment['PREFECT_SERVER_API_AUTH_STRING']}"


def prepare_jobs(folder: Path) -> None:
    """Make the folder of job files, with a README of one line."""
    folder.mkdir(parents=True, exist_ok=True)
    readme = folder / "README.txt"
    if not readme.exists():
        readme.write_text(_JOBS_README, encoding="utf-8")


def _run(state: Path, programs: list[Program], console: Console, ready: Ready) -> None:
    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False, soft_wrap=True)

    logs = state / "logs"
    try:
        with Programs(logs) as running:
            running.start(programs, say)
            if page := runs_page(next(one.address for one in programs if one.name == "MLflow")):
                say(f"runs     {page}")
            say(f"logs     {logs}")
            say(f"password {access_file(state)}")
            if console.is_terminal:
                say(f"sign in  {_sign_in(programs)}")
            say("Ctrl-C stops all.")
            ready({one.name.lower(): one.address for one in programs if one.port} | {"logs": logs})
            running.keep_alive(say)
    except KeyboardInterrupt:
        say("stopped")


def runs_page(mlflow: str) -> str | None:
    """Return the address of MLflow's table of runs; None before the first run.

    MLflow opens an experiment on its pages for language models, which show no runs, unless the address says otherwise.
    """
    query = urlencode({"experiment_name": EXPERIMENT})
    try:
        with urlopen(f"{mlflow}/api/2.0/mlflow/experiments/get-by-name?{query}", timeout=10) as answer:  # noqa: S310 - http
            found = json.load(answer)["experiment"]["experiment_id"]
    except (OSError, ValueError, KeyError):
        return None
    return f"{mlflow}/#/experiments/{found}/runs?workflowType=machine_learning"


def mlflow_server(state: Path, port: int) -> Program:
    """Return MLflow on a database file, with registry webhooks that may call this machine."""
    store = tracking_uri(state)
    if not store.startswith("sqlite:"):
        # The tracking URI names a server, which will be this one; its database is in the state folder.
        store = f"sqlite:///{state / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", HOST]
    command += ["--port", str(port), "--workers", "1", "--default-artifact-root", str(artifact_location(store))]
    environment = {
        # Job execution would start workers for features that are not used here: 20 s and 0.7 GB.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        # With a new key, MLflow could not decrypt the webhook secrets that it stored.
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": secret(state, "mlflow-webhooks.key"),
    }
    return Program("MLflow", tuple(command), environment, port, "/health")


def prefect_server(state: Path, port: int) -> Program:
    """Return Prefect on a database file; its callers need the password that this state folder keeps."""
    command = (sys.executable, "-m", "uvicorn", "--factory", "tasks.service.prefect_app:create_app", "--host", HOST)
    environment = {
        "PREFECT_SERVER_API_AUTH_STRING": prefect_auth(state, prefect_api(port)),
        "PREFECT_UI_ENABLED": "true",
        # Otherwise the pages call port 4200, whatever the server's port.
        "PREFECT_SERVER_UI_API_URL": prefect_api(port),
        # Leases in memory are lost on a restart of the server, and slots that workers hold would never be freed.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    return Program("Prefect", (*command, "--port", str(port)), environment, port, "/api/health")


def prefect_api(port: int) -> str:
    """Return the address of the API of Prefect on this machine."""
    return f"http://{HOST}:{port}/api"


def receiver(state: Path, port: int, service: dict[str, str]) -> Program:
    """Return the receiver of MLflow's webhook."""
    command = (sys.executable, "-m", "uvicorn", "--app-dir", str(RECEIVER), "receiver:app", "--host", HOST)
    environment = service | {"QUANTGATE_RECEIVER_STATE": str(state / "receiver.sqlite")}
    return Program("Receiver", (*command, "--port", str(port)), environment, port, "/healthz")


def quantgate(name: str, arguments: tuple[str, ...], service: dict[str, str], *, ends: bool = False) -> Program:
    """Return one of quantgate's own commands as a program."""
    return Program(name, (sys.executable, "-m", "flows.cli.app", *arguments), service, ends=ends)
