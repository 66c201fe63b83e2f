"""Tells a Prefect server of a new model version; an event told twice is one event."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import httpx
from deliveries import NewVersion

EVENT = "quantgate.model-version.created"
# Below MLflow's own 30 s: it must hear from us before it gives up and comes again.
TIMEOUT_SECONDS = 10.0
_NAMESPACE = uuid.UUID("5c0e6f1e-54a4-5a0c-8f43-9f2d3a1b7c60")


class PrefectDown(Exception):
    """The server does not take events now; the message says what it did."""


def event_of(delivery: str, found: NewVersion) -> dict[str, Any]:
    """The event of a delivery; its id is made of the delivery's, so that Prefect knows it again."""
    return {
        "id": str(uuid.uuid5(_NAMESPACE, delivery)),
        "event": EVENT,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {
            "prefect.resource.id": f"quantgate.model-version.{found.name}.{found.version}",
            "prefect.resource.name": f"{found.name} version {found.version}",
        },
        "payload": {"name": found.name, "version": found.version},
    }


class Prefect:
    """The events API of one server; `auth` is `user:password` where the server asks for it."""

    def __init__(self, api: str, auth: str | None) -> None:
        user, _, password = (auth or "").partition(":")
        self._client = httpx.AsyncClient(base_url=api, auth=(user, password) if auth else None, timeout=TIMEOUT_SECONDS)

    async def emit(self, event: dict[str, Any]) -> None:
        """Hand an event over.

        Raises:
            PrefectDown: it was not taken.
        """
        await self._ask("POST", "/events", json=[event])

    async def check(self) -> None:
        """Ask whether the server answers.

        Raises:
            PrefectDown: it does not.
        """
        await self._ask("GET", "/health")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def _ask(self, method: str, path: str, **content: Any) -> None:
        try:
            answer = await self._client.request(method, path, **content)
        except (httpx.HTTPError, OSError) as error:
            raise PrefectDown(type(error).__name__) from error
        if answer.status_code >= 300:
            raise PrefectDown(f"status {answer.status_code}")
