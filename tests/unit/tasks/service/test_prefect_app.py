"""The checks before Prefect's server: hosts, origins, the sign-in page, and the password that it must have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tasks.service.prefect_app import HEALTH, SIGN_IN, App, SameOriginOnly, create_app

HOSTS = {"127.0.0.1", "localhost", "[::1]", "prefect.example"}


async def _inner(scope: Any, _receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"prefect"})


def ask(path: str = "/api/flows", kind: str = "http", app: App | None = None, **headers: str) -> list[dict[str, Any]]:
    """Return the messages that a request gets."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        raise AssertionError("nothing is read before the checks")

    scope = {"type": kind, "path": path, "headers": [(k.encode(), v.encode()) for k, v in headers.items()]}
    asyncio.run((app or SameOriginOnly(_inner, HOSTS))(scope, receive, send))
    return sent


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "is_let_in"),
    [
        ({"host": "127.0.0.1:4200"}, True),
        ({"host": "localhost"}, True),
        ({"host": "[::1]:4200"}, True),
        ({"host": "prefect.example"}, True),
        ({"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:4200"}, True),
        ({"host": "prefect.example", "origin": "https://prefect.example"}, True),
        ({"host": "evil.example"}, False),
        ({"host": "evil.example:4200", "origin": "http://evil.example:4200"}, False),
        ({"host": "127.0.0.1.evil.example"}, False),
        ({"host": "127.0.0.1:4200", "origin": "https://evil.example"}, False),
        ({"host": "127.0.0.1:4200", "origin": "http://127.0.0.1:5000"}, False),
        ({"host": "127.0.0.1:4200", "origin": "http://localhost:4200"}, False),
        ({"host": "127.0.0.1:4200", "origin": "null"}, False),
        ({"host": ""}, False),
        ({}, False),
    ],
)
def test_only_known_hosts_and_own_pages_are_let_in(kind: str, headers: dict[str, str], is_let_in: bool) -> None:
    first = ask(kind=kind, **headers)[0]
    let_in = {"http": ("http.response.start", 200), "websocket": ("websocket.accept", None)}
    refused = {"http": ("http.response.start", 403), "websocket": ("websocket.close", None)}
    assert (first["type"], first.get("status")) == (let_in if is_let_in else refused)[kind]


def test_a_probe_of_a_pod_by_its_address_is_answered() -> None:
    """Kubernetes asks so; a page of another origin still may not."""
    assert ask(HEALTH, host="10.0.0.7:4200")[0]["status"] == 200
    assert ask(HEALTH, host="10.0.0.7:4200", origin="http://evil.example")[0]["status"] == 403
    assert ask(f"{HEALTH}/x", host="10.0.0.7:4200")[0]["status"] == 403
    assert ask(HEALTH, "websocket", host="10.0.0.7:4200")[0]["type"] == "websocket.close"


def test_the_sign_in_page_keeps_the_fragment_and_is_not_cached() -> None:
    start, body = ask(SIGN_IN, host="127.0.0.1")
    assert start["status"] == 200 and (b"cache-control", b"no-store") in start["headers"]
    assert b"location.hash" in body["body"] and b"prefect-password" in body["body"]
    assert ask(SIGN_IN, host="evil.example")[0]["status"] == 403


def test_a_start_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    message = {"type": "lifespan.startup.failed", "message": "Traceback\n  ...\nCommandError: no such revision\n"}

    async def inner(scope: Any, _receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        await send(message)

    assert ask(kind="lifespan", app=SameOriginOnly(inner, HOSTS)) == [message]
    assert capsys.readouterr().err == "Prefect did not start: CommandError: no such revision\n"


def test_no_server_starts_without_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_SERVER_API_AUTH_STRING", raising=False)
    with pytest.raises(SystemExit, match="PREFECT_SERVER_API_AUTH_STRING"):
        create_app()
