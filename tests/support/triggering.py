"""What the tests of triggers share: the receiver as a process, deployments without a worker, and what came of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from stack import AUTH, Stack, answers, send, wait_until

ROOT = Path(__file__).parents[2]
SECRET, OLDER_SECRET = "a-secret-of-the-tests", "an-older-secret-of-theirs"
EVENT = "quantgate.model-version.created"
PARAMETERS = {"name": "{{ event.payload.name }}", "version": "{{ event.payload.version }}"}


def start_servers(stack: Stack) -> None:
    """Prefect with the deployments, MLflow that may send to this machine, and the receiver."""
    from cryptography.fernet import Fernet

    stack.start_mlflow(
        MLFLOW_WEBHOOK_ALLOWED_SCHEMES="http,https",
        MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS="true",
        MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY=Fernet.generate_key().decode(),
        MLFLOW_WEBHOOK_CACHE_TTL="1",
    )
    stack.start_prefect()
    deploy(stack)
    start_receiver(stack)


def deploy(stack: Stack) -> None:
    """The deployments by their names, and the trigger; `quantize` has no pool, so that its runs are made and stay scheduled."""
    stack.ask("/work_pools/", {"name": "quantgate", "type": "process"})
    pool = {"work_pool_name": "quantgate"}
    # Prefect copies the path for each run: a small one, and none with an environment in it.
    made = {
        name: stack.ask("/deployments/", {"name": name, "flow_id": stack.ask("/flows/", {"name": flow})["id"], **more})
        for flow, name, more in (
            ("quantize", "quantize-model", {}),
            (
                "new version",
                "webhook",
                pool | {"entrypoint": "flows.new_versions.new_version", "path": str(ROOT / "flows")},
            ),
        )
    }
    trigger = {"type": "event", "posture": "Reactive", "expect": [EVENT], "threshold": 1, "within": 0}
    action = {"type": "run-deployment", "deployment_id": made["webhook"]["id"], "parameters": PARAMETERS}
    stack.ask("/automations/", {"name": "new version", "trigger": trigger, "actions": [action]})


def receiver_of(stack: Stack) -> str:
    """The receiver's address."""
    return f"http://127.0.0.1:{stack.port('receiver')}"


def start_receiver(stack: Stack) -> None:
    """The receiver as a process, as it is deployed, between two secrets."""
    arguments = ["uvicorn", "--app-dir", str(ROOT / "infra" / "receiver"), "receiver:app"]
    arguments += ["--host", "127.0.0.1", "--port", str(stack.port("receiver")), "--no-access-log"]
    told = {"QUANTGATE_WEBHOOK_SECRET": f"{OLDER_SECRET},{SECRET}"}
    told["QUANTGATE_RECEIVER_STATE"] = str(stack.root / "receiver.sqlite")
    process = stack.start_python("receiver", *arguments, **told)
    wait_until(lambda: answers(f"{receiver_of(stack)}/healthz"), process)


def events(stack: Stack) -> list[dict[str, Any]]:
    """Every event of a new version that Prefect has."""
    page = stack.ask("/events/filter", {"filter": {"event": {"name": [EVENT]}}, "limit": 50})
    found: list[dict[str, Any]] = page["events"]
    while page["next_page"]:
        page = send("GET", page["next_page"], AUTH)
        found += page["events"]
    return found


def runs(stack: Stack, flow: str) -> list[dict[str, Any]]:
    """Every run of a flow."""
    found: list[dict[str, Any]] = []
    while True:
        body = {"flows": {"name": {"any_": [flow]}}, "limit": 200, "offset": len(found)}
        page = stack.ask("/flow_runs/filter", body)
        found += page
        if len(page) < 200:
            return found


def quantgate(stack: Stack, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A command of quantgate's."""
    command = [sys.executable, "-m", "flows.cli.app", *arguments]
    return subprocess.run(command, env=stack.settings(**extra), capture_output=True, text=True, check=False, cwd=ROOT)


def register(stack: Stack, name: str, tags: dict[str, str] | None = None, **model_tags: str) -> str:
    """A version of a registered model without files, as a user's script would make one; returns its number."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient(stack.registry, stack.registry)
    try:
        client.get_registered_model(name)
    except MlflowException:
        client.create_registered_model(name, tags=model_tags)
    return str(client.create_model_version(name, "s3://nowhere/at/all", tags=tags).version)
