"""Scripts of a job that make a file: the file, or a refusal that names what they did; nothing of them is left behind."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import Tiny

from tasks.evidence.given.run_script import MARK, _adapter, _make
from tasks.run.user_functions import check_places
from validators.digests import digest_file
from validators.errors import CandidateRefused, JobError
from validators.job.given_file import ADAPTERS, GivenFile
from validators.job.read_job import parse_job

SCRIPTS = """
import os, subprocess, sys, time
from pathlib import Path
import numpy as np

OUTSIDE = Path(__file__).with_name("outside")

def good(source, calibration, folder):
    assert sorted(np.load(calibration)) == ["x"] and os.getcwd() == str(folder)
    (folder / "deep").mkdir()
    (folder / "deep" / "made.onnx").write_bytes(source.read_bytes())
    return "deep/made.onnx"

def makes_folder(source, calibration, folder):
    (folder / "out").mkdir()
    (folder / "out" / "model.onnx").write_bytes(source.read_bytes())
    (folder / "out" / "tokenizer.json").write_text("{}")
    return folder / "out"

def folder_elsewhere(source, calibration, folder):
    (source.parent / "theirs").mkdir()
    source.rename(source.parent / "theirs" / "model.onnx")
    return source.parent / "theirs"

def reads_folder(source, calibration, folder):
    (folder / "made.onnx").write_bytes((source / "model.safetensors").read_bytes())
    return folder / "made.onnx"

def weights_elsewhere(source, calibration, folder):
    (folder / "made.xml").write_text("<net/>")
    (folder / "made.bin").symlink_to(source)
    return folder / "made.xml"

def writes_elsewhere(source, calibration, folder):
    (folder / "here").write_text("")
    subprocess.run([sys.executable, "-c", f"open({str(OUTSIDE)!r}, 'w')"])
    OUTSIDE.write_text("")

def empties(source, calibration, folder):
    os.truncate(__file__, 0)

def raises(source, calibration, folder):
    print("loading")
    raise ValueError("no layer of this kind")

def returns_nothing(source, calibration, folder):
    print("y" * 30_000_000)
    print("the end")

def never_ends(source, calibration, folder):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    time.sleep(600)

def forks(source, calibration, folder):
    if not os.fork():
        os.setsid()
        time.sleep(600)
    return folder / "none.onnx"

def dies(source, calibration, folder):
    os.kill(os.getpid(), 9)

def exits(source, calibration, folder):
    sys.exit(0)

def points_elsewhere(source, calibration, folder):
    (folder / "made.onnx").symlink_to(source)
    return folder / "made.onnx"

def other_ending(source, calibration, folder):
    (folder / "made.pkl").write_bytes(b"")
    return folder / "made.pkl"

def writes_much(source, calibration, folder):
    with open(folder / "made.onnx", "wb") as file:
        file.truncate(1 << 50)

def takes_memory(source, calibration, folder):
    bytearray(4_000_000_000)
"""


def made(function: str, tiny: Tiny, folder: Path) -> Path:
    (folder / "scripts.py").write_text(SCRIPTS)
    return made_by(f"scripts:{function}", folder / "scripts.py", tiny, folder, seconds=2 if "never" in function else 60)


def made_by(
    make: str, script: Path, tiny: Tiny, folder: Path, seconds: float = 60, companions: tuple[Path, ...] = ()
) -> Path:
    (folder / "entry").mkdir(parents=True)
    given = GivenFile.model_validate({"name": "ours", "make": make, "engine": "ort-cpu", "seconds": seconds})
    run: Any = SimpleNamespace(
        source=SimpleNamespace(onnx_path=tiny.model, companions=companions),
        job=SimpleNamespace(budgets=SimpleNamespace(memory_mb=2000.0)),
        libraries=(),
    )
    arrays = {"x": np.zeros((2, 64), np.float32)}
    return _make(run, given, script, sys.executable, arrays, [".onnx", ".xml"], folder / "entry")


def test_an_interpreter_is_run_only_if_the_operator_allows_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job could name any program as its `python`."""
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    (tmp_path / "program").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "program").chmod(0o755)
    given = {"name": "ours", "make": "scripts:good", "engine": "ort-cpu", "python": str(tmp_path / "program")}
    data = {"calibration": str(tiny.calibration), "evaluation": str(tiny.evaluation)}
    job = parse_job(
        {"source": str(tiny.model), "data": data, "candidates": [given], "code": str(tmp_path)}, base=tmp_path
    )
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", f"scripts:good@{tmp_path}")
    with pytest.raises(JobError, match="python=") as refusal:
        check_places(job)
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", refusal.value.fix.partition("='")[2].rstrip("'"))
    check_places(job)


@pytest.mark.parametrize("tool", ADAPTERS)
def test_a_tool_that_is_not_installed_is_named(tool: str, tiny: Tiny, tmp_path: Path) -> None:
    """Every tool has its script, whose first import of the tool fails here."""
    script, _ = _adapter(tool)
    with pytest.raises(CandidateRefused, match=f"{tool}: ModuleNotFoundError: No module named"):
        made_by(tool, script, tiny, tmp_path)


def test_an_adapter_needs_no_leave_but_its_python_does(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("QUANTGATE_ALLOWED_HOOKS", raising=False)
    data = {"calibration": str(tiny.calibration), "evaluation": str(tiny.evaluation)}
    given = {"name": "ours", "make": "nncf", "engine": "openvino"}
    raw = {"source": str(tiny.model), "target": "openvino", "data": data}
    check_places(parse_job(raw | {"candidates": [given]}, base=tmp_path))
    with pytest.raises(JobError, match="python="):
        check_places(parse_job(raw | {"candidates": [given | {"python": "/opt/nncf/bin/python"}]}, base=tmp_path))


def test_the_file_that_it_returns_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    path = made("good", tiny, tmp_path)
    assert path.parent == tmp_path / "entry" and digest_file(path) == digest_file(tiny.model)


def test_of_a_folder_the_model_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    path = made("makes_folder", tiny, tmp_path)
    assert path.parent == tmp_path / "entry" and digest_file(path) == digest_file(tiny.model)
    assert [file.name for file in path.parent.iterdir()] == ["model.onnx"]


def test_of_a_decoder_a_script_gets_the_safetensors(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools for language models start from them, and not from the graph that quantgate makes."""

    def fetch(_run: object, folder: Path) -> Path:
        (folder / "model.safetensors").write_bytes(tiny.model.read_bytes())
        return folder

    monkeypatch.setattr("tasks.evidence.given.run_script.fetch_decoder", fetch)
    (tmp_path / "scripts.py").write_text(SCRIPTS)
    script = tmp_path / "scripts.py"
    path = made_by("scripts:reads_folder", script, tiny, tmp_path, companions=(tmp_path / "genai_config.json",))
    assert digest_file(path) == digest_file(tiny.model)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("raises", "ValueError: no layer of this kind; it said: .*"),
        ("returns_nothing", "returned NoneType.*the end"),
        ("never_ends", "did not end within `seconds: 2`"),
        ("forks", r"none\.onnx, which is no file"),
        ("dies", "ended early"),
        ("exits", "SystemExit"),
        ("points_elsewhere", "no file of its work folder"),
        ("folder_elsewhere", "no file of its work folder"),
        ("weights_elsewhere", r"made\.bin lies elsewhere"),
        ("other_ending", r"made\.pkl for ort-cpu"),
        ("writes_much", "File too large|ended early"),
        ("takes_memory", "MemoryError"),
    ],
)
def test_what_goes_wrong_is_named_and_bounded(
    function: str, said: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests run scripts at the same time: those of this one have their homes here.
    (tmp_path / "homes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "homes"))
    with pytest.raises(CandidateRefused, match=said):
        made(function, tiny, tmp_path)
    assert list((tmp_path / "entry").iterdir()) == []
    end = time.monotonic() + 5
    while marked(tmp_path) and time.monotonic() < end:
        time.sleep(0.05)
    assert not marked(tmp_path)


@pytest.mark.skipif(
    ctypes.CDLL(None).syscall(444, None, 0, 1) < 3, reason="needs Linux 6.2, whose Landlock is complete"
)
def test_a_script_writes_nothing_outside_of_its_folder(tiny: Tiny, tmp_path: Path) -> None:
    """Nor does a program that it starts; its own folder takes files, which other tests show too."""
    with pytest.raises(CandidateRefused, match=r"PermissionError: .*outside.*; it said: .*PermissionError"):
        made("writes_elsewhere", tiny, tmp_path)
    assert not (tmp_path / "outside").exists()
    with pytest.raises(CandidateRefused, match="PermissionError"):
        made_by("scripts:empties", tmp_path / "scripts.py", tiny, tmp_path / "again")
    assert (tmp_path / "scripts.py").stat().st_size > 0


def marked(folder: Path) -> list[int]:
    """The processes of scripts whose home is in the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
            is_ours = MARK in environment and environment["HOME"].startswith(str(folder))
            found += [process.pid] if is_ours and process.status() != "zombie" else []
        except psutil.Error:
            continue
    return found
