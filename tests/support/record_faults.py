"""Strikes MLflow while a run is recorded: the server has created an MLflow run, and its answer never reaches the client.

    python tests/support/record_faults.py FOLDER COUNT      kill and restart the server COUNT times; prints the figures as JSON

`Recording.strike` either kills the server or only loses its answer. Real are the server, its database, the steps that record,
and Prefect, which retries them; `registry_gate.Gate` holds the answer until the server is dead.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from databases import lend_both, lend_mlflow
from driving import TESTS
from recorder import CANDIDATES
from registry_gate import Gate, Request
from stack import READY_SECONDS, Stack, answers, free_port, listens, wait_until

from tasks.service.processes import die_with_parent

Struck = Literal["parent", "candidate"]
# Keeps a core busy for at most half an hour.
BUSY = "import time; end = time.monotonic() + 1800\nwhile time.monotonic() < end: pass"


@dataclass(frozen=True)
class Left:
    """Runs that one recording left in MLflow: parents, nested runs by candidate, and those still `RUNNING`."""

    parents: int
    nested: dict[str, int]
    running: int
    without_verdicts: int

    @property
    def duplicates(self) -> int:
        """Runs beyond one parent and one for each candidate."""
        return self.parents - 1 + sum(self.nested.values()) - len(self.nested)

    @property
    def is_whole(self) -> bool:
        """Whether everything is there once and closed."""
        return (len(self.nested), self.duplicates, self.running, self.without_verdicts) == (CANDIDATES, 0, 0, 0)


@dataclass
class Server:
    """An MLflow server that dies by SIGKILL and comes back on its port and database."""

    stack: Stack
    pid: int = 0
    forker: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        database = self.stack.root / "mlflow.db"
        lend_mlflow(database)
        artifacts = (self.stack.root / "mlartifacts").as_uri()
        self.forker = _talking(self.stack, "forked_mlflow.py", str(database), artifacts, str(self.stack.port("mlflow")))
        wait_for(self.forker, "ready")

    def start(self) -> None:
        """Start it, or start it again."""
        tell(self.forker)
        assert self.forker.stdout is not None
        self.pid = int(self.forker.stdout.readline())
        wait_until(lambda: answers(f"{self.stack.registry}/health"))

    def kill(self) -> None:
        """End it in the middle of what it does."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not listens(self.stack.port("mlflow")))


@dataclass
class Recording:
    """A process that records runs through a gate before an MLflow server of its own."""

    stack: Stack
    server: Server = field(init=False)
    gate: Gate = field(init=False)
    recorder: subprocess.Popen[str] = field(init=False)

    def start(self) -> None:
        """Start the server and the process."""
        lend_both(self.stack.state)
        folder = self.stack.root / "recorded"
        folder.mkdir()
        self.gate = Gate(free_port(), self.stack.port("mlflow"))
        self.recorder = _talking(self.stack, "recorder.py", str(folder), MLFLOW_TRACKING_URI=self.gate.address)
        self.server = Server(self.stack)
        self.server.start()
        wait_for(self.recorder, "ready")

    def strike(self, struck: Struck, times: int = 1, *, kill: bool) -> Left:
        """Record a run whose n-th creation of a kind is answered by nobody; see what it left.

        With `kill` the server dies after the creation and is started again, else only the answer is lost.
        """
        left = times

        def matches(request: Request) -> bool:
            nonlocal left
            if "runs/create" not in request.path or (b"parentRunId" in request.body) != (struck == "candidate"):
                return False
            left -= 1
            return left == 0

        hold = self.gate.hold(matches, "after")
        tell(self.recorder)
        assert hold.reached.wait(READY_SECONDS), "the creation was never asked for"
        if kill:
            self.server.kill()
        self.gate.release(answered=False)
        if kill:
            self.server.start()
        return self.left(wait_for(self.recorder, "recorded"))

    def left(self, run_id: str) -> Left:
        """What is there of the recorded run and of duplicates of it."""
        tags = _tags(self._ask("GET", f"runs/get?run_id={run_id}")["run"])
        parents = self._runs(f"tags.`quantgate.flow_run` = '{tags['quantgate.flow_run']}'")
        nested = [
            run for parent in parents for run in self._runs(f"tags.mlflow.parentRunId = '{parent['info']['run_id']}'")
        ]
        return Left(
            len(parents),
            dict(Counter(run["info"]["run_name"] for run in nested)),
            sum(run["info"]["status"] == "RUNNING" for run in [*parents, *nested]),
            sum("quantgate.outcome" not in _tags(run) for run in nested),
        )

    def record_with_late_twins(self) -> Left:
        """Record a run; before its record closes, the parent and a candidate are created again, as by late requests."""
        hold = self.gate.hold(lambda request: request.path.endswith("report/report.html"), "before")
        tell(self.recorder)
        assert hold.reached.wait(READY_SECONDS), "the record was never closed"
        parent = hold.request.path.split("/")[-4]
        nested = self._runs(f"tags.mlflow.parentRunId = '{parent}'")[0]
        for twin in (self._ask("GET", f"runs/get?run_id={parent}")["run"], nested):
            names = {"mlflow.runName", "mlflow.parentRunId", "quantgate.kind", "quantgate.flow_run"}
            tags = [{"key": key, "value": value} for key, value in _tags(twin).items() if key in names]
            body = {"experiment_id": twin["info"]["experiment_id"], "start_time": twin["info"]["start_time"] - 1}
            self._ask("POST", "runs/create", body | {"tags": tags})
        self.gate.release()
        return self.left(wait_for(self.recorder, "recorded"))

    def close(self) -> None:
        """End everything."""
        for process in [getattr(self, "recorder", None), self.server.forker if hasattr(self, "server") else None]:
            if process is not None:
                process.kill()
                process.communicate()
        if hasattr(self, "gate"):
            self.gate.close()

    def _runs(self, condition: str) -> list[dict[str, Any]]:
        found = self._ask("GET", "experiments/get-by-name?experiment_name=quantgate")
        body = {"experiment_ids": [found["experiment"]["experiment_id"]], "filter": condition, "max_results": 100}
        runs: list[dict[str, Any]] = self._ask("POST", "runs/search", body).get("runs", [])
        return runs

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask the server itself, past the gate."""
        data = json.dumps(body).encode() if body is not None else None
        url = f"{self.stack.registry}/api/2.0/mlflow/{path}"
        request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def _talking(stack: Stack, script: str, *arguments: str, **extra: str) -> subprocess.Popen[str]:
    """Start a script of this folder that is told what to do by lines."""
    stack.root.mkdir(parents=True, exist_ok=True)
    settings = stack.settings(**extra)
    del settings["PREFECT_API_URL"]
    with (stack.root / f"{script}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(TESTS / script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=settings,
            preexec_fn=die_with_parent,
        )


def tell(process: subprocess.Popen[str]) -> None:
    """Have it do one thing more."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def wait_for(process: subprocess.Popen[str], word: str) -> str:
    """Return the rest of the next line that starts with a word."""
    assert process.stdout is not None
    for line in process.stdout:
        first, _, rest = line.strip().partition(" ")
        if first == word:
            return rest
    raise AssertionError(f"{process.args} ended before it said {word!r}")


def _tags(run: dict[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in run["data"].get("tags", [])}


@contextmanager
def recording(root: Path) -> Iterator[Recording]:
    """A recording that is ready, ended at the end."""
    found = Recording(Stack(root))
    try:
        found.start()
        yield found
    finally:
        found.close()


@contextmanager
def busy() -> Iterator[None]:
    """Another process that keeps a core busy."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], preexec_fn=die_with_parent)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def killed_often(root: Path, count: int) -> list[Left]:
    """Kill the server once in each of `count` recordings: at every candidate in turn, and at every fifth one's parent."""
    found = []
    with recording(root) as record, busy():
        for number in range(count):
            struck: Struck = "parent" if number % 5 == 4 else "candidate"
            started = time.monotonic()
            times = 1 + number % CANDIDATES if struck == "candidate" else 1
            found.append(record.strike(struck, times, kill=True))
            line = f"{number + 1} of {count}, {struck} {times}: {found[-1]}, {time.monotonic() - started:.0f} s"
            print(line, file=sys.stderr, flush=True)
    return found


def figures(found: list[Left]) -> dict[str, int]:
    """Sums over all recordings."""
    return {
        "recordings": len(found),
        "whole": sum(left.is_whole for left in found),
        "duplicates": sum(left.duplicates for left in found),
        "running": sum(left.running for left in found),
        "without_verdicts": sum(left.without_verdicts for left in found),
    }


if __name__ == "__main__":
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    print(json.dumps(figures(killed_often(Path(sys.argv[1]), int(sys.argv[2])))))
