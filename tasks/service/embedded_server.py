"""The Prefect server of a command that was told of none: a process of its own that starts while the command still imports.

Prefect's own temporary server is started when the first flow asks for it, and imported by the command as well: 10 s that
nothing else is done in.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tasks.service.processes import HOST, STOP_SECONDS, answers, die_with_parent

log = logging.getLogger("quantgate")

# The first start of a state folder makes the database.
READY_SECONDS = 180.0


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    port: int

    def is_ready(self) -> bool:
        """Whether it answers, at once or after its start; False for one that ended."""
        end = time.monotonic() + READY_SECONDS
        while self.process.poll() is None and time.monotonic() < end:
            if answers(self.port, "/api/health"):
                return True
            time.sleep(0.05)
        return False

    def stop(self) -> None:
        """End it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        self.process.kill()
        self.process.wait()


_started: list[_Server] = []


def start_server() -> None:
    """Start the server, once a process, unless `PREFECT_API_URL` names one; it ends with the process, however that ends."""
    if _started or os.environ.get("PREFECT_API_URL"):
        return
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host", HOST]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--log-level", "error", "--lifespan", "on"],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"PREFECT_UI_ENABLED": "0"},
        # Ctrl-C in a terminal reaches a whole group, and a run still has to say that it was cancelled.
        start_new_session=True,
        preexec_fn=die_with_parent,
    )
    server = _Server(process, port)
    _started.append(server)
    # Before Prefect is imported: what it still has to tell at its own exit comes first.
    atexit.register(server.stop)


@contextmanager
def on_server() -> Iterator[None]:
    """Flows of the block run on the server that was started; on another where that did not start, or a profile names one."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    if not _started or PREFECT_API_URL.value():
        yield
        return
    if not _started[0].is_ready():
        log.warning("the Prefect server of this command did not start; Prefect starts its own, which takes longer")
        yield
        return
    with temporary_settings({PREFECT_API_URL: f"http://{HOST}:{_started[0].port}/api"}):
        yield
