"""The Prefect server behind checks of host and origin: `uvicorn --factory tasks.service.prefect_app:create_app`.

Prefect checks neither the Host header nor the origin of a request. Without these checks a page of another site, opened in a
browser that reaches the server, could use the server, by its address or by a name that it binds to this address.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Probes of a cluster name the address of a pod; the answer holds nothing.
HEALTH = "/api/health"
SIGN_IN = "/sign-in"
# Prefect's pages keep the secret of the API under this name. The fragment of an address is not sent to servers.
_SIGN_IN_PAGE = b"""<!doctype html><title>quantgate: sign in</title><script>
localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
location.replace("/");
</script>"""


def create_app() -> App:
    """Return Prefect's server behind the checks; hosts are the names in `QUANTGATE_PREFECT_HOSTS`, and loopback addresses.

    Raises:
        SystemExit: `PREFECT_SERVER_API_AUTH_STRING` is not set: every caller could start runs.
    """
    if not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise SystemExit("PREFECT_SERVER_API_AUTH_STRING: expected user:password, which clients must send")
    from prefect.server.api.server import create_app as prefect_app

    named = os.environ.get("QUANTGATE_PREFECT_HOSTS", "").split(",")
    return SameOriginOnly(prefect_app(), {"127.0.0.1", "localhost", "[::1]", *(name.strip() for name in named if name)})


class SameOriginOnly:
    """ASGI middleware that refuses requests to other hosts, and those of pages of another origin."""

    def __init__(self, app: App, hosts: set[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by 403 or the sign-in page, or hand it on."""
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, _failures_printed(send))
        why = self._refusal(scope)
        if why:
            return await _answer(scope, send, 403, f"{why}\n".encode(), b"text/plain")
        if scope["path"] == SIGN_IN:
            return await _answer(scope, send, 200, _SIGN_IN_PAGE, b"text/html")
        return await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return "a page of another origin may not use this server"
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name not in self._hosts and (scope["type"], scope["path"]) != ("http", HEALTH):
            return "this host name is not in QUANTGATE_PREFECT_HOSTS"
        return ""


def _failures_printed(send: Send) -> Send:
    """Print why a start fails: commands silence Prefect's logger."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "lifespan.startup.failed":
            reason = str(message.get("message", "")).strip().rpartition("\n")[2]
            sys.stderr.write(f"Prefect did not start: {reason}\n")
        await send(message)

    return sent


async def _answer(scope: Scope, send: Send, status: int, body: bytes, kind: bytes) -> None:
    if scope["type"] == "websocket":
        # Before it is accepted, a close is an answer of 403.
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [
        (b"content-type", kind + b"; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
