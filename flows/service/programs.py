"""The programs of the service on one machine: how each is started, and what it is told."""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.run.settings import artifact_location, tracking_uri
from tasks.service.generated_secrets import secret
from tasks.service.processes import HOST, Program

RECEIVER = Path(__file__).resolve().parents[2] / "infra" / "receiver"


def mlflow_server(state: Path, port: int) -> Program:
    """MLflow on a database file, with registry webhooks that may go to this machine."""
    store = tracking_uri(state)
    if not store.startswith("sqlite:"):
        # Told of a server, which this one then is.
        store = f"sqlite:///{state / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", store, "--host", HOST]
    command += ["--port", str(port), "--workers", "1", "--default-artifact-root", str(artifact_location(store))]
    environment = {
        # Job execution would start workers of its own for features that are not used here: 20 s and 0.7 GB.
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        # With another key, what is stored of a webhook's secret could not be read again.
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": secret(state, "mlflow-webhooks.key"),
    }
    return Program("MLflow", tuple(command), environment, port, "/health")


def prefect_server(port: int) -> Program:
    """Prefect on a database file."""
    command = (sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port))
    environment = {
        "PREFECT_UI_ENABLED": "true",
        # The pages ask port 4200 otherwise, whatever the server's own.
        "PREFECT_SERVER_UI_API_URL": f"http://{HOST}:{port}/api",
        # Held in memory, what a worker holds would stay held for ever when the server is started anew.
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    }
    return Program("Prefect", command, environment, port, "/api/health")


def receiver(state: Path, port: int, service: dict[str, str]) -> Program:
    """What MLflow tells of new versions."""
    command = (sys.executable, "-m", "uvicorn", "--app-dir", str(RECEIVER), "receiver:app", "--host", HOST)
    environment = service | {"QUANTGATE_RECEIVER_STATE": str(state / "receiver.sqlite")}
    return Program("Receiver", (*command, "--port", str(port)), environment, port, "/healthz")


def quantgate(name: str, arguments: tuple[str, ...], service: dict[str, str], *, ends: bool = False) -> Program:
    """One of our own commands."""
    return Program(name, (sys.executable, "-m", "flows.cli.app", *arguments), service, ends=ends)
