"""Jobs run by `quantgate run` in processes of their own, and what becomes of their candidates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

QUANTGATE = (sys.executable, "-m", "flows.cli.app")


class Ran(NamedTuple):
    """A run: its result document (empty if it wrote none), wall time in seconds, and exit code."""

    result: dict[str, Any]
    seconds: float
    exit: int


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
