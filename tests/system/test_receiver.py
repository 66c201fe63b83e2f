"""The receiver as a process, without a Prefect server: what it says of bodies too long or too slow, and of itself."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from flood import payload, signed
from stack import Stack, free_port
from triggering import ROOT, SECRET, receiver_of, start_receiver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """The receiver alone; nothing listens at Prefect's address."""
    stack = Stack(tmp_path_factory.mktemp("receiver"))
    try:
        start_receiver(stack)
        yield stack
    finally:
        stack.close()


def speak(stack: Stack, head: str, *pieces: bytes, pause_seconds: float = 0.0) -> str:
    """What the receiver answers to a request that is written by hand."""
    with socket.create_connection(("127.0.0.1", stack.port("receiver")), timeout=60) as line:
        line.sendall(f"POST /webhook HTTP/1.1\r\nHost: x\r\n{head}\r\n".encode())
        # It hangs up when it has heard enough.
        with contextlib.suppress(OSError):
            for piece in pieces:
                line.sendall(piece)
                time.sleep(pause_seconds)
        return line.recv(65_536).decode()


def headers(body: bytes) -> str:
    """Headers of a signed delivery."""
    return "".join(f"{name}: {value}\r\n" for name, value in signed(SECRET, body).items())


def test_without_prefect_it_lives_and_is_not_ready(stack: Stack) -> None:
    """And asks to be told again, later; the delivery stays welcome, and no secret is in what it said."""
    url, body = receiver_of(stack), json.dumps(payload("ranker")).encode()
    assert httpx.get(f"{url}/healthz").status_code == 200
    assert httpx.get(f"{url}/readyz").status_code == 503
    told = signed(SECRET, body)
    for _ in range(2):
        answer = httpx.post(f"{url}/webhook", headers=told, content=body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "20")
    assert httpx.get(f"{url}/webhook").status_code == 405
    lines = [json.loads(line) for line in stack.said("receiver").splitlines() if line.startswith("{")]
    assert [line["status"] for line in lines] == [503, 503]
    assert {line["model"] for line in lines} == {"ranker"}
    for word in (SECRET, told["X-MLflow-Signature"], "s3://", "models:/m-1"):
        assert word not in stack.said("receiver")


def test_a_body_that_dawdles_is_given_up(stack: Stack) -> None:
    """With a byte a second, which no timeout between bytes would end."""
    body = json.dumps(payload("slow")).encode()
    pieces = [body[at : at + 1] for at in range(9)]
    assert " 408 " in speak(stack, f"{headers(body)}Content-Length: {len(body)}\r\n", *pieces, pause_seconds=1.0)


def test_lengths_are_believed_only_when_they_are_too_long(stack: Stack) -> None:
    """One that is told is refused before a byte is read; chunks are counted; one that lies ends the request."""
    assert " 413 " in speak(stack, f"{headers(b'')}Content-Length: 1048577\r\n")
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    assert " 413 " in speak(stack, f"{headers(b'')}Transfer-Encoding: chunked\r\n", *[chunk] * 17)
    for length in ("-1", "1e3", "9" * 5000, "1, 2"):
        assert speak(stack, f"{headers(b'')}Content-Length: {length}\r\n").split()[1].startswith("4")
    assert httpx.get(f"{receiver_of(stack)}/healthz").status_code == 200


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"PREFECT_API_URL": "http://127.0.0.1:1/api"}, "QUANTGATE_WEBHOOK_SECRET"),
        ({"PREFECT_API_URL": "http://127.0.0.1:1/api", "QUANTGATE_WEBHOOK_SECRET": f"{SECRET},short"}, "16 characters"),
        ({"QUANTGATE_WEBHOOK_SECRET": SECRET}, "PREFECT_API_URL"),
    ],
)
def test_it_does_not_start_without_its_settings(told: dict[str, str], said: str, tmp_path: Path) -> None:
    """It says which, and not what the others are."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "QUANTGATE_"))}
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "infra" / "receiver"), "receiver:app"]
    command += ["--port", str(free_port())]
    done = subprocess.run(
        command, env=kept | told, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3 and said in done.stderr
    assert SECRET not in done.stdout + done.stderr
