"""The service on one machine without containers: child processes of this one, on files of the state folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from flows.service.programs import RECEIVER, mlflow_server, prefect_api, prefect_server, quantgate, receiver
from tasks.service.generated_secrets import access_file, prefect_auth, secret
from tasks.service.prefect_app import SIGN_IN
from tasks.service.processes import HOST, Program, Programs

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
    if RECEIVER.is_dir():
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
            say(f"logs     {logs}")
            say(f"password {access_file(state)}")
            if console.is_terminal:
                say(f"sign in  {_sign_in(programs)}")
            say("Ctrl-C stops all.")
            ready({one.name.lower(): one.address for one in programs if one.port} | {"logs": logs})
            running.keep_alive(say)
    except KeyboardInterrupt:
        say("stopped")
