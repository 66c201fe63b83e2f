"""Hostile data, models and job files through `quantgate validate`: exit code, no traceback, advice that harms nothing."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from conftest import Tiny, tiny_samples
from driving import write_job
from hostile_inputs import HOSTILE, ROWS, Hostile
from typer.testing import CliRunner

from flows.cli.app import app
from validators.digests import digest_file

# What no advice may tell people to do to their data.
HARM = re.compile(
    r"\b(delete|truncate|shuffle|reorder|overwrite|pad|fill|cast|clip|rm)\b|\b(drop|remove) (?!the axis of size 1)"
    r"|allow_pickle=True|nan_to_num",
    re.IGNORECASE,
)
LABEL = re.compile(r"^(found|expected|fix): +(\S.*)", re.MULTILINE)


@pytest.fixture(autouse=True)
def environ() -> Iterator[None]:
    """What a command sets for Prefect and MLflow holds for one call here."""
    with mock.patch.dict(os.environ):
        yield


def digests(folder: Path) -> dict[str, str]:
    """The content of each file, by its path."""
    files = [path for path in folder.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
    return {str(path): digest_file(path) for path in files if "__pycache__" not in path.parts}


def write(hostile: Hostile, folder: Path, tiny: Tiny) -> Path:
    """The files and the job of a row."""
    np.savez(folder / "calibration.npz", **tiny_samples(128, 11))
    np.savez(folder / "good.npz", **tiny_samples(ROWS, 12))
    changes = hostile.write(folder, dict(tiny_samples(ROWS, 12)))
    content = changes.pop("", None)
    data = {"calibration": "calibration.npz", "evaluation": "good.npz"}
    job = write_job(folder / "job.yaml", tiny.job(data=data, gates={"min_speedup": None, "max_drop": 0.3}) | changes)
    if isinstance(content, bytes):
        job.write_bytes(content)
    elif content is not None:
        job.write_text(content.replace("{}", job.read_text()))
    return job


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda one: one.name)
def test_hostile_input_is_named_and_left_as_it_is(
    hostile: Hostile,
    tiny: Tiny,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"reading:*@{tmp_path.resolve()}")
    job = write(hostile, tmp_path, tiny)
    before = digests(tmp_path)
    done = CliRunner().invoke(app, ["validate", str(job)])
    said = done.stderr
    assert done.exit_code == hostile.code, said[-2000:]
    assert "Traceback" not in said and not isinstance(done.exception, MemoryError)
    told = dict(LABEL.findall(said))
    assert set(told) == {"found", "expected", "fix"}, said[-2000:]
    assert hostile.words in " ".join(said.split()), said[-2000:]
    assert not HARM.search(told["fix"]), told["fix"]
    assert digests(tmp_path) == before


def test_there_are_enough_kinds_of_hostile_inputs() -> None:
    assert len({one.name for one in HOSTILE}) == len(HOSTILE) >= 60
