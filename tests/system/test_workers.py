"""Runs whose work is done by workers: a real Prefect server, workers as processes of their own, one state folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import Answer, run_jobs, write_job
from stack import Stack, wait_until

from tasks.measure.inventory import take_inventory, usable_cores
from tasks.workers.device_limits import limit_of

STATIC, DYNAMIC = "int8-static-minmax-pc@ort-cpu", "int8-dynamic-pc@ort-cpu"

pytestmark = pytest.mark.slow


@dataclass
class Plant:
    """A stack of which runs and workers share the Prefect server."""

    stack: Stack

    @property
    def state(self) -> Path:
        """The state folder of the runs, and of workers unless they have one of their own."""
        return self.stack.state

    def start_worker(self, name: str, state: Path | None = None) -> subprocess.Popen[bytes]:
        """A worker of ort-cpu, when it has started to ask for work."""
        extra = {"QUANTGATE_STATE": str(state)} if state else {}
        process = self.stack.start_python(name, "flows.cli.app", "worker", "--target", "ort-cpu", **extra)
        wait_until(lambda: "started!" in self.stack.said(name), process)
        return process

    def run(self, name: str, job: Path) -> Answer:
        """One job whose work is handed to the workers."""
        kept = ("PREFECT_", "QUANTGATE_WORKER_")
        settings = {key: value for key, value in self.stack.settings().items() if key.startswith(kept)}
        told = settings | {"QUANTGATE_DISPATCH": "pools"}
        return run_jobs(self.state, self.stack.root / name, [{"name": name, "job": str(job)}], **told)[name]


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plant]:
    """A server with two workers of ort-cpu on this host."""
    # On SQLite, Prefect loses calls of several programs on a busy machine: its database is locked.
    plant = Plant(Stack(tmp_path_factory.mktemp("plant"), on_postgres=True))
    try:
        plant.stack.start_prefect()
        plant.start_worker("first")
        plant.start_worker("second")
        yield plant
    finally:
        plant.stack.close()


@pytest.fixture(scope="module")
def job(plant: Plant, tiny: Tiny) -> Path:
    """A job of two candidates."""
    # By size, so that the winner hangs on no time.
    return write_job(plant.stack.root / "job.yaml", tiny.job(candidates=[STATIC, DYNAMIC], objective="size"))


@pytest.fixture(scope="module")
def dispatched(plant: Plant, job: Path) -> Answer:
    """What the run with workers came to."""
    return plant.run("dispatched", job)


def by_name(answer: Answer) -> dict[str, Any]:
    """The candidates of a result."""
    assert answer.result is not None and answer.result["candidates"], answer.said[-3000:]
    return {candidate["name"]: candidate for candidate in answer.result["candidates"]}


def records(state: Path, kind: str) -> dict[str, int]:
    """The entries of a kind in the store, and when each was made: a record is touched when it is read, its folder is not."""
    found = (state / "store" / kind).glob("[0-9a-f]*/record.json")
    return {path.parent.name: path.parent.stat().st_mtime_ns for path in found}


def digests(state: Path) -> dict[str, str]:
    """The digest of each variant in the store."""
    found = [
        json.loads(path.read_text())["variant"] for path in (state / "store" / "variant").glob("[0-9a-f]*/record.json")
    ]
    return {variant["candidate"]: variant["digest"] for variant in found if variant}


def test_workers_come_to_what_one_process_comes_to(plant: Plant, job: Path, dispatched: Answer, tmp_path: Path) -> None:
    """The same artifacts under the same keys, the same accuracies, and the same evidence for each verdict."""
    here = run_jobs(tmp_path / "state", tmp_path / "runs", [{"name": "here", "job": str(job)}])["here"]
    assert dispatched.result is not None and here.result is not None
    assert (dispatched.code, dispatched.result["outcome"]) == (here.code, here.result["outcome"]) == (0, "winner")
    ours, theirs = by_name(dispatched), by_name(here)
    # The reason of a refusal first, so that a failure of this test tells it.
    for name in (STATIC, DYNAMIC):
        assert ours[name]["refusal"] == theirs[name]["refusal"], name
    assert dispatched.result["chosen"] == here.result["chosen"] == DYNAMIC
    for name in (STATIC, DYNAMIC):
        for figure in ("size_bytes", "metric_value", "coverage_macs", "changes"):
            assert ours[name][figure] == theirs[name][figure], (name, figure)
        assert ours[name]["latency_p50_ms"] > 0
    assert digests(plant.state) == digests(tmp_path / "state")
    # Keys of accuracy hold the path of the baseline's outputs, and so that of the state folder.
    assert records(plant.state, "statistics").keys() == records(tmp_path / "state", "statistics").keys()
    assert records(plant.state, "coverage").keys() == records(tmp_path / "state", "coverage").keys()


def test_nothing_is_made_twice(plant: Plant, job: Path, dispatched: Answer) -> None:
    """A second run finds all in the store, whichever worker made it; references alone were handed over."""
    before = {kind: records(plant.state, kind) for kind in ("variant", "accuracy", "coverage", "statistics")}
    assert len(before["variant"]) == 2 and len(before["statistics"]) == 1
    again = plant.run("again", job)
    assert by_name(again)[STATIC]["size_bytes"] == by_name(dispatched)[STATIC]["size_bytes"]
    assert {kind: records(plant.state, kind) for kind in before} == before
    orders = [found["parameters"] for found in plant.stack.ask("/flow_runs/filter") if "order" in found["parameters"]]
    assert {order["order"]["label"] for order in orders} == {"baseline", STATIC, DYNAMIC, "confirmation"}
    assert all(len(json.dumps(order)) < 10_000 for order in orders)


def test_no_two_are_timed_at_once(plant: Plant, dispatched: Answer) -> None:
    """The spans in which the host was held, as the server recorded them; both workers had work."""
    kinds = [f"prefect.concurrency-limit.{kind}" for kind in ("acquired", "released")]
    events = {"filter": {"event": {"name": kinds}}, "limit": 50}
    found = plant.stack.ask("/events/filter", events)["events"]
    limit = limit_of(take_inventory("ort-cpu"))
    assert {event["resource"]["prefect.resource.name"] for event in found} == {limit}
    ends = [(datetime.fromisoformat(event["occurred"]), event["event"].rpartition(".")[2]) for event in found]
    # Three at least: two candidates and the confirmation.
    assert len(ends) >= 6
    assert [kind for _, kind in sorted(ends)] == ["acquired", "released"] * (len(ends) // 2)
    runs = [found for found in plant.stack.ask("/flow_runs/filter") if "order" in found["parameters"]]
    assert len({found["labels"]["prefect.worker.name"] for found in runs}) == 2


def test_the_inventory_is_where_people_see_it(plant: Plant) -> None:
    """A variable by host and target, with what this machine has."""
    (variable,) = plant.stack.ask("/variables/filter")
    assert variable["name"].startswith("quantgate-worker-") and variable["name"].endswith("-ort-cpu")
    told = json.loads(variable["value"])
    assert (told["target"], told["cores"]) == ("ort-cpu", usable_cores())


def test_a_worker_with_another_state_folder_says_so(plant: Plant, tiny: Tiny, tmp_path: Path) -> None:
    """Neither a hang nor a second copy of everything: the run ends with both folders named."""
    for name in ("first", "second"):
        assert plant.stack.stop(name) == 0
    elsewhere = tmp_path / "elsewhere"
    plant.start_worker("stranger", state=elsewhere)
    answer = plant.run("strange", write_job(tmp_path / "job.yaml", tiny.job()))
    assert plant.stack.stop("stranger") == 0
    assert answer.code == 1
    assert str(elsewhere) in answer.said and str(plant.state) in answer.said
    assert not (elsewhere / "store" / "variant").exists()


def test_dead_or_stopped_worker_costs_its_candidate_not_the_run(plant: Plant, tiny: Tiny, tmp_path: Path) -> None:
    """SIGKILL for worker and flow at once: nobody tells the server, and the run notices."""
    slow = tiny.job()["measurement"] | {"blocks": 30, "block_seconds": 2.0}  # type: ignore[operator]  # a mapping
    job = write_job(tmp_path / "job.yaml", tiny.job(candidates=[STATIC], measurement=slow))
    plant.start_worker("doomed")
    command = [sys.executable, "-m", "flows.cli.app", "run", str(job), "--result", str(tmp_path / "result.json")]
    env = plant.stack.settings() | {"QUANTGATE_DISPATCH": "pools"}
    run = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    timed: list[int] = []

    def is_timed() -> bool:
        found = plant.stack.ask("/flow_runs/filter")
        busy = [one for one in found if one["state_type"] == "RUNNING" and one["parameters"].get("order")]
        timed[:] = [int(one["infrastructure_pid"]) for one in busy if one["parameters"]["order"]["label"] == STATIC]
        return bool(timed)

    wait_until(is_timed, run)
    os.kill(timed[0], signal.SIGSTOP)
    plant.stack.kill("doomed")
    os.killpg(timed[0], signal.SIGKILL)
    # Nothing won, and one could not be tried: no verdict, but an error.
    # It waits for a quiet machine to time on, five minutes at most.
    assert run.wait(420) == 1
    refusal = json.loads((tmp_path / "result.json").read_text())["candidates"][0]["refusal"]
    assert refusal["kind"] == "infrastructure"
    assert "has sent no heartbeat since" in refusal["reason"]
