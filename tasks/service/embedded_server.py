"""The Prefect server of a command without `PREFECT_API_URL`: a child process that starts while the command still imports.

Prefect starts its own temporary server with the first flow, and the command imports the server as well: 10 s of waiting.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tasks.run.settings import written_folders
from tasks.service.processes import HOST, READY_SECONDS, answers, die_with_parent, end
from tasks.storage.files import check_room
from validators.errors import InfrastructureError


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    port: int

    def is_ready(self) -> bool:
        """Return True as soon as the server answers; False if it has ended, or does not answer in time."""
        until = time.monotonic() + READY_SECONDS
        while self.process.poll() is None and time.monotonic() < until:
            if answers(self.port, "/api/health"):
                return True
            time.sleep(0.05)
        return False

    def failure(self) -> str:
        """Return in words why it is not ready."""
        code = self.process.poll()
        return f"ended with code {code}" if code is not None else f"did not answer within {READY_SECONDS:.0f} s"


_started: list[_Server] = []


def start_server() -> None:
    """Start the server, once per process, unless `PREFECT_API_URL` names one; it ends with the process, even if killed.

    Raises:
        StorageFull: the disk of the state folder or of temporary files is full or read-only; no run could be kept.
    """
    check_room(*written_folders())
    if _started or os.environ.get("PREFECT_API_URL"):
        return
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "uvicorn", "--factory", "tasks.service.prefect_app:create_app", "--host", HOST]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error", "--lifespan", "on"],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PREFECT_UI_ENABLED": "0"},
        # Ctrl-C in a terminal reaches the whole group, but a run must still report to the server that it was cancelled.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    _started.append(_Server(process, port))
    # Register before Prefect is imported: atexit handlers run in reverse order, and Prefect's still needs the server.
    atexit.register(end, process)


@contextmanager
def on_server() -> Iterator[None]:
    """Run the block's flows on the started server, or on the one that `PREFECT_API_URL` or a profile names.

    Raises:
        InfrastructureError: the started server ended, or does not answer in time; StorageFull if the disk is the cause.
    """
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    if not _started or PREFECT_API_URL.value():
        yield
        return
    if not _started[0].is_ready():
        check_room(*written_folders())
        raise InfrastructureError(
            found=f"the Prefect server of this command {_started[0].failure()}",
            expected="a server on its database, `prefect/prefect.db` in the state folder",
            fix="read what it printed above; run again; if a later version of Prefect wrote the database (Can't locate "
            "revision), move the folder `prefect` away: it holds the history of flow runs alone",
        )
    # Heartbeats tell a service that a run is dead; this server ends with it, and their thread would delay its end by a second.
    address = f"http://{HOST}:{_started[0].port}/api"
    with temporary_settings({PREFECT_API_URL: address, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
