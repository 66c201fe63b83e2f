"""Programs as children: what starts, what is started again, and that nothing is left behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from stack import free_port, listens, wait_until

from tasks.service.generated_secrets import secret
from tasks.service.processes import Program, Programs
from validators.errors import InfrastructureError

# Two servers, one of them with a grandchild that leads a session of its own, as the runs of a worker do.
DRIVER = """
import subprocess, sys
from pathlib import Path
from tasks.service.processes import Program, Programs
first, second, logs = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
orphan = "import subprocess, sys; subprocess.Popen(['sleep', '987.25'], start_new_session=True); "
serve = "import http.server; http.server.test(http.server.SimpleHTTPRequestHandler, port=%d, bind='127.0.0.1')"
programs = [
    Program("First", (sys.executable, "-c", serve % first), {}, first),
    Program("Once", (sys.executable, "-c", "raise SystemExit(3)"), {}, ends=True),
    Program("Second", (sys.executable, "-c", orphan + serve % second), {"TOLD": "yes"}, second),
]
def say(line): print(line, flush=True)
try:
    with Programs(logs) as running:
        running.start(programs, say)
        say("up")
        running.keep_alive(say)
except KeyboardInterrupt:
    say("stopped")
except Exception as error:
    say(str(error))
"""


class Driven:
    """A process with two servers, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.ports = [free_port(), free_port()]
        self.said = folder / "said.txt"
        command = [sys.executable, "-c", DRIVER, *map(str, self.ports), str(folder / "logs")]
        with self.said.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file, cwd=Path(__file__).parents[2])
        self.family: list[psutil.Process] = []

    def wait_for(self, words: str) -> None:
        """Until it says so."""
        wait_until(lambda: words in self.said.read_text(), seconds=120)
        self.family += psutil.Process(self.process.pid).children(recursive=True) if self.process.poll() is None else []

    def server(self, number: int) -> psutil.Process:
        """The process that listens on a port."""
        named = f"port={self.ports[number]}"
        while True:
            for one in psutil.Process(self.process.pid).children():
                if one.status() != psutil.STATUS_ZOMBIE and named in " ".join(one.cmdline()):
                    return one
            time.sleep(0.05)

    def is_gone(self) -> bool:
        """Whether neither a child nor a port is left."""
        living = [one for one in self.family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
        return not living and not any(map(listens, self.ports))


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    """Both servers up; whatever a failed test leaves is ended."""
    driven = Driven(tmp_path)
    try:
        driven.wait_for("up")
        yield driven
    finally:
        for one in driven.family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        driven.process.kill()
        driven.process.wait(30)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_with_what_they_started(driven: Driven, number: signal.Signals) -> None:
    """Grandchildren in sessions of their own too; a program that ended badly was named, and stopped nothing."""
    assert any(one.cmdline() == ["sleep", "987.25"] for one in driven.family)
    driven.process.send_signal(number)
    assert driven.process.wait(60) == 0
    assert driven.is_gone()
    said = driven.said.read_text()
    assert re.search(r"^Once +failed \(3\): read .*once\.log$", said, re.MULTILINE)
    assert said.splitlines()[-1] == "stopped"


def test_a_second_signal_leaves_nothing_either(driven: Driven) -> None:
    """An impatient Ctrl-C must not cut the ending short."""
    driven.process.send_signal(signal.SIGINT)
    for _ in range(20):
        if driven.process.poll() is None:
            driven.process.send_signal(signal.SIGINT)
    assert driven.process.wait(60) == 0
    assert driven.is_gone()


def test_the_children_of_one_that_is_killed_end_too(driven: Driven) -> None:
    """By SIGKILL it ends nothing itself. What leads a session of its own is out of reach then."""
    mine = [one for one in driven.family if one.cmdline() != ["sleep", "987.25"]]
    driven.process.kill()
    driven.process.wait(30)
    assert not psutil.wait_procs(mine, timeout=60)[1]
    wait_until(lambda: not any(map(listens, driven.ports)), seconds=30)


def test_dead_process_restarts_and_repeated_death_ends_all(driven: Driven) -> None:
    """A fourth time within ten minutes is too often; the last words name its log, and the other is ended as well."""
    killed: set[int] = set()
    for _ in range(3):
        killed.add(driven.server(0).pid)
        driven.server(0).kill()
        wait_until(lambda: listens(driven.ports[0]) and driven.server(0).pid not in killed, seconds=60)
    driven.wait_for("up")
    driven.server(0).kill()
    assert driven.process.wait(60) == 0
    assert driven.is_gone()
    assert re.search(r"First ended by itself \(-9\), 4 times.*first\.log", driven.said.read_text(), re.DOTALL)


def program(code: str, **changes: object) -> Program:
    """A program of Python."""
    return Program("Doomed", (sys.executable, "-c", code), {}, **changes)  # type: ignore[arg-type]  # of any field


def test_a_port_that_is_taken_starts_nothing(tmp_path: Path, restored: None) -> None:
    """Not even what stands before it."""
    marker = tmp_path / "started"
    first = program(f"open({str(marker)!r}, 'w')", ends=True)
    port = free_port()
    holder = subprocess.Popen([sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"], stderr=-3)
    with holder:
        wait_until(lambda: listens(port), seconds=60)
        with (
            pytest.raises(InfrastructureError, match=rf"port {port} is taken[\s\S]*--doomed-port"),
            Programs(tmp_path) as running,
        ):
            running.start([first, program("", port=port)], print)
        holder.kill()
    assert not marker.exists()


def test_process_that_ends_before_answering_is_an_error_with_log(tmp_path: Path, restored: None) -> None:
    """Not a wait of minutes."""
    with pytest.raises(InfrastructureError, match=r"did not start[\s\S]*doomed\.log"), Programs(tmp_path) as running:
        running.start([program("print('no licence'); raise SystemExit(1)", port=free_port())], print)
    assert "no licence" in (tmp_path / "doomed.log").read_text()


@pytest.fixture
def restored() -> Iterator[None]:
    """This process's signal handlers are as they were."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def test_a_secret_is_made_once_and_for_its_user_alone(tmp_path: Path) -> None:
    """Whatever the umask; another name is another secret."""
    before = os.umask(0)
    try:
        first = secret(tmp_path, "a")
    finally:
        os.umask(before)
    assert secret(tmp_path, "a") == first != secret(tmp_path, "b")
    assert re.fullmatch(r"[A-Za-z0-9_-]{43}=", first)
    assert {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {
        "a": 0o600,
        "b": 0o600,
    }
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
