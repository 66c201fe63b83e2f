"""Code that a job names runs only where the operator's environment names it too."""

from __future__ import annotations

import hashlib
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from conftest import Tiny

from tasks.measure.latency.process import Contestant, Worker
from tasks.measure.metrics.user_code import load_function
from tasks.runtimes.libraries import find_library
from validators.errors import CandidateRefused, JobError
from validators.job.job_data import OperatorLibrary
from validators.job.job_measurement import Measurement
from validators.records.run import SessionSettings
from validators.untrusted.operator_allowlist import check_hook, check_library, may_unpickle


def plant(folder: Path, name: str = "mine") -> Path:
    """A module that leaves a canary when it is loaded; returns the canary's path."""
    folder.mkdir(parents=True, exist_ok=True)
    canary = folder / "canary"
    text = (
        f"from pathlib import Path\nfrom os import system\nPath({str(canary)!r}).touch()\ndef score():\n    return 1\n"
    )
    (folder / f"{name}.py").write_text(text)
    return canary


def allow(monkeypatch: pytest.MonkeyPatch, *entries: object) -> None:
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", ",".join(map(str, entries)))


@pytest.fixture(autouse=True)
def nothing_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUANTGATE_ALLOWED_HOOKS", raising=False)


def test_nothing_is_allowed_unless_it_is_listed(tmp_path: Path) -> None:
    """Neither a file of the job's nor what anybody has installed; it is not even loaded."""
    canary = plant(tmp_path)
    for name in ("mine:score", "os:system", "statistics:fmean"):
        with pytest.raises(JobError, match="does not allow"):
            load_function(name, tmp_path, key="metric")
    assert not canary.exists()


def test_the_fix_is_the_line_that_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set as it is told, it allows this function beside what was allowed before."""
    canary = plant(tmp_path)
    allow(monkeypatch, "other:one")
    with pytest.raises(JobError) as caught:
        load_function("mine:score", tmp_path, key="metric")
    line = re.fullmatch(r"if you trust this code: export (.*)", caught.value.fix)
    assert line is not None
    variable, _, value = shlex.split(line[1])[0].partition("=")
    monkeypatch.setenv(variable, value)
    assert load_function("mine:score", tmp_path, key="metric").function() == 1
    assert canary.exists() and "other:one" in value.split(",")


def test_an_allowed_name_does_not_let_a_file_of_that_name_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever may name a folder in a job could bring their own `statistics.py` along, or another folder's `mine.py`."""
    canary = plant(tmp_path, "statistics")
    allow(monkeypatch, "statistics:*", f"statistics:*@{tmp_path / 'elsewhere'}")
    with pytest.raises(JobError, match="a file in"):
        load_function("statistics:score", tmp_path, key="metric")
    assert not canary.exists()
    assert load_function("statistics:fmean", tmp_path / "none", key="metric").function([1, 3]) == 2


def test_the_way_to_a_folder_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`..` and links lead to the folder that is meant, allowed or not."""
    canary = plant(tmp_path / "evil")
    (tmp_path / "good").mkdir()
    allow(monkeypatch, f"mine:*@{tmp_path / 'good'}")
    with pytest.raises(JobError, match="does not allow"):
        load_function("mine:score", tmp_path / "good" / ".." / "evil", key="metric")
    assert not canary.exists()
    (tmp_path / "link").symlink_to(tmp_path / "evil")
    allow(monkeypatch, f"mine:score@{tmp_path / 'evil'}")
    assert load_function("mine:score", tmp_path / "link", key="metric").function() == 1


@pytest.mark.parametrize("name", ["mine:system", "mine:Path"])
def test_a_star_is_for_what_the_module_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What it imports comes along only by its own name."""
    plant(tmp_path)
    allow(monkeypatch, f"mine:*@{tmp_path}")
    with pytest.raises(JobError, match="no function"):
        load_function(name, tmp_path, key="metric")
    allow(monkeypatch, f"{name}@{tmp_path}")
    assert callable(load_function(name, tmp_path, key="metric").function)


@pytest.mark.parametrize("entry", ["*", "*:*", "mine", "mine:", "mine:scor*", "MINE:SCORE", "mine.score"])
def test_no_other_pattern_allows_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """A list that was meant to allow less must not allow more."""
    plant(tmp_path)
    allow(monkeypatch, entry, f"{entry}@{tmp_path}")
    with pytest.raises(JobError, match="does not allow"):
        check_hook("mine:score", tmp_path, key="metric")


def test_what_was_loaded_before_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are kept for the life of a process; the permission is not."""
    plant(tmp_path)
    allow(monkeypatch, f"mine:score@{tmp_path}")
    load_function("mine:score", tmp_path, key="metric")
    allow(monkeypatch)
    with pytest.raises(JobError, match="does not allow"):
        load_function("mine:score", tmp_path, key="metric")


def test_the_measuring_process_holds_the_same_rule(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It loads functions by name, from what its parent tells it."""
    canary = plant(tmp_path)
    np.savez(tmp_path / "x.npz", x=np.ones((1, 1, 64), np.float32))
    contestant = Contestant(tiny.model, SessionSettings("CPUExecutionProvider", 1))
    measurement = Measurement(preprocess="mine:score")
    with pytest.raises(CandidateRefused), Worker(contestant, tmp_path / "x.npz", measurement, tmp_path) as one:
        one.block(0.0, 1)
    assert not canary.exists()
    allow(monkeypatch, f"mine:score@{tmp_path}")
    with pytest.raises(CandidateRefused), Worker(contestant, tmp_path / "x.npz", measurement, tmp_path) as one:
        one.block(0.0, 1)  # it takes no argument
    assert canary.exists()


def test_a_library_is_allowed_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under any name, and no other one under its name."""
    (tmp_path / "ours.so").write_bytes(b"library")
    digest = hashlib.sha256(b"library").hexdigest()
    with pytest.raises(JobError, match="does not allow") as caught:
        find_library(OperatorLibrary(file=tmp_path / "ours.so"))
    assert caught.value.fix.endswith(f"export QUANTGATE_ALLOWED_HOOKS='library=sha256:{digest}'")
    allow(monkeypatch, f"library=sha256:{digest}")
    with pytest.raises(JobError, match="does not load"):
        find_library(OperatorLibrary(file=tmp_path / "ours.so"))
    (tmp_path / "ours.so").write_bytes(b"another")
    with pytest.raises(JobError, match="does not allow"):
        find_library(OperatorLibrary(file=tmp_path / "ours.so"))


def test_a_package_is_not_imported_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it runs it; and a function that is allowed makes no package one."""
    canary = plant(tmp_path, "package_of_mine")
    monkeypatch.syspath_prepend(tmp_path)
    allow(monkeypatch, "package_of_mine:get_library_path")
    with pytest.raises(JobError, match="does not allow"):
        find_library(OperatorLibrary(package="package_of_mine"))
    assert not canary.exists()
    allow(monkeypatch, "library=package_of_mine")
    check_library("package_of_mine", "")
    with pytest.raises(JobError, match="get_library_path"):
        find_library(OperatorLibrary(package="package_of_mine"))
    assert canary.exists()


def test_pickles_are_allowed_by_the_name_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, or of one version; by no pattern."""
    assert not may_unpickle("tiny", "1")
    monkeypatch.setenv("QUANTGATE_ALLOWED_PICKLES", "small, tiny/2,*,tin")
    assert may_unpickle("small", "7") and may_unpickle("tiny", "2")
    assert not may_unpickle("tiny", "1") and not may_unpickle("smal", "1") and not may_unpickle("other", "1")
