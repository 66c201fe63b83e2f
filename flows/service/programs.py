"""The programs of the service on one machine: the command and environment of each."""

from __future__ import annotations

import sys
from pathlib import Path

from tasks.run.settings import artifact_location, tracking_uri
from tasks.service.generated_secrets import prefect_auth, secret
from tasks.service.processes import HOST, Program

RECEIVER = Path(__file__).resolve().parents[2] / "infra" / "receiver"


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
