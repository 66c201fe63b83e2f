"""The registry's webhook: MLflow tells the receiver of each new model version."""

from __future__ import annotations

import os
from typing import Any

from tasks.registry.mlflow_registry import connect, pages, registry_call, sent_once
from tasks.run.settings import registry_uri, state_folder, tracking_uri
from validators.errors import InfrastructureError, JobError

EVENT = "model_version.created"
_PAGE = 100


def register_webhook(name: str, url: str) -> None:
    """Create or update the webhook of this name with the URL, our event, and the first of `QUANTGATE_WEBHOOK_SECRET`.

    Raises:
        JobError: there is no secret, or the registry refuses the webhook.
        InfrastructureError: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    secret = os.environ.get("QUANTGATE_WEBHOOK_SECRET", "").partition(",")[0].strip()
    if not secret:
        raise JobError(
            found="no QUANTGATE_WEBHOOK_SECRET",
            expected="the receiver's secret: the receiver refuses unsigned requests",
            fix="set it to the receiver's secrets, the newest one first",
        )
    content: Any = {"url": url, "events": [EVENT], "secret": secret, "status": "ACTIVE"}
    with connect(_server()) as client:
        known = next((hook for hook in pages(client.list_webhooks, max_results=_PAGE) if hook.name == name), None)
        try:
            if known is None:
                with sent_once():
                    registry_call(client.create_webhook, name, **content)
            else:
                registry_call(client.update_webhook, known.webhook_id, **content)
        except MlflowException as error:
            raise JobError(
                found=f"the registry refuses the webhook {url}: {str(error).splitlines()[0][:300]}",
                expected="an address that the MLflow server may call",
                fix="on one machine the MLflow server needs MLFLOW_WEBHOOK_ALLOWED_SCHEMES=http,https and "
                "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS=true; see docs/triggers.md",
            ) from error


def list_webhooks() -> list[tuple[str, ...]]:
    """Return rows of name, URL, events and status, under a header; MLflow does not reveal the secrets.

    Raises:
        JobError: the registry is not a server.
        InfrastructureError: the registry does not answer.
    """
    with connect(_server()) as client:
        rows = [
            (
                hook.name,
                hook.url,
                ", ".join(f"{event.entity}.{event.action}" for event in hook.events),
                str(hook.status),
            )
            for hook in pages(client.list_webhooks, max_results=_PAGE)
        ]
    return [("webhook", "url", "events", "status"), *rows]


def try_webhook(name: str) -> str:
    """Make the registry send a test event, and return the receiver's answer.

    Raises:
        InfrastructureError: the receiver did not answer, or refused.
    """
    with connect(_server()) as client:
        hook = next(hook for hook in pages(client.list_webhooks, max_results=_PAGE) if hook.name == name)
        done: Any = registry_call(client.test_webhook, hook.webhook_id)
    if not done.success:
        said = done.error_message or f"status {done.response_status}: {done.response_body}"
        raise InfrastructureError(
            found=f"the receiver at {hook.url} did not accept the registry's test event: {said[:300]}",
            expected="status 200",
            fix="check that the receiver runs, can be reached from the MLflow server, and knows the same secret",
        )
    return f"the receiver answers: {done.response_body}"


def _server() -> str:
    """Return the tracking URI, if the registry is a server."""
    tracking = tracking_uri(state_folder())
    uri = registry_uri(tracking)
    if not uri.startswith(("http://", "https://")):
        raise JobError(
            found=f"the registry {uri}",
            expected="an MLflow server: a database alone sends no events",
            fix="set MLFLOW_TRACKING_URI, or MLFLOW_REGISTRY_URI, to the server's address",
        )
    return tracking
