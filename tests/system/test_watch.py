"""The watch on a real champion: promoted by a run into a real registry, with faults planted into its traffic and itself."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny
from driving import environment, register_models, run_jobs, write_job

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Any]]:
    """A state folder with a champion, and what looks at it came to, in the order of the steps."""
    root = tmp_path_factory.mktemp("watch")
    state, traffic = root / "state", root / "traffic"
    register_models(state, tiny.model.parent, every=True)
    (state / "jobs").mkdir()
    job = tiny.job(source="models:/tiny/1", watch={"traffic": str(traffic)})
    path = str(write_job(state / "jobs" / "tiny.yaml", job))
    unwatched = tiny.job(source="models:/tiny-torch/1", watch={"traffic": str(traffic)})
    write_job(state / "jobs" / "elsewhere.yaml", unwatched)
    (state / "jobs" / "broken.yaml").write_text("source: [")
    promoted = run_jobs(state, root / "runs", [{"name": "first", "job": path}])["first"]
    assert promoted.code == 0, promoted.said

    def write(name: str, seed: int, n: int = 400, plant: str = "") -> dict[str, Any]:
        return {"name": name, "call": "write_traffic", "arguments": [str(traffic / f"{name}.npz"), seed, n, plant]}

    def look(name: str, job: str | None = "tiny") -> dict[str, Any]:
        return {"name": name, "look": job}

    steps: list[dict[str, Any]] = [
        write("w1", 1), look("quiet", None), look("no new traffic"),
        write("w2", 2, 30), look("too few"),
        write("w3", 3, 40), write("w4", 4, 0, "unreadable"), look("few and few"),
        *(step for one in range(3) for step in (write(f"c{one}", 10 + one, plant="one cluster"), look(f"cluster {one}"))),
        {"name": "d", "call": "deploy"},
        {"name": "ask", "call": "set_watch", "arguments": [path], "with": {"on_drift": "requantize"}},
        *(step for one in range(2) for step in (write(f"s{one}", 20 + one, plant="scaled"), look(f"scaled {one}"))),
        {"name": "started", "call": "started"},
        {"name": "damaged", "call": "damage_champion"},
        {"name": "back", "call": "set_watch", "arguments": [path], "with": {"on_disagreement": "rollback"}},
        *(step for one in range(2) for step in (write(f"b{one}", 30 + one), look(f"damaged {one}"))),
        {"name": "champion", "call": "champion"},
        write("w5", 5), look("after"),
    ]  # fmt: skip
    asked, answers = root / "steps.json", root / "answers.json"
    asked.write_text(json.dumps(steps))
    command = [sys.executable, str(TESTS / "watching.py"), str(asked), str(answers)]
    settings = environment(state, PYTHONPATH=os.pathsep.join([str(TESTS.parent), str(TESTS.parents[1])]))
    done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return state, json.loads(answers.read_text())


def one(world: tuple[Path, dict[str, Any]], name: str) -> dict[str, Any]:
    """The one look of a step."""
    (looked,) = world[1][name]["looks"]
    found: dict[str, Any] = looked
    return found


def kinds(looked: dict[str, Any]) -> set[str]:
    return {alarm["kind"] for alarm in looked["alarms"]}


def test_traffic_like_the_calibration_data_is_quiet(world: tuple[Path, dict[str, Any]]) -> None:
    """All three figures are there; and a job that is broken fails its own look alone, which the state says."""
    told = world[1]["quiet"]
    looks = {looked["job"]: looked for looked in told["looks"]}
    assert told["state"] == "Error" and looks["broken"]["outcome"] == "error"
    assert looks["elsewhere"]["outcome"] == "nothing" and "no champion" in looks["elsewhere"]["reason"]
    assert looks["tiny"]["outcome"] == "quiet" and looks["tiny"]["samples"] == 400
    assert {signal["kind"] for signal in looks["tiny"]["signals"]} == {"drift", "saturation", "disagreement"}


def test_a_look_takes_what_none_has_had_yet(world: tuple[Path, dict[str, Any]]) -> None:
    """Nothing new is nothing; too few are put off, and count with the next; what cannot be read is said."""
    assert one(world, "no new traffic")["outcome"] == "nothing"
    assert "30 new samples" in one(world, "too few")["reason"]
    later = one(world, "few and few")
    assert (later["outcome"], later["samples"]) == ("quiet", 70)
    assert any("w4.npz" in note for note in later["notes"])


def test_requests_of_one_cluster_alone_are_drift(world: tuple[Path, dict[str, Any]]) -> None:
    """At the third look, and nothing but drift: no value leaves its range, and every answer is right."""
    looks = [one(world, f"cluster {place}") for place in range(3)]
    assert [looked["outcome"] for looked in looks] == ["quiet", "quiet", "alarm"]
    assert kinds(looks[2]) == {"drift"} and looks[2]["action"] == ""


def test_scaled_requests_leave_the_ranges_and_start_one_run(world: tuple[Path, dict[str, Any]]) -> None:
    """One for each kind of alarm and version, with its key; later looks say that it was done."""
    last = one(world, "scaled 1")
    assert "saturation" in kinds(last)
    started = world[1]["started"]
    assert all(run["source"] == "models:/tiny/1" and "tiny-quantized 1 ort-cpu" in run["key"] for run in started)
    assert len({run["key"] for run in started}) == len(started) >= 1
    assert "at an earlier look" in last["action"]


def test_a_champion_that_lost_a_class_is_rolled_back(world: tuple[Path, dict[str, Any]]) -> None:
    """At the second look at it; the version before is the champion again, and quiet."""
    assert one(world, "damaged 0")["outcome"] == "quiet"
    found = one(world, "damaged 1")
    assert found["version"] == world[1]["damaged"] and kinds(found) == {"disagreement"}
    assert found["action"].startswith("rolled back")
    assert world[1]["champion"] == "1"
    assert "disagreement" not in kinds(one(world, "after")) and one(world, "after")["version"] == "1"


def test_the_trend_is_a_curve_in_mlflow(world: tuple[Path, dict[str, Any]]) -> None:
    """One run for each version that was watched, one step for each look that had samples."""
    query = (
        "SELECT t.value, m.step FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid "
        "WHERE m.key = 'agreement' AND t.key = 'quantgate.watch.version' ORDER BY 1, 2"
    )
    with sqlite3.connect(world[0] / "mlflow.db") as database:
        rows = database.execute(query).fetchall()
    steps: dict[str, list[int]] = {}
    for version, step in rows:
        steps.setdefault(version, []).append(step)
    of = {version.partition("@")[0].rpartition("/")[2]: found for version, found in steps.items()}
    assert of == {"1": list(range(1, 9)), world[1]["damaged"]: [1, 2]}
