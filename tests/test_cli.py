"""The command line as a process: help, usage errors, and what needs no server."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from driving import environment, write_job

from flows.cli import app
from validators.recipe import DEFAULT_CANDIDATES


def quantgate(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One call of the console script's module, with a state folder of its own."""
    command = [sys.executable, "-m", "flows.cli", *arguments]
    env = environment(tmp_path / "state", COLUMNS="200", NO_COLOR="1", TERM="dumb")
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=tmp_path, check=False)


def commands() -> list[str]:
    """The names of all commands."""
    return [
        str(command.name or command.callback.__name__).replace("_", "-")
        for command in app.registered_commands
        if command.callback
    ]


def test_each_command_has_help_with_an_example_that_fits_a_screen(tmp_path: Path) -> None:
    for name in commands():
        done = quantgate(tmp_path, name, "--help")
        assert done.returncode == 0
        assert f"Example: quantgate {name}" in done.stdout
        assert len(done.stdout.splitlines()) <= 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "none.yaml"), "none.yaml: No such file or directory"),
        (("run", "."), "Is a directory"),
        (("candidates", "none.yaml"), "none.yaml: No such file or directory"),
        (("run", "job.yaml", "--result", "nowhere/result.json"), "nowhere/result.json: no such folder"),
        (("run",), "Missing argument 'JOB'"),
        (("walk",), "No such command 'walk'"),
    ],
)
def test_usage_errors_end_with_2_and_name_what_is_wrong(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    done = quantgate(tmp_path, *arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_job_writes_an_error_document(tmp_path: Path, tiny: Tiny) -> None:
    write_job(tmp_path / "job.yaml", tiny.job(speed=3))
    done = quantgate(tmp_path, "run", "job.yaml", "--result", "result.json")
    assert done.returncode == 2
    document = (tmp_path / "result.json").read_text()
    assert '"outcome": "error"' in document
    assert "unknown key `speed`" in document
    assert not (tmp_path / "state").exists(), "a bad job must not start anything"


def test_candidates_names_all_and_says_what_cannot_run_here(tmp_path: Path, tiny: Tiny) -> None:
    write_job(tmp_path / "job.yaml", tiny.job(candidates="default", target="ort-cuda"))
    done = quantgate(tmp_path, "candidates", "job.yaml")
    assert done.returncode == 0
    for name in DEFAULT_CANDIDATES["ort-cuda"]:
        assert re.search(rf"^{re.escape(name)}\s.*made and checked, not measured", done.stdout, re.MULTILINE)


def test_doctor_names_every_target_and_the_runtime(tmp_path: Path) -> None:
    done = quantgate(tmp_path, "doctor")
    assert done.returncode == 0
    assert re.search(r"^ort-cpu\s+yes", done.stdout, re.MULTILINE)
    for target, extra in (("ort-cuda", "`gpu`"), ("ort-tensorrt", "`ort-tensorrt`"), ("tensorrt", "`tensorrt`")):
        assert re.search(rf"^{target}\s+(yes|no .*install the extras? .*{extra})", done.stdout, re.MULTILINE)
    assert "onnxruntime 1.31.1" in done.stdout
