"""A gate before the MLflow server: passes requests on, and holds one that was named until somebody has acted on it.

What a client sees of a dead server it sees through the gate too: a connection that closes without an answer.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

HELD_SECONDS = 120.0
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


@dataclass(frozen=True)
class Request:
    """What a client asks for."""

    method: str
    path: str
    body: bytes


@dataclass
class Hold:
    """The first request that `matches` is held before it is passed on, or before its answer is."""

    matches: Callable[[Request], bool]
    moment: Literal["before", "after"]
    reached: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    answered: bool = True
    request: Request = field(init=False)


class Gate:
    """Listens on a port of its own for one server; `seen` is all that went through."""

    def __init__(self, port: int, server_port: int) -> None:
        self.port = port
        self.server_port = server_port
        self.seen: list[Request] = []
        self._hold: Hold | None = None
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What clients use in the server's place."""
        return f"http://127.0.0.1:{self.port}"

    def hold(self, matches: Callable[[Request], bool], moment: Literal["before", "after"]) -> Hold:
        """Hold the first request from now on that matches."""
        with self._lock:
            self._hold = Hold(matches, moment)
            return self._hold

    def release(self, *, answered: bool = True) -> None:
        """Let what is held go on, and hold nothing more; `answered` is False for a server that died before it could."""
        with self._lock:
            hold, self._hold = self._hold, None
        if hold is not None:
            hold.answered = answered
            hold.released.set()

    def close(self) -> None:
        """Stop to listen."""
        self.release()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _claim(self, request: Request) -> Hold | None:
        with self._lock:
            self.seen.append(request)
            hold = self._hold
            if hold is None or hold.reached.is_set() or not hold.matches(request):
                return None
            hold.request = request
            if hold.moment == "before":
                hold.reached.set()
            else:
                self._hold = None
            return hold

    def _restore(self, hold: Hold) -> None:
        with self._lock:
            self._hold = hold
        hold.reached.set()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                request = Request(self.command, self.path, body)
                hold = gate._claim(request)
                if hold is not None and hold.moment == "before":
                    hold.released.wait(HELD_SECONDS)
                try:
                    answer, content = self._asked(request)
                except (OSError, http.client.HTTPException):
                    self._hang_up()
                    return
                if hold is not None and hold.moment == "after":
                    gate._restore(hold)
                    hold.released.wait(HELD_SECONDS)
                    if not hold.answered:
                        self._hang_up()
                        return
                try:
                    self._answer(answer, content)
                except OSError:
                    self.close_connection = True  # the client has gone

            def _asked(self, request: Request) -> tuple[http.client.HTTPResponse, bytes]:
                server = http.client.HTTPConnection("127.0.0.1", gate.server_port, timeout=300)
                try:
                    headers = {key: value for key, value in self.headers.items() if key.lower() not in HOP_BY_HOP}
                    server.request(request.method, request.path, request.body, headers)
                    answer = server.getresponse()
                    return answer, answer.read()
                finally:
                    server.close()

            def _answer(self, answer: http.client.HTTPResponse, content: bytes) -> None:
                self.send_response_only(answer.status, answer.reason)
                for key, value in answer.getheaders():
                    if key.lower() not in HOP_BY_HOP:
                        self.send_header(key, value)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            def _hang_up(self) -> None:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _pass_on  # noqa: N815  # http.server's names

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's signature
                """Nothing: `seen` has it."""

        return Handler
