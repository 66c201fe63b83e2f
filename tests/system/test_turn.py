"""Two runs of one model for one target at the same time: the second waits, and then has nothing left to do."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from conftest import Tiny, tiny_model
from driving import environment, register_models, write_job
from stack import wait_until

from tasks.run.exclusive_run import turn_name

DYNAMIC = "int8-dynamic-pc@ort-cpu"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("models:/m/1", "ort-cpu"), ("models:/m/22", "ort-cpu"), True),
        (("models:/m/1", "ort-cpu"), ("models:/m@live", "ort-cpu"), True),
        (("models:/m/1", "ort-cpu"), ("models:/m/1", "tensorrt"), False),
        (("models:/m/1", "ort-cpu"), ("models:/m2/1", "ort-cpu"), False),
        (("/data/1", "ort-cpu"), ("/data/2", "ort-cpu"), False),
    ],
)
def test_who_takes_turns(one: tuple[str, str], other: tuple[str, str], same: bool) -> None:
    """Versions of one model are promoted to one alias; other targets and models are in nobody's way."""
    assert (turn_name(*one) == turn_name(*other)) is same


@pytest.mark.slow
def test_the_second_of_two_runs_waits_and_promotes_nothing_again(tiny: Tiny, tmp_path: Path) -> None:
    """Started while the first is at work: every candidate is from the store, and the registry has one version."""
    state = tmp_path / "state"
    onnx.save(tiny_model(*tiny.weights), tmp_path / "tiny.onnx")
    register_models(state, tmp_path)
    job = write_job(tmp_path / "job.yaml", tiny.job(source="models:/tiny/1", candidates=[DYNAMIC], objective="size"))

    def start(name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "flows.cli.app", "run", str(job), "--result", str(tmp_path / f"{name}.json")]
        with (tmp_path / f"{name}.log").open("wb") as log:
            return subprocess.Popen(command, env=environment(state), stdout=log, stderr=log)

    first = start("first")
    wait_until(lambda: any((state / "locks").glob("run*.lock")), first)
    # Stopped while it holds the turn: the second is sure to come before its end.
    first.send_signal(signal.SIGSTOP)
    second = start("second")
    wait_until(lambda: f"is held by process {first.pid}" in (tmp_path / "second.log").read_text(), second)
    first.send_signal(signal.SIGCONT)
    assert (first.wait(300), second.wait(300)) == (0, 0)
    ended: dict[str, Any] = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("first", "second")}
    assert [ended[name]["candidates"][0]["cached"] for name in ("first", "second")] == [False, True]
    assert ended["first"]["champion"]["version"] == ended["second"]["champion"]["version"]
    with sqlite3.connect(state / "mlflow.db") as database:
        versions = database.execute("SELECT count(*) FROM model_versions WHERE name = 'tiny-quantized'").fetchone()
    assert versions == (1,)
