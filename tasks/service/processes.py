"""Programs as child processes: started in order, kept alive, and ended together with their own children."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from validators.errors import InfrastructureError

HOST = "127.0.0.1"
# The first start on a state folder creates databases.
READY_SECONDS = 180.0
STOP_SECONDS = 10.0
# A program that dies more often than this within the window would not be repaired by another restart.
RESTARTS, RESTART_WINDOW_SECONDS = 3, 600.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Program:
    """A command to run. A server listens on loopback at `port`, and answers at the path `health` when it is ready.

    A program with `ends` finishes by itself: the next one starts after it, and it is not restarted.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    port: int | None = None
    health: str = "/"
    ends: bool = False

    @property
    def address(self) -> str:
        """Address of the server."""
        return f"http://{HOST}:{self.port}"


@dataclass
class Programs:
    """The running programs; each writes the log `<name>.log`.

    As a context manager it ends all programs and their children at the end of the block, the last one first: by SIGTERM, and
    after a timeout by SIGKILL.
    """

    logs: Path
    running: dict[str, tuple[Program, subprocess.Popen[bytes]]] = field(default_factory=dict)
    _deaths: dict[str, deque[float]] = field(default_factory=dict)
    _ends: bool = False

    def __enter__(self) -> Programs:
        self.logs.mkdir(parents=True, exist_ok=True)
        # Become a subreaper, so that orphans can be ended: runs lead their own process groups.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        # A service manager sends SIGTERM; a process that a shell started in the background ignores SIGINT.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        for _program, process in reversed(self.running.values()):
            end(process)
        orphans = psutil.Process().children(recursive=True)
        for orphan in orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                orphan.kill()
        psutil.wait_procs(orphans, timeout=STOP_SECONDS)
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def start(self, programs: Sequence[Program], say: Callable[[str], None]) -> None:
        """Start programs in order, each once the one before it answers or has finished; report one that fails.

        Raises:
            InfrastructureError: a port is taken (then nothing is started), or a server ends or does not answer.
        """
        for program in programs:
            if program.port is not None and is_taken(program.port):
                raise InfrastructureError(
                    found=f"port {program.port} is taken",
                    expected=f"a free port for {program.name}",
                    fix=f"stop the program that listens there, or choose another port with --{program.name.lower()}-port",
                )
        for program in programs:
            self._spawn(program)
            if program.ends:
                code = self.running.pop(program.name)[1].wait()
                say(f"{program.name:<9}{f'failed ({code}): read {self._log(program)}' if code else 'done'}")
            else:
                self._wait_until_ready(program)
                say(f"{program.name:<9}{program.address if program.port else 'started'}")

    def keep_alive(self, say: Callable[[str], None]) -> None:
        """Restart programs that die, until one dies too often or a signal arrives.

        Raises:
            InfrastructureError: a program died more than three times within ten minutes.
            KeyboardInterrupt: SIGINT or SIGTERM.
        """
        while True:
            time.sleep(0.5)
            for program, process in list(self.running.values()):
                if process.poll() is None:
                    continue
                self._count_death(program, process.returncode)
                # A server's own children may still hold its port.
                _kill_group(process)
                say(f"{program.name} ended by itself ({process.returncode}): restarting it")
                self._spawn(program)

    def _interrupt(self, _number: int, _frame: object) -> None:
        """Raise at the first signal only: a second one would interrupt the end of the programs and leave some running.

        Uses a flag: a second signal may arrive before a new handler could be installed.
        """
        if not self._ends:
            self._ends = True
            raise KeyboardInterrupt

    def _count_death(self, program: Program, code: int) -> None:
        deaths = self._deaths.setdefault(program.name, deque(maxlen=RESTARTS + 1))
        deaths.append(time.monotonic())
        if len(deaths) > RESTARTS and deaths[-1] - deaths[0] < RESTART_WINDOW_SECONDS:
            raise self._failed(
                program,
                f"{program.name} ended by itself ({code}), {len(deaths)} times in {deaths[-1] - deaths[0]:.0f} s",
                "a program that keeps running",
            )

    def _spawn(self, program: Program) -> None:
        with self._log(program).open("ab") as log:
            process = subprocess.Popen(
                program.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | program.environment,
                # Ctrl-C in a terminal would reach the whole group, but the programs must end in order.
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        self.running[program.name] = (program, process)

    def _wait_until_ready(self, program: Program) -> None:
        if program.port is None:
            return
        process = self.running[program.name][1]
        end = time.monotonic() + READY_SECONDS
        while time.monotonic() < end and process.poll() is None:
            if answers(program.port, program.health):
                return
            time.sleep(0.2)
        raise self._failed(program, f"{program.name} did not start", f"an answer at {program.address}{program.health}")

    def _log(self, program: Program) -> Path:
        return self.logs / f"{program.name.lower()}.log"

    def _failed(self, program: Program, found: str, expected: str) -> InfrastructureError:
        return InfrastructureError(found=found, expected=expected, fix=f"read {self._log(program)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads its group, with the group: by SIGTERM, and after a timeout by SIGKILL."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    _kill_group(process)
    process.wait()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Ask the kernel to end this child with its parent, which cannot do so after a SIGKILL; call it before exec."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)


def is_taken(port: int) -> bool:
    """Return True if a program listens on a loopback port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def answers(port: int, path: str) -> bool:
    """Return True if a server on a loopback port answers with a status below 500. Proxy settings are ignored."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status < 500
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
