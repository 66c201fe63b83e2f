"""Deliveries to the webhook receiver, true ones among all that it must refuse, sent at once by a bounded number of senders."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import random
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

SENDERS = 12
# What a sender like MLflow does not take for an answer; the true one waits longer between tries.
AGAIN = (503, None)
TRIES, WAIT_SECONDS = 60, 1.0


@dataclass(frozen=True)
class Delivery:
    """What one request is made of, and the statuses that it may end in."""

    kind: str
    headers: dict[str, str]
    body: bytes
    expected: tuple[int, ...]
    chunked: bool = False


@dataclass
class Outcome:
    """The last status of each request, by delivery id for the true ones and their replays, else by kind."""

    by_id: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    by_kind: dict[str, list[int | None]] = field(default_factory=lambda: defaultdict(list))
    wrong: list[tuple[str, int | None]] = field(default_factory=list)


def payload(name: str, version: str = "1", **changes: Any) -> dict[str, Any]:
    """What MLflow sends of a created version."""
    data = {"name": name, "version": version, "source": "models:/m-1", "run_id": None, "tags": {}, "description": None}
    return {
        "entity": "model_version",
        "action": "created",
        "timestamp": "2026-11-22T00:00:00+00:00",
        "data": data | changes,
    }


def signed(secret: str, body: bytes, at: float | None = None, delivery: str | None = None) -> dict[str, str]:
    """The headers as MLflow makes them: an oracle written from its documentation, not from the receiver."""
    delivery, stamp = delivery or str(uuid.uuid4()), str(int(time.time() if at is None else at))
    signature = hmac.new(secret.encode(), f"{delivery}.{stamp}.".encode() + body, hashlib.sha256).digest()
    return {
        "Content-Type": "application/json",
        "X-MLflow-Delivery-Id": delivery,
        "X-MLflow-Timestamp": stamp,
        "X-MLflow-Signature": f"v1,{base64.b64encode(signature).decode()}",
    }


def true_one(secret: str, name: str, version: str = "1") -> Delivery:
    """A delivery that must start a run."""
    body = json.dumps(payload(name, version)).encode()
    return Delivery("true", signed(secret, body), body, (200, 409))


def _lies(secret: str) -> list[Callable[[random.Random], Delivery]]:
    """Makers of deliveries that must start nothing, each with the status that it deserves."""

    def forged(_: random.Random) -> Delivery:
        body = json.dumps(payload("forged")).encode()
        return Delivery("forged: another secret", signed("not-the-secret-at-all", body), body, (401,))

    def swapped(_: random.Random) -> Delivery:
        headers = signed(secret, json.dumps(payload("harmless")).encode())
        return Delivery("forged: another body", headers, json.dumps(payload("swapped")).encode(), (401,))

    def moved(_: random.Random) -> Delivery:
        body = json.dumps(payload("moved")).encode()
        headers = signed(secret, body) | {"X-MLflow-Delivery-Id": str(uuid.uuid4())}
        return Delivery("forged: another id", headers, body, (401,))

    def unsigned(rng: random.Random) -> Delivery:
        body = json.dumps(payload("unsigned")).encode()
        headers = signed(secret, body)
        headers.pop(rng.choice(["X-MLflow-Delivery-Id", "X-MLflow-Timestamp", "X-MLflow-Signature"]))
        return Delivery("forged: a header is missing", headers, body, (401,))

    def stale(rng: random.Random) -> Delivery:
        body = json.dumps(payload("stale")).encode()
        off = rng.choice([-1, 1]) * rng.randint(330, 10**6)
        return Delivery("stale or future", signed(secret, body, at=time.time() + off), body, (401,))

    def long(_: random.Random) -> Delivery:
        body = json.dumps(payload("long", description="x" * 1_100_000)).encode()
        return Delivery("oversized by length", signed(secret, body), body, (413, -1))

    def long_chunked(_: random.Random) -> Delivery:
        body = json.dumps(payload("chunked", description="x" * 1_100_000)).encode()
        return Delivery("oversized in chunks", signed(secret, body), body, (413, -1), chunked=True)

    def malformed(rng: random.Random) -> Delivery:
        whole = json.dumps(payload("malformed")).encode()
        body = rng.choice(
            [whole[:-3], b"", b"\xff\xfe{}", b"[" * 100_000, whole.replace(b'"1"', b"NaN"), b'{"a":1,"a":1}']
        )
        return Delivery("malformed", signed(secret, body), body, (400,))

    def wrong_types(rng: random.Random) -> Delivery:
        change: dict[str, Any] = rng.choice(
            [
                {"name": 7},
                {"name": "../../etc/passwd"},
                {"name": "two\nlines"},
                {"name": "x" * 300},
                {"name": ""},
                {"version": 1},
                {"version": "0"},
                {"version": "1; DROP TABLE"},
                {"version": "\uff11"},
                {"tags": ["quantgate.variant_digest"]},
                {"tags": {"a": 1}},
            ]
        )
        body = json.dumps(payload("wrong") | {"data": payload("wrong")["data"] | change}).encode()
        return Delivery("wrong types", signed(secret, body), body, (422,))

    def wrong_event(rng: random.Random) -> Delivery:
        told = payload("event") | rng.choice([{"entity": "registered_model"}, {"action": "deleted"}, {"entity": None}])
        body = json.dumps(told).encode()
        return Delivery("wrong event", signed(secret, body), body, (422,))

    def own(rng: random.Random) -> Delivery:
        body = json.dumps(payload(f"own-{rng.random()}", tags={"quantgate.variant_digest": "ab"})).encode()
        return Delivery("quantgate's own", signed(secret, body), body, (200,))

    def no_json(_: random.Random) -> Delivery:
        body = b"name=form"
        return Delivery("no JSON", signed(secret, body) | {"Content-Type": "text/plain"}, body, (415,))

    return [
        *(
            forged,
            swapped,
            moved,
            unsigned,
            stale,
            long,
            long_chunked,
            malformed,
            wrong_types,
            wrong_event,
            own,
            no_json,
        )
    ]


def make_flood(secret: str, n: int, true: int, seed: int, prefix: str) -> list[Delivery]:
    """`n` deliveries shuffled: `true` ones of models `<prefix>0` and on, each with a replay or two, and lies of all sorts."""
    rng = random.Random(seed)
    real = [true_one(secret, f"{prefix}{number}") for number in range(true)]
    replays = [one for one in real for _ in range(rng.randint(1, 2))]
    makers = _lies(secret)
    lies = [makers[number % len(makers)](rng) for number in range(n - len(real) - len(replays))]
    assert len(lies) >= len(makers), "not every kind is there: the test would prove less"
    flood = real + replays + lies
    rng.shuffle(flood)
    return flood


def send_flood(url: str, flood: list[Delivery], while_sending: Callable[[int], None] = lambda done: None) -> Outcome:
    """Send all, a few at a time; on 503, or when nobody answers, a sender comes again with the same delivery, as MLflow does.

    `while_sending` is called with the number of requests that are done.
    """
    return asyncio.run(_send_all(url, flood, while_sending))


async def _send_all(url: str, flood: list[Delivery], while_sending: Callable[[int], None]) -> Outcome:
    outcome, gate, done = Outcome(), asyncio.Semaphore(SENDERS), 0
    async with httpx.AsyncClient(timeout=30, trust_env=False) as client:

        async def one(delivery: Delivery) -> None:
            nonlocal done
            for _ in range(TRIES):
                async with gate:
                    status = await _send(client, url, delivery)
                if status not in AGAIN:
                    break
                await asyncio.sleep(WAIT_SECONDS)
            done += 1
            await asyncio.to_thread(while_sending, done)
            outcome.by_kind[delivery.kind].append(status)
            if delivery.kind == "true":
                outcome.by_id[delivery.headers["X-MLflow-Delivery-Id"]].append(status)
            if status not in delivery.expected:
                outcome.wrong.append((delivery.kind, status))

        await asyncio.gather(*(one(delivery) for delivery in flood))
    return outcome


async def _send(client: httpx.AsyncClient, url: str, delivery: Delivery) -> int | None:
    """The status; None where nobody listens, -1 where the connection was closed before the body was through."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(delivery.body), 65_536):
            yield delivery.body[start : start + 65_536]

    try:
        answer = await client.post(
            url, headers=delivery.headers, content=pieces() if delivery.chunked else delivery.body
        )
    except (httpx.ConnectError, httpx.ReadTimeout):
        return None
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        return -1 if delivery.kind.startswith("oversized") else None
    return answer.status_code
