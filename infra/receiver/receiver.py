"""Receives MLflow's registry webhook and tells Prefect of each new model version, once.

`python -m uvicorn --app-dir infra/receiver receiver:app`. No flow logic: the deployment that the event triggers decides what a
version starts. One process: two deliveries with one id wait for each other here.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from deliveries import NewVersion, Refused, check_signature, read_delivery, read_stamp
from prefect_events import Prefect, PrefectDown, event_of
from seen_deliveries import SeenDeliveries
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

# A version's tags and description come along; MLflow takes up to 100,000 characters a tag.
MAX_BODY_BYTES = 1024 * 1024
READ_SECONDS = 10.0
LEAST_SECRET = 16
# MLflow waits as long as it is told, three times: a Prefect server starts anew within that.
RETRY_AFTER_SECONDS = 20


@dataclass
class Receiver:
    """What deliveries are held against, and where they go."""

    secrets: tuple[str, ...]
    prefect: Prefect
    seen: SeenDeliveries
    in_flight: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def take(self, delivery: str, found: NewVersion) -> None:
        """Emit the event of a delivery, unless Prefect has it.

        Raises:
            Refused: it was taken before (409).
            PrefectDown: Prefect does not take it now.
        """
        async with self.in_flight.setdefault(delivery, asyncio.Lock()):
            if delivery in self.seen:
                raise Refused(409, "this delivery was taken before")
            await self.prefect.emit(event_of(delivery, found))
            # Only now: what Prefect has not got must stay welcome. After a death right here it comes again, as the same event.
            self.seen.add(delivery, time.time())


def settings() -> Receiver:
    """The receiver that the environment describes.

    Raises:
        SystemExit: a setting is missing, or a secret is too short.
    """
    secrets = tuple(part.strip() for part in os.environ.get("QUANTGATE_WEBHOOK_SECRET", "").split(",") if part.strip())
    if not secrets or min(map(len, secrets)) < LEAST_SECRET:
        raise SystemExit(f"QUANTGATE_WEBHOOK_SECRET: expected {LEAST_SECRET} characters or more (several: with commas)")
    api = os.environ.get("PREFECT_API_URL")
    if not api:
        raise SystemExit(
            "PREFECT_API_URL: expected the address of the Prefect server, such as http://127.0.0.1:4200/api"
        )
    state = Path(os.environ.get("QUANTGATE_RECEIVER_STATE", "receiver.sqlite"))
    return Receiver(secrets, Prefect(api, os.environ.get("PREFECT_API_AUTH_STRING")), SeenDeliveries(state))


async def receive(request: Request) -> JSONResponse:
    """Take one delivery in; every answer says in `detail` what became of it."""
    receiver: Receiver = request.app.state.receiver
    noted: dict[str, str] = {}
    try:
        found = await _checked(request, receiver, noted)
        if found.ignored:
            return _answer(200, f"ignored: {found.ignored}", noted)
        await receiver.take(noted["delivery"], found)
    except Refused as refused:
        return _answer(refused.status, refused.reason, noted)
    except PrefectDown as down:
        noted["prefect"] = str(down)
        return _answer(503, "Prefect does not take events now; send it again", noted)
    return _answer(200, "told Prefect", noted)


async def _checked(request: Request, receiver: Receiver, noted: dict[str, str]) -> NewVersion:
    """The version of a delivery that is signed and well formed; `noted` gains what a log line may show of it."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "expected application/json")
    stamp = read_stamp(request.headers)
    body = await _read_body(request)
    check_signature(stamp, body, receiver.secrets, time.time())
    noted["delivery"] = stamp.delivery
    found = read_delivery(body)
    noted |= {"model": found.name, "version": found.version}
    return found


async def _read_body(request: Request) -> bytes:
    """The body, as far as it is short and comes soon: what a header says of its length proves nothing.

    Raises:
        Refused: it is too long (413), takes too long (408), or ends early (400).
    """
    told = request.headers.get("content-length", "0")
    if not told.isdecimal() or int(told[:20]) > MAX_BODY_BYTES:
        raise Refused(413, f"more than {MAX_BODY_BYTES} bytes")
    body = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise Refused(413, f"more than {MAX_BODY_BYTES} bytes")
    except TimeoutError as error:
        raise Refused(408, f"the body did not come within {READ_SECONDS:.0f} s") from error
    except ClientDisconnect as error:
        raise Refused(400, "the body ended early") from error
    return bytes(body)


def _answer(status: int, detail: str, noted: dict[str, str]) -> JSONResponse:
    line = {"time": round(time.time(), 3), "status": status, "detail": detail, **noted}
    print(json.dumps(line), file=sys.stdout, flush=True)
    # An unread rest of a body must not be taken for the next request of the connection.
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if status == 503 else {}
    return JSONResponse({"detail": detail}, status, headers | ({"connection": "close"} if status in (408, 413) else {}))


async def healthz(_: Request) -> JSONResponse:
    """The process answers."""
    return JSONResponse({"detail": "alive"})


async def readyz(request: Request) -> JSONResponse:
    """Prefect answers too, so that a delivery could be taken now."""
    receiver: Receiver = request.app.state.receiver
    try:
        await receiver.prefect.check()
    except PrefectDown as down:
        return JSONResponse({"detail": f"Prefect does not answer: {down}"}, 503)
    return JSONResponse({"detail": "ready"})


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    app.state.receiver = receiver = settings()
    try:
        yield
    finally:
        await receiver.prefect.close()
        receiver.seen.close()


def create_app() -> Starlette:
    """The service; it reads its settings when it starts, not when it is imported."""
    routes = [
        Route("/webhook", receive, methods=["POST"]),
        Route("/healthz", healthz),
        Route("/readyz", readyz),
    ]
    return Starlette(routes=routes, lifespan=_lifespan)


app = create_app()
