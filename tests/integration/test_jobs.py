"""The folder of job files, and which of them a registered model takes part with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Tiny
from driving import write_job

from tasks.service.job_files import Jobs, at_version, jobs_folder, jobs_for, read_jobs
from validators.errors import JobError
from validators.job.read_job import parse_job

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three jobs of two models, one for any, and files that are none."""
    monkeypatch.setenv("QUANTGATE_JOBS", str(tmp_path))
    write_job(tmp_path / "ranker.yaml", tiny.job(source="models:/ranker/3"))
    write_job(
        tmp_path / "ranker-rtx.yaml", tiny.job(source="models:/ranker@prod", target="tensorrt", candidates="default")
    )
    write_job(tmp_path / "file.yaml", tiny.job())
    (tmp_path / "broken.yaml").write_text("source: [")
    (tmp_path / "wrong.yaml").write_text("source: models:/ranker/1\ndata: {}\n")
    (tmp_path / "of, two.yaml").write_text("source: x")
    (tmp_path / ".#ranker.yaml").write_text("an editor's own")
    (tmp_path / "notes.txt").write_text("no job")
    return tmp_path


def test_a_broken_file_is_named_and_hides_no_other(folder: Path) -> None:
    """By its name, with what is wrong with it."""
    jobs = read_jobs()
    assert set(jobs.found) == {"ranker", "ranker-rtx", "file"}
    assert set(jobs.broken) == {"broken", "wrong", "of, two"}
    assert "broken.yaml" in jobs.broken["broken"].found and "rename" in jobs.broken["of, two"].fix


HOSTILE_TEXTS = {
    "no-integer": 'x: !!int ""',
    "no-float": 'x: !!float ""',
    "no-set": "x: !!set [a]",
    "no-date": 'x: !!timestamp ""',
    "base-60": f"x: {'1:' * 300}1.5",
    "base-60-long": f"x: {'1:' * 300_000}1",
    "digits": f"seed: {'9' * 400_000}",
    "hexadecimal": f"seed: 0x{'f' * 400_000}",
    "alias": f"x: *{'a' * 400_000}",
    "keys": "".join(f"{letter * 40_000}: 1\n" for letter in "abcdefghij"),
    "surrogate": 'source: "\\ud800"',
    "nested": f"provider_options: {'[' * 300}{']' * 300}",
}


def test_hostile_job_files_are_named_and_hide_no_other(folder: Path) -> None:
    """The folder is read in a process with a time limit: a named pipe or a device must not be waited for."""
    for name, text in HOSTILE_TEXTS.items():
        (folder / f"{name}.yaml").write_text(text)
    os.mkfifo(folder / "pipe.yaml")
    (folder / "device.yaml").symlink_to("/dev/zero")
    (folder / "folder.yaml").mkdir()
    (folder / "circle.yaml").symlink_to("circle.yaml")
    (folder / "large.yaml").write_bytes(b"#" * 5_000_000)
    (folder / os.fsdecode(b"\xff.yaml")).write_text("source: x")
    code = (
        "import json; from tasks.service.job_files import read_jobs; jobs = read_jobs();"
        "print(json.dumps([list(jobs.found), {name: str(error) for name, error in jobs.broken.items()}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    found, broken = json.loads(done.stdout)
    odd = {"pipe", "device", "folder", "circle", "large", "\\udcff"}
    assert set(found) == {"ranker", "ranker-rtx", "file"}
    assert set(broken) == {"broken", "wrong", "of, two"} | HOSTILE_TEXTS.keys() | odd
    assert all(
        len(text) <= 2000 and text.isprintable() for said in broken.values() for text in [said.replace("\n", "")]
    )
    assert "not a regular file" in broken["pipe"] and "not a regular file" in broken["device"]


def test_where_the_folder_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state folder, where it need not be; one that is named must be there."""
    monkeypatch.delenv("QUANTGATE_JOBS", raising=False)
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path))
    assert jobs_folder() == tmp_path / "jobs"
    assert read_jobs() == Jobs(tmp_path / "jobs")
    monkeypatch.setenv("QUANTGATE_JOBS", str(tmp_path / "elsewhere"))
    with pytest.raises(JobError, match="no such folder"):
        read_jobs()


@pytest.mark.parametrize(
    ("name", "tags", "expected"),
    [
        ("ranker", {}, {"ranker", "ranker-rtx"}),
        ("Ranker", {}, set()),
        ("ranker-quantized", {}, set()),
        ("ranker", {"quantgate.jobs": "none"}, set()),
        ("ranker", {"quantgate.jobs": ""}, set()),
        ("ranker", {"quantgate.jobs": " ranker-rtx "}, {"ranker-rtx"}),
        ("other", {"quantgate.jobs": "ranker-rtx,ranker,"}, {"ranker", "ranker-rtx"}),
        ("other", {"quantgate.jobs": "file"}, {"file"}),
        ("other", {"note": "ranker"}, set()),
    ],
)
def test_the_tag_decides_or_else_the_source(folder: Path, name: str, tags: dict[str, str], expected: set[str]) -> None:
    """Exact names, in any order."""
    assert set(jobs_for(name, tags, read_jobs())) == expected


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("missing", "names the job 'missing'"),
        ("ranker,../../etc/passwd", "names the job '../../etc/passwd'"),
        (str(Path(__file__).with_suffix("")), "names the job '/"),
        ("broken", "broken.yaml"),
        ("ranker,file", "ranker, file"),
    ],
)
def test_what_a_tag_gets_wrong_is_said(folder: Path, told: str, said: str) -> None:
    """Names that are not there, files that are broken, two jobs for one champion."""
    with pytest.raises(JobError, match=said.replace(".", r"\.")):
        jobs_for("other", {"quantgate.jobs": told}, read_jobs())


def test_the_source_becomes_the_new_version(folder: Path, tiny: Tiny) -> None:
    """From a version, an alias or a file; the rest of the job stays."""
    for job in read_jobs().found.values():
        at = at_version(job, "my model", "7")
        assert at == job.model_copy(update={"source": "models:/my model/7"})
        assert at.source_name == "my model"
        assert parse_job(at.model_dump(mode="json"), base=Path("/")) == at, "a form that Prefect hands on"
    for name in ("a/b", "a@b", "a:b"):
        with pytest.raises(JobError, match="without"):
            at_version(parse_job(tiny.job(), base=Path("/")), name, "7")
