"""The proxy fails exactly the calls of its plan, before or after the server has had them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from fault_proxy import Call, faults, plain_path

ID = "0193a2b4-9c1d-7e2f-8a3b-4c5d6e7f8a9b"


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """The port of a server that answers 200, and the paths that it was asked for."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's signature
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        served.daemon_threads = True
        threading.Thread(target=served.serve_forever, args=(0.01,), daemon=True).start()
        yield served.server_port, seen
        served.shutdown()


@pytest.mark.parametrize(
    ("way", "answer", "is_done"),
    [("500", 500, False), ("500, done", 500, True), ("429", 429, False)]
    + [(way, None, way == "lost") for way in ("reset", "lost", "hang")],
)
def test_the_proxy_fails_the_second_call_alone(
    server: tuple[int, list[str]], way: str, answer: int | None, is_done: bool
) -> None:
    port, seen = server
    with faults(port, {}, 0) as proxy, httpx.Client(timeout=0.5) as client:
        call = Call("GET", "/runs/*/state", 2)
        proxy.follow({call: way})
        answers: list[int | None] = []
        for _ in range(3):
            try:
                answers.append(client.get(f"{proxy.endpoint}/runs/{ID}/state?x=1").status_code)
            except httpx.TransportError:
                answers.append(None)
        assert answers == [200, answer, 200]
        assert len(seen) == 2 + is_done
        assert proxy.failed == [call] and [one.nth for one in proxy.calls] == [1, 2, 3]


def test_paths_are_compared_without_ids_digests_and_names() -> None:
    assert plain_path(f"/api/task_runs/{ID}/set_state?x=1") == "/api/task_runs/*/set_state"
    assert plain_path("/quantgate/m1/source/0f3c9a7d2b1e/m1.onnx", "m1") == "/quantgate/*/source/*/*.onnx"
    assert plain_path(f"/artifacts/2/models/m-{'0' * 32}/MLmodel") == "/artifacts/2/models/*/MLmodel"
