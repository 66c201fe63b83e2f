"""The MLflow and Prefect servers on the embedded state, as child processes of this one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from rich.console import Console

from tasks.settings import artifact_location, tracking_uri
from validators.errors import InfrastructureError

HOST = "127.0.0.1"
READY_SECONDS = 120.0


def serve_ui(state: Path, mlflow_port: int, prefect_port: int, console: Console) -> None:
    """Start both servers, print their addresses when they answer, wait for Ctrl-C, stop both.

    Raises:
        InfrastructureError: a port is taken, or a server does not start.
    """
    state.mkdir(parents=True, exist_ok=True)
    for name, port in (("MLflow", mlflow_port), ("Prefect", prefect_port)):
        if _answers(port):
            raise InfrastructureError(
                found=f"port {port} is taken",
                expected=f"a free port for {name}",
                fix="choose another with --mlflow-port, --prefect-port",
            )
    logs = state / "logs"
    logs.mkdir(exist_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    # A service manager ends it by SIGTERM; a shell that starts it in the background lets SIGINT be ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        for name, port, command in _commands(state, mlflow_port, prefect_port):
            with (logs / f"{name.lower()}.log").open("ab") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log, env=_environment()))
            _wait_until_ready(name, port, started[-1], logs)
            console.print(f"{name:<8} http://{HOST}:{port}", highlight=False)
        console.print("Ctrl-C stops both.", highlight=False)
        while all(server.poll() is None for server in started):
            time.sleep(0.5)
        raise InfrastructureError(
            found="a server ended by itself", expected="both to run", fix=f"read the logs in {logs}"
        )
    except KeyboardInterrupt:
        console.print("stopping", highlight=False)
    finally:
        for server in started:
            server.terminate()
        for server in started:
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _commands(state: Path, mlflow_port: int, prefect_port: int) -> list[tuple[str, int, list[str]]]:
    store = tracking_uri(state)
    mlflow = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", HOST]
    mlflow += ["--port", str(mlflow_port), "--workers", "1"]
    if location := artifact_location(store):
        mlflow += ["--default-artifact-root", location]
    prefect = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(prefect_port)]
    return [("MLflow", mlflow_port, mlflow), ("Prefect", prefect_port, prefect)]


def _environment() -> dict[str, str]:
    # Job execution would start workers of its own for features that are not used here: 20 s and 0.7 GB.
    environment = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PREFECT_UI_ENABLED": "true"}
    # Held in memory, what a worker holds would stay held for ever when the server is started anew.
    environment.setdefault(
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", "prefect.server.concurrency.lease_storage.filesystem"
    )
    return environment


def _wait_until_ready(name: str, port: int, server: subprocess.Popen[bytes], logs: Path) -> None:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and server.poll() is None:
        if _answers(port):
            return
        time.sleep(0.3)
    raise InfrastructureError(
        found=f"{name} did not start", expected=f"an answer on port {port}", fix=f"read {logs / f'{name.lower()}.log'}"
    )


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0
