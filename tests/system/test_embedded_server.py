"""The server of a command that was told of none: flows run on it, and it ends with the command, however that ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from driving import environment
from stack import wait_until

from tasks.service import embedded_server
from validators.errors import InfrastructureError

# What a command does: the server first, Prefect's import beside it, then a flow.
COMMAND = """
import json, sys
from pathlib import Path
from tasks.service.embedded_server import _started, on_server, start_server
from tasks.run.settings import prepare_environment, state_folder

prepare_environment(state_folder())
start_server()
start_server()
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.logging import get_run_logger

@flow
def small():
    get_run_logger().info("said by a flow")
    return str(get_client(sync_client=True).api_url)

with on_server():
    told = {"api": small(), "port": _started[0].port, "pid": _started[0].process.pid, "servers": len(_started)}
    told["imported"] = "prefect.server.api.server" in sys.modules
    print(json.dumps(told), flush=True)
    if "stay" in sys.argv:
        sys.stdin.read()
"""


def start(state: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command as a process."""
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments],
        env=environment(state),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


@pytest.mark.slow
def test_it_serves_a_command_and_ends_with_it(tmp_path: Path) -> None:
    """By an end of its own and by SIGKILL; what the flow said is in the database, though it was told late."""
    with start(tmp_path) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
    assert process.returncode == 0
    assert told["api"].rstrip("/") == f"http://127.0.0.1:{told['port']}/api"
    assert told["servers"] == 1 and not told["imported"], "the command imports no server, its child does"
    assert not psutil.pid_exists(told["pid"])
    assert b"said by a flow" in b"".join(file.read_bytes() for file in (tmp_path / "prefect").glob("prefect.db*"))
    with start(tmp_path, "stay") as process:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["pid"]
        assert psutil.pid_exists(pid)
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), seconds=30)


def test_none_is_started_beside_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_server, "_started", [])
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    embedded_server.start_server()
    assert embedded_server._started == []


def test_one_that_ended_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    monkeypatch.setattr(embedded_server, "_started", [embedded_server._Server(ended, 1)])
    with pytest.raises(InfrastructureError, match="ended with code 0"), embedded_server.on_server():
        pytest.fail("nothing runs without a server")
