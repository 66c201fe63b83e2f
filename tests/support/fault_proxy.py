"""A proxy before a real server that breaks what passes: by rates that a seed fixes, or by a plan of single calls."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# What each fault does: to the request, to the answer, or to the connection. "lost" faults come after the server did its part.
FAULTS = (
    "500",
    "503",
    "500, done",
    "reset",
    "lost",
    "reset in body",
    "truncated",
    "flipped answer",
    "flipped request",
    "stalled",
    "stalled in body",
    "late duplicate",
    "two answers",
)
# The ways in which a plan fails a call; "hang" holds it until the client gives up.
WAYS = ("500", "500, done", "429", "reset", "lost", "hang")
_ERROR = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>planted</Message></Error>"


class Call(NamedTuple):
    """The n-th request of a method to a path, of which ids, digests and the query are left out; n starts at 1."""

    method: str
    path: str
    nth: int


@dataclass
class FaultProxy:
    """`rates` is the chance of each fault a request, and `plan` the fault of single calls; other requests pass as they are.

    `calls` has every call since the last `follow` that `counts` is true of, given the head of its request, and `failed` those
    that met their fault of the plan. `names` are left out of paths, too.
    """

    upstream: int
    rates: Mapping[str, float]
    seed: int
    counts: Callable[[bytes], bool] = field(default=lambda _: True)
    plan: Mapping[Call, str] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    calls: list[Call] = field(default_factory=list)
    failed: list[Call] = field(default_factory=list)
    stall_seconds: float = 6.0
    met: Counter[str] = field(default_factory=Counter)
    port: int = 0
    paused: bool = False
    # The loop itself has weak references alone: a task that waits would be collected.
    _tasks: set[asyncio.Task[Any] | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._draw = random.Random(self.seed)
        self._ready = threading.Event()
        self._loop: Any = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def endpoint(self) -> str:
        """Where clients go."""
        return f"http://127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        async with server:
            await self._end.wait()
        await self._end_all()

    async def _end_all(self) -> None:
        """Cancel what is under way until nothing is: a connection that was just accepted begins while others are cancelled."""
        while under_way := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in under_way:
                task.cancel()
            await asyncio.wait(under_way)
            await asyncio.sleep(0)

    def close(self) -> None:
        """Stop listening."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(30)

    def follow(self, plan: Mapping[Call, str], *names: str) -> None:
        """Fail the calls of a plan, counted from now on."""
        self.calls, self.failed, self.names, self.plan = [], [], names, plan

    def _fault(self, head: bytes) -> str:
        if self.paused:
            return "none"
        if self.counts(head):
            method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
            path = plain_path(target, *self.names)
            call = Call(method, path, 1 + sum(call[:2] == (method, path) for call in self.calls))
            self.calls.append(call)
            if call in self.plan:
                self.failed.append(call)
                return self.plan[call]
        at, so_far = self._draw.random(), 0.0
        for fault, rate in self.rates.items():
            so_far += rate
            if at < so_far:
                return fault
        return "none"

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                while not self._end.is_set() and await self._exchange(reader, writer):
                    pass
        except asyncio.CancelledError:
            # The proxy is closed: what clients have kept open is over.
            writer.transport.abort()
        await _closed(writer)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; False when the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        if b"expect: 100-continue" in head.lower():
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"expect:"))
        is_chunked = b"transfer-encoding: chunked" in head.lower()
        body = await _chunks(reader) if is_chunked else await reader.readexactly(_length(head))
        fault = self._fault(head)
        self.met[fault] += 1
        if fault in ("500", "503", "429"):
            return await _say(writer, _error(int(fault)))
        if fault == "hang":
            await reader.read()
            return False
        if fault == "reset":
            return _reset(writer)
        if fault == "stalled":
            await asyncio.sleep(self.stall_seconds)
            return _reset(writer)
        if fault == "flipped request":
            body = self._flip(body)
        if b"upgrade: websocket" in head.lower() and fault not in ("500, done", "lost"):
            return await self._tunnel(reader, writer, head)
        answer_head, answer = await self._ask(head, body)
        if fault == "late duplicate":
            asyncio.get_running_loop().call_later(self._draw.uniform(0.02, 0.5), self._repeat, head, body)
        return await self._answer(writer, fault, answer_head, answer)

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes) -> bool:
        """Pass on what both sides of a WebSocket say until one of them is done."""
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            server_writer.write(head)
            ways = [_copy(reader, server_writer), _copy(server_reader, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        finally:
            await _closed(server_writer)
        return False

    async def _answer(self, writer: asyncio.StreamWriter, fault: str, head: bytes, body: bytes) -> bool:
        if fault == "500, done":
            return await _say(writer, _error(500))
        if fault == "lost":
            return _reset(writer)
        cut = self._draw.randrange(len(body)) if body else 0
        if fault in ("reset in body", "truncated", "stalled in body"):
            await _say(writer, head + body[:cut])
            if fault == "stalled in body":
                await asyncio.sleep(self.stall_seconds)
            return _reset(writer) if fault == "reset in body" else False
        if fault == "flipped answer":
            body = self._flip(body)
        return await _say(writer, (head + body) * (2 if fault == "two answers" else 1))

    def _flip(self, body: bytes) -> bytes:
        """One bit of it, if it has any."""
        if not body:
            return body
        at = self._draw.randrange(len(body))
        return body[:at] + bytes([body[at] ^ 1 << self._draw.randrange(8)]) + body[at + 1 :]

    def _repeat(self, head: bytes, body: bytes) -> None:
        if not self._end.is_set():
            self._tasks.add(asyncio.ensure_future(self._ask(head, body)))

    async def _ask(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """The server's answer, over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream, limit=2**22)
        try:
            writer.write(head + body)
            await writer.drain()
            answer = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"HEAD") or answer[9:12] in (b"101", b"204", b"304"):
                return answer, b""
            if b"transfer-encoding: chunked" in answer.lower():
                return answer, await _chunks(reader)
            return answer, await reader.readexactly(_length(answer))
        finally:
            await _closed(writer)


@contextlib.contextmanager
def faults(
    upstream: int, rates: Mapping[str, float], seed: int, counts: Callable[[bytes], bool] = lambda _: True
) -> Iterator[FaultProxy]:
    """A proxy for the length of the block."""
    proxy = FaultProxy(upstream, rates, seed, counts)
    proxy._thread.start()
    assert proxy._ready.wait(30)
    try:
        yield proxy
    finally:
        proxy.close()


def evenly(rate: float) -> dict[str, float]:
    """Every fault as often as any other, stalls, which cost seconds, a fifth as often."""
    weights = {fault: 0.2 if fault.startswith("stalled") else 1.0 for fault in FAULTS}
    return {fault: rate * weight / sum(weights.values()) for fault, weight in weights.items()}


def plain_path(target: str, *names: str) -> str:
    """Return the path of a request without its query, ids, digests and `names`."""
    path = re.sub("|".join(map(re.escape, names)), "*", target.split("?")[0]) if names else target.split("?")[0]
    return re.sub(r"(?i)m-[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\b[0-9a-f]{10,}\b", "*", path)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


async def _chunks(reader: asyncio.StreamReader) -> bytes:
    """A chunked body as it is."""
    told = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        told += line + await reader.readexactly(int(line, 16) + 2)
        if int(line, 16) == 0:
            return told


def _error(status: int) -> bytes:
    body = _ERROR % (b"SlowDown" if status == 503 else b"InternalError")
    retry = b"Retry-After: 1\r\n" if status == 429 else b""
    return b"HTTP/1.1 %d Planted\r\n%sContent-Length: %d\r\n\r\n" % (status, retry, len(body)) + body


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(2**16):
            writer.write(data)
            await writer.drain()


async def _say(writer: asyncio.StreamWriter, data: bytes) -> bool:
    writer.write(data)
    await writer.drain()
    return True


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection, and wait until it is: a loop that ends before leaves its socket open."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _reset(writer: asyncio.StreamWriter) -> bool:
    """End the connection by RST: what was sent and not read yet is lost too."""
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False
