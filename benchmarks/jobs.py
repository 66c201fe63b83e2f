"""Jobs run by `quantgate run` in processes of their own, and what becomes of their candidates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tasks.run.settings import prepare_environment, state_folder

QUANTGATE = (sys.executable, "-m", "flows.cli.app")


# Measures in a moment, where no figure of latency is asked for.
BRIEFLY = {"launches": 1, "blocks": 3, "block_seconds": 0.02, "max_other_load": None}


class Ran(NamedTuple):
    """A run: its result document (empty if it wrote none), wall time in seconds, and exit code."""

    result: dict[str, Any]
    seconds: float
    exit: int


def state_of(name: str, *, again: bool = False) -> Path:
    """Return the state folder of a benchmark, unless the environment names one; with `again`, without its latencies."""
    os.environ.setdefault("QUANTGATE_STATE", str(Path(".quantgate", name).resolve()))
    state = state_folder()
    prepare_environment(state)
    if again:
        shutil.rmtree(state / "store" / "latency", ignore_errors=True)
    return state


def write_job(folder: Path, fields: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.yaml").write_text(yaml.safe_dump(fields, sort_keys=False), encoding="utf-8")


def run_job(folder: Path, *options: str, **variables: str) -> Ran:
    """Run `job.yaml` of a folder with these variables; `log.txt` beside it has what the command prints."""
    path = folder / "result.json"
    path.unlink(missing_ok=True)
    command = [*QUANTGATE, "run", "job.yaml", "--result", path.name, *options]
    started = time.monotonic()
    with (folder / "log.txt").open("w") as log:
        done = subprocess.run(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log, check=False)
    seconds = time.monotonic() - started
    return Ran(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}, seconds, done.returncode)


def candidates_of(result: dict[str, Any]) -> dict[str, Any]:
    """Return outcome, reason of a refusal, speedup and drop of each candidate by name."""
    return {
        one["name"]: {
            "outcome": one["outcome"],
            "refusal": one["refusal"] and one["refusal"]["reason"],
            "speedup": one["speedup_p50"] and round(one["speedup_p50"]["value"], 2),
            "drop": one["metric_drop"] and round(one["metric_drop"]["value"], 4),
        }
        for one in result["candidates"]
    }
