"""Secrets are planted in the environment and in addresses, runs go well and badly; then all that was written is searched."""

from __future__ import annotations

import base64
import sqlite3
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from conftest import Tiny
from driving import Answer, run_jobs, write_job

PLANTED = {
    "AWS_SECRET_ACCESS_KEY": "quagga-1-Wq8sYd3k",
    "AWS_SESSION_TOKEN": "quagga-2-Pz7fLm1x",
    "MLFLOW_TRACKING_PASSWORD": "quagga-3-Rt5vBn9c",
    "REPORTS_DATABASE": "postgresql://ann:quagga-4-Kj2hGf6d@db.invalid/reports",
    "THIRD_PARTY_API_KEY": "quagga-5-Mx4wEs8a",
    "PIP_EXTRA_INDEX_URL": "https://quagga-6-Ub3tVc7y@packages.invalid/simple",
}
MARK = "quagga-"
CODE = (
    f"""
import os
NAMES = {list(PLANTED)}
"""
    + """
def told():
    return " ".join(f"{name}={os.environ[name]}" for name in NAMES)

def margin(outputs, labels):
    return outputs.max(axis=1)

def fails(outputs, labels):
    raise ValueError("cannot log in: " + told())

def step_fails(subject):
    raise RuntimeError("cannot log in: " + told())
"""
)
LOADING = CODE + "\nraise RuntimeError('cannot load: ' + told())\n"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> tuple[Path, dict[str, Answer]]:
    """A good run, hooks that fail with all secrets in their message, a registry that is down, with a password in its URI."""
    root = tmp_path_factory.mktemp("secrets")
    (root / "hooks.py").write_text(CODE)
    (root / "broken.py").write_text(LOADING)

    def call(name: str, **changes: object) -> dict[str, object]:
        return {"name": name, "job": str(write_job(root / f"{name}.yaml", tiny.job(**changes)))}

    own = {"metric_direction": "higher", "gates": {"min_speedup": None, "max_drop": 1.0}}
    measurement = tiny.job()["measurement"] | {"preprocess": "hooks:step_fails"}  # type: ignore[operator]  # a mapping
    logged = {"min_speedup": None, "logged": [{"metric": "gap", "at_most": 1.0}]}
    calls = [
        call("good", metric="hooks:margin", **own),
        call("metric", metric="hooks:fails", **own),
        call("step", step="hooks:step_fails", gates=logged),
        call("latency", measurement=measurement),
        call("loading", metric="broken:margin", **own),
    ]
    allowed = {"QUANTGATE_ALLOWED_HOOKS": f"hooks:*@{root},broken:*@{root}"}
    answers = run_jobs(root / "state", root / "runs", calls, **PLANTED, **allowed)
    down = {"MLFLOW_TRACKING_URI": "http://ann:quagga-7-Hs6kDl0q@127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    gone = [call("down", source="models:/tiny/1")]
    answers |= run_jobs(root / "state", root / "gone", gone, **(PLANTED | down), **allowed)
    return root, answers


def contents(root: Path) -> Iterator[tuple[str, bytes]]:
    """Every file, and every member of an archive; databases with what is still in their log."""
    for path in root.rglob("*"):
        if not path.is_file() or path.is_symlink():
            continue
        yield str(path), path.read_bytes()
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                yield from ((f"{path}!{name}", archive.read(name)) for name in archive.namelist())
        if path.suffix == ".db":
            with sqlite3.connect(path) as database:
                yield f"{path}!dump", "\n".join(database.iterdump()).encode()


def forms() -> list[bytes]:
    """What a secret looks like: as it is, in an address, in a header."""
    plain = [f"quagga-{number}-" for number in range(1, 8)]
    values = [value for value in PLANTED.values() if value.startswith(MARK)]
    return [text.encode() for text in (*plain, *(quote(text, safe="") for text in plain))] + [
        base64.b64encode(value.encode()) for value in values
    ]


def test_the_runs_came_to_what_they_should(world: tuple[Path, dict[str, Answer]]) -> None:
    """Else nothing would have had an occasion to tell a secret."""
    answers = world[1]
    assert {name: answer.code for name, answer in answers.items()} == {
        "good": 0,
        "metric": 2,
        "loading": 2,
        "down": 1,
        **{name: answers[name].code for name in ("step", "latency")},
    }
    assert "cannot log in: AWS_SECRET_ACCESS_KEY=***" in answers["metric"].said
    assert "cannot load" in answers["loading"].said and "registry does not answer" in answers["down"].said
    for name in ("step", "latency"):
        assert answers[name].result is not None and answers[name].result["outcome"] == "no_variant", answers[name].said


def test_no_secret_is_in_anything_that_was_written(world: tuple[Path, dict[str, Answer]]) -> None:
    """Terminal, results, state folder with both databases, artifacts, store and reports: 0 found."""
    root, answers = world
    found = [name for name, answer in answers.items() if MARK in answer.said]
    files = 0
    for name, content in contents(root):
        files += 1
        found += [f"{name}: {form.decode()}" for form in forms() if form in content]
    assert found == []
    databases = [path.name for path in (root / "state").rglob("*.db")]
    assert files > 50 and {"mlflow.db", "prefect.db"} <= set(databases)
