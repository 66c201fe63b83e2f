"""Real processes of the project for the tests that need them: a user of the registry, runs of jobs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from databases import lend_both

TESTS = Path(__file__).parent


@dataclass(frozen=True)
class Answer:
    """What one run came to: all that it said, of that what went to standard output, and the limits that it exceeded."""

    code: int
    said: str
    result: dict[str, Any] | None
    out: str = ""
    exceeded: Sequence[str] = ()


def environment(state: Path, **extra: str) -> dict[str, str]:
    """This process's environment with a state folder of its own and none of the user's servers."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "QUANTGATE_"))
    }
    return kept | {"QUANTGATE_STATE": str(state)} | extra


def register_models(state: Path, folder: Path, python: str = sys.executable, *, every: bool = False) -> None:
    """Log and register `folder/tiny.onnx` as `tiny`; if `every`, all models of tests/support/user.py."""
    if python == sys.executable:
        lend_both(state)
    command = [python, str(TESTS / "user.py"), str(folder), *(["--all"] if every else [])]
    done = subprocess.run(command, env=environment(state), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def write_job(path: Path, job: dict[str, object]) -> Path:
    """Write a job file."""
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def run_jobs(
    state: Path,
    folder: Path,
    calls: list[dict[str, object]],
    *,
    bare: bool = False,
    plain: bool = False,
    **extra: str,
) -> dict[str, Answer]:
    """Run jobs in one process; each call has a name, the job's path and what `drive.answer` reads of the rest.

    A `bare` state folder is left without databases. `plain` calls run without Prefect's engine.
    """
    if not bare:
        lend_both(state)
    folder.mkdir(parents=True, exist_ok=True)
    asked, answers = folder / "calls.json", folder / "answers.json"
    asked.write_text(json.dumps(calls))
    command = [sys.executable, str(TESTS / "drive.py"), str(asked), str(answers)]
    command += ["--plain"] if plain else []
    done = subprocess.run(command, env=environment(state, **extra), capture_output=True, text=True, check=False)
    assert answers.exists(), (done.stdout + done.stderr)[-3000:]
    return {name: Answer(**answer) for name, answer in json.loads(answers.read_text()).items()}
