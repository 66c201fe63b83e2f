"""A sweep over registered models by 1, 2 and 4 workers on two "machines", undisturbed or with workers that are killed.

    python benchmarks/scaling_sweep.py --models 200
    python benchmarks/scaling_sweep.py --models 200 --workers 2 --workers 4 --kill-every 120

PostgreSQL under Prefect and MLflow; artifacts, data and the store on an S3 server. A machine is a state folder and, if this
user may make them (root), a network namespace with an address of its own, which a bridge connects to the servers; its files,
processor and clock are those of the host. Workers 1 and 3 are on one machine, 2 and 4 on the other.
`benchmarks/results/scaling_sweep.json` has a row for each number of models and workers and each interval of kills; a row that
is measured again is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import psutil
import typer
from figures import earlier, save
from jobs import BRIEFLY

TESTS = Path(__file__).parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "support")]

from conftest import tiny_model, tiny_samples, tiny_weights
from deployed import Service
from driving import write_job
from stack import BUCKET, Stack, wait_until

from tasks.run.clock import union_seconds
from tasks.workers.order_tracking import WORKER_LABEL

MACHINES, SERVERS = 2, "10.77.0.1"
CANDIDATE, ALIAS = "int8-static-minmax-pc@ort-cpu", "champion-ort-cpu"
# Prefect's default; the stack of the tests has workers that ask more often.
QUERY_SECONDS, PAGE = 10, 200
# As docs/faults.md tells operators: Prefect reports a dead process twice.
BEFORE_RETRY_SECONDS = 30.0
LOG_MODELS = """
import pathlib, sys, mlflow, numpy as np, onnx
from mlflow.models import infer_signature
signature = infer_signature({"x": np.zeros((2, 64), np.float32)}, {"logits": np.zeros((2, 4), np.float32)})
mlflow.set_experiment("user")
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    with mlflow.start_run():
        info = mlflow.onnx.log_model(onnx.load(path), name="tiny", signature=signature, pip_requirements=[])
    mlflow.register_model(info.model_uri, path.stem)
"""


@dataclass
class Fleet:
    """The servers, and workers of two machines; `namespaces` holds the process of each machine's network, if it has one."""

    service: Service
    count: int
    namespaces: list[int] = field(default_factory=list)

    @property
    def stack(self) -> Stack:
        """The servers and workers as processes."""
        return self.service.stack

    def start_servers(self, models: int) -> None:
        """Start the servers and machines, register the models, and deploy."""
        if self.stack.host == SERVERS:
            self._connect_machines()
        self.stack.start_mlflow()
        self.stack.start_prefect()
        self._register(models)
        done = self.service.command("deploy", "--runs", str(self.count))
        assert done.returncode == 0, done.stdout + done.stderr
        # The watch and the retention would work beside the sweep when their time comes.
        for one in self.stack.ask("/deployments/filter"):
            self.stack.ask(f"/deployments/{one['id']}/pause_deployment")

    def _connect_machines(self) -> None:
        """Give each machine a network namespace that reaches the servers over a bridge."""
        for number in range(MACHINES):
            machine = self.stack.start(f"machine-{number}", ["unshare", "--net", "sleep", "infinity"])
            self.namespaces.append(machine.pid)
            # Before `unshare` has run, the process is still in the namespace of the servers.
            own = Path("/proc/self/ns/net").readlink()
            wait_until(lambda pid=machine.pid, own=own: Path(f"/proc/{pid}/ns/net").readlink() != own, machine)  # type: ignore[misc]  # a default makes it one of this turn of the loop
            inside = f"nsenter -t {machine.pid} -n ip"
            _network(
                f"ip link add m{number} type veth peer name eth0 netns {machine.pid}",
                f"ip link set m{number} master machines up",
                f"{inside} address add 10.77.0.{number + 2}/24 dev eth0",
                f"{inside} link set eth0 up",
                f"{inside} link set lo up",
            )

    def _register(self, models: int) -> None:
        """Register models that answer alike and differ in their weights, each with a job file of its own."""
        folder = self.stack.root / "models"
        folder.mkdir()
        (self.stack.root / "jobs").mkdir()
        client = self.stack.s3_client()
        for part, samples in (("calibration", tiny_samples(128, 11)), ("evaluation", tiny_samples(2000, 12))):
            np.savez(folder / f"{part}.npz", **samples)  # type: ignore[arg-type]  # arrays by name
            client.upload_file(str(folder / f"{part}.npz"), BUCKET, f"data/{part}.npz")
        first, bias, second = tiny_weights()
        for number in range(models):
            name = f"model-{number:03}"
            onnx.save(tiny_model(first, bias, second * np.float32(1 + number / 1000)), folder / f"{name}.onnx")
            write_job(self.stack.root / "jobs" / f"{name}.yaml", _job(name, seed=number))
        self.service.run_python("-c", LOG_MODELS, str(folder))

    def start_worker(self, number: int) -> None:
        """Start a worker for runs as the docs say, on its machine."""
        name, machine = f"worker-{number}", number % MACHINES
        log = self.stack.root / f"{name}.log"
        before = len(self.stack.said(name)) if log.exists() else 0
        enter = ["nsenter", "-t", str(self.namespaces[machine]), "-n"] if self.namespaces else []
        process = self.stack.start(
            name,
            [*enter, sys.executable, "-m", "flows.cli.app", "worker"],
            QUANTGATE_STATE=str(self.stack.root / f"state-{machine}"),
            QUANTGATE_STORE=f"s3://{BUCKET}/store",
            QUANTGATE_JOBS=str(self.stack.root / "jobs"),
            PREFECT_WORKER_QUERY_SECONDS=str(QUERY_SECONDS),
        )
        wait_until(lambda: "started!" in self.stack.said(name)[before:], process)

    def kill_worker(self, number: int) -> int:
        """Kill a worker with all that it started, and return how many runs it had."""
        name = f"worker-{number}"
        worker = psutil.Process(self.stack.processes[name].pid)
        # Stopped, so that it starts nothing meanwhile.
        worker.suspend()
        runs = worker.children()
        every = worker.children(recursive=True)
        self.stack.kill(name)
        for one in every:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return len(runs)

    def flow_runs(self, **state: object) -> list[dict[str, Any]]:
        """Return the runs of the flow `quantize`, or those whose state is of these types or names."""
        body = {"flows": {"name": {"any_": ["quantize"]}}, "sort": "ID_DESC", "limit": PAGE}
        found: list[dict[str, Any]] = []
        while True:
            more = body | {"flow_runs": {"state": state} if state else {}, "offset": len(found)}
            page = self.stack.ask("/flow_runs/filter", more)
            found += page
            if len(page) < PAGE:
                return found

    def sweep(self) -> str:
        """Run the sweep as its schedule does, and return the name of its state."""
        run = self.service.start("sweep/nightly-sweep", {})
        wait_until(lambda: self.service.state(run)["type"] in ("COMPLETED", "FAILED", "CRASHED"), seconds=1800)
        return str(self.service.state(run)["name"])


def _job(name: str, seed: int) -> dict[str, object]:
    """Return a job whose work takes seconds; the seed makes all of it the job's own."""
    return {
        "source": f"models:/{name}/1",
        "data": {part: f"s3://{BUCKET}/data/{part}.npz" for part in ("calibration", "evaluation")},
        "candidates": [CANDIDATE],
        "search": "all",
        "objective": "size",
        "gates": {"min_speedup": None},
        "budgets": {"recovery": 0},
        "measurement": BRIEFLY | {"warmup_seconds": 0.01},
        "seed": seed,
    }


def _network(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True)


@dataclass
class Disturbance:
    """Kills of workers in turn, and retries of the runs that were lost with them, as an operator would do both."""

    fleet: Fleet
    every_s: float
    kills: int = 0
    runs_killed: int = 0
    retries: int = 0
    crashed: Counter[str] = field(default_factory=Counter)
    kept: dict[str, str] = field(default_factory=dict)
    _next: float = field(init=False)

    def __post_init__(self) -> None:
        self._next = time.monotonic() + self.every_s

    def turn(self) -> None:
        """Kill and start anew a worker whose time has come; retry what is marked as crashed."""
        if time.monotonic() >= self._next:
            self._next += self.every_s
            number = self.kills % self.fleet.count
            self.kept |= entries(self.fleet.stack) | self.kept
            self.runs_killed += self.fleet.kill_worker(number)
            self.kills += 1
            self.fleet.start_worker(number)
        for run in self.fleet.flow_runs(type={"any_": ["CRASHED", "FAILED"]}):
            if time.time() - _moment(run["end_time"]) > BEFORE_RETRY_SECONDS:
                self.crashed[str(run["state"]["message"])] += 1
                self.retries += 1
                body = {"state": {"type": "SCHEDULED", "message": "retried"}, "force": True}
                self.fleet.stack.ask(f"/flow_runs/{run['id']}/set_state", body)

    def figures(self) -> dict[str, Any]:
        """Return the counts; `entries_redone` are finished entries of the store that were written again."""
        now = entries(self.fleet.stack)
        redone = sum(now.get(key) != stamp for key, stamp in self.kept.items())
        return {
            "kill_every_seconds": self.every_s,
            "workers_killed": self.kills,
            "runs_killed": self.runs_killed,
            "retries": self.retries,
            "crashed_by": dict(self.crashed),
            "entries_kept": len(self.kept),
            "entries_redone": redone,
        }


def entries(stack: Stack) -> dict[str, str]:
    """Return when each finished entry of the store was written."""
    pages = stack.s3_client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix="store/")
    found = (one for page in pages for one in page.get("Contents", ()) if one["Key"].endswith("/record.json"))
    return {one["Key"]: one["LastModified"].isoformat() for one in found}


def made(fleet: Fleet, models: int) -> dict[str, Any]:
    """Return how many versions, champions and records there are, and the models that have not exactly one of each."""
    import mlflow

    mlflow.set_tracking_uri(fleet.stack.registry)
    kinds = {
        kind: mlflow.search_runs(
            experiment_names=["quantgate"], filter_string=f"tags.`quantgate.kind` = '{kind}'", output_format="list"
        )
        for kind in ("run", "candidate")
    }
    records = Counter(run.data.params["source"] for run in kinds["run"])
    versions, champions = Counter[str](), Counter[str]()
    for name in (f"model-{number:03}" for number in range(models)):
        versions[name] = len(mlflow.search_model_versions(filter_string=f"name = '{name}-quantized'"))
        champions[name] = int(fleet.service.champion(name) is not None)
    names = versions.keys()
    each = {name: (versions[name], champions[name], records[f"models:/{name}/1"]) for name in names}
    return {
        "versions": versions.total(),
        "champions": champions.total(),
        "records": records.total(),
        "records_of_candidates": len(kinds["candidate"]),
        "missing": sum(not champions[name] for name in names),
        "not_exactly_once": {name: counts for name, counts in each.items() if counts != (1, 1, 1)},
    }


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def times(fleet: Fleet, *, is_disturbed: bool) -> dict[str, Any]:
    """Return the medians of a model's seconds and, of workers that nobody killed, the time in which they had no run."""
    taken, work, start = [], [], []
    busy: dict[str, list[tuple[float, float]]] = {}
    for run in fleet.flow_runs():
        states = fleet.stack.ask(f"/flow_run_states/?flow_run_id={run['id']}", method="GET")
        first = {one["type"]: _moment(one["timestamp"]) for one in reversed(states)}
        end = _moment(run["end_time"])
        taken.append((first["PENDING"], end))
        start.append(first["RUNNING"] - first["PENDING"])
        seconds = fleet.service.result(run["id"])["seconds"]
        work.append(seconds["total"] - seconds["overhead"])
        busy.setdefault(run["labels"][WORKER_LABEL], []).append((first["RUNNING"], end))
    wall = max(end for _, end in taken) - min(begin for begin, _ in taken)
    overhead = [end - begin - seconds for (begin, end), seconds in zip(taken, work, strict=True)]
    of_workers = {
        "idle_share": round(1 - sum(map(union_seconds, busy.values())) / (wall * fleet.count), 3),
        "runs_by_worker": sorted(map(len, busy.values()), reverse=True),
        "most_at_once_on_a_worker": max(map(_most_at_once, busy.values())),
    }
    return ({} if is_disturbed else of_workers) | {
        "wall_seconds": round(wall, 1),
        "models_an_hour": round(3600 * len(taken) / wall, 1),
        "model_seconds": round(statistics.median(end - begin for begin, end in taken), 2),
        "work_seconds": round(statistics.median(work), 2),
        "orchestration_seconds": round(statistics.median(overhead), 2),
        "of_it_until_the_flow_runs_seconds": round(statistics.median(start), 2),
    }


def _most_at_once(intervals: Sequence[tuple[float, float]]) -> int:
    return max(sum(start <= begin < end for start, end in intervals) for begin, _ in intervals)


def measure(fleet: Fleet, models: int, kill_every: float, seconds: float) -> dict[str, Any]:
    """Sweep, wait until every model was promoted, and sweep again, which must find nothing to do."""
    fleet.start_servers(models)
    for number in range(fleet.count):
        fleet.start_worker(number)
    disturbance = Disturbance(fleet, kill_every) if kill_every else None
    began = time.monotonic()
    first = fleet.sweep()
    print(f"{fleet.count} workers: sweep {first} after {time.monotonic() - began:.0f} s", flush=True)
    end, told = began + seconds, -1
    while (done := len(fleet.flow_runs(type={"any_": ["COMPLETED"]}))) < models and time.monotonic() < end:
        if disturbance:
            disturbance.turn()
        if done // 10 != told:
            told = done // 10
            print(f"{done} of {models} after {time.monotonic() - began:.0f} s", flush=True)
        time.sleep(5)
    states = Counter(run["state_name"] for run in fleet.flow_runs())
    row = {
        "models": models,
        "workers": fleet.count,
        "kill_every_seconds": kill_every,
        "date": time.strftime("%Y-%m-%d"),
        "network_namespaces": bool(fleet.namespaces),
        "query_seconds": QUERY_SECONDS,
        "sweep": first,
        "states": dict(states),
        "second_sweep": fleet.sweep(),
    }
    row |= disturbance.figures() if disturbance else {}
    return (
        row
        | made(fleet, models)
        | (times(fleet, is_disturbed=bool(disturbance)) if states.total() == states["Promoted"] == models else {})
    )


def _isolate() -> bool:
    """Run this command again in a network namespace for the servers, if that can be made; whether this one has it."""
    if os.environ.get("SCALING_SWEEP") == "isolated":
        _network("ip link set lo up", "ip link add name machines type bridge")
        _network(f"ip address add {SERVERS}/24 dev machines", "ip link set machines up")
        return True
    enter = [shutil.which("unshare") or "unshare", "--net"]
    if os.geteuid() == 0 and subprocess.run([*enter, "true"], capture_output=True, check=False).returncode == 0:
        os.environ["SCALING_SWEEP"] = "isolated"
        os.execv(enter[0], [*enter, sys.executable, *sys.argv])  # noqa: S606  # the same process, so that signals reach it
    return False


@contextlib.contextmanager
def _fleet(count: int, host: str) -> Iterator[Fleet]:
    with tempfile.TemporaryDirectory(prefix="quantgate-sweep-") as folder:
        stack = Stack(Path(folder) / "stack", on_postgres=True, on_s3=True, host=host)
        stack.root.mkdir()
        try:
            yield Fleet(Service(stack), count)
        finally:
            stack.close()


def main(
    models: Annotated[int, typer.Option(help="Registered models, all of them different.")] = 200,
    workers: Annotated[list[int] | None, typer.Option(help="Numbers of workers; by default 1, 2 and 4.")] = None,
    kill_every: Annotated[float, typer.Option(help="Kill a worker with its runs every so many seconds.")] = 0.0,
    minutes: Annotated[float, typer.Option(help="Longest time to wait for one sweep's runs.")] = 180.0,
) -> None:
    """Measure each number of workers on servers of its own."""
    host = SERVERS if _isolate() else "127.0.0.1"
    # A signal ends the servers as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for count in workers or (1, 2, 4):
        with _fleet(count, host) as fleet:
            row = measure(fleet, models, kill_every, 60 * minutes)
        print(json.dumps(row), flush=True)
        key = ("models", "workers", "kill_every_seconds")
        rows = earlier("scaling_sweep").get("rows", [])
        rows = [one for one in rows if any(one[part] != row[part] for part in key)] + [row]
        rows.sort(key=lambda one: [one[part] for part in key])
        save("scaling_sweep", {"rows": rows}, quiet=True)


if __name__ == "__main__":
    typer.run(main)
