"""Libraries of custom operators: how a job names them, how they are found, and what a manifest says of them."""

from __future__ import annotations

import hashlib
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import onnxruntime_extensions
import pytest

from tasks.run.context import start_run
from tasks.runtimes.libraries import describe_library, find_library
from validators.errors import JobError
from validators.job.job import Job
from validators.job.job_data import OperatorLibrary
from validators.job.read_job import parse_job
from validators.records.libraries import Library

PACKAGE = "onnxruntime_extensions"
# As its own metadata writes the name; an installer takes hyphens and underscores for the same.
DISTRIBUTION = metadata.metadata("onnxruntime-extensions")["Name"]
BUILT = Path(onnxruntime_extensions.get_library_path())
DIGEST = hashlib.sha256(BUILT.read_bytes()).hexdigest()
WHOLE: dict[str, Any] = {"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries that these tests load, and packages that are none."""
    import _ctypes

    contents = (BUILT.read_bytes(), Path(_ctypes.__file__).read_bytes(), b"no library")
    files = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in contents]
    listed = [PACKAGE, "yaml", "no_such_package", "ours_without_version", *files]
    monkeypatch.setenv("QUANTGATE_ALLOWED_HOOKS", ",".join(f"library={one}" for one in listed))


def job_with(base: Path, *libraries: dict[str, Any]) -> Job:
    return parse_job(WHOLE | {"operator_libraries": list(libraries)}, base=base)


def test_a_job_names_files_relative_to_itself_and_packages(tmp_path: Path) -> None:
    job = job_with(tmp_path, {"file": "built/ours.so"}, {"package": PACKAGE})
    assert job.operator_libraries == (
        OperatorLibrary(file=tmp_path / "built" / "ours.so"),
        OperatorLibrary(package=PACKAGE),
    )
    assert parse_job(WHOLE, base=tmp_path).operator_libraries == ()


@pytest.mark.parametrize(
    "libraries",
    [
        [{}],
        [{"file": "a.so", "package": "a"}],
        [{"path": "a.so"}],
        [{"file": "one/a.so"}, {"file": "two/a.so"}],
        [{"package": "a"}, {"package": "a"}],
        "a.so",
    ],
)
def test_a_library_is_one_file_or_one_package_named_once(tmp_path: Path, libraries: Any) -> None:
    with pytest.raises(JobError, match="operator_libraries"):
        parse_job(WHOLE | {"operator_libraries": libraries}, base=tmp_path)


def test_a_package_says_where_its_library_is_and_has_a_version() -> None:
    found = find_library(OperatorLibrary(package=PACKAGE))
    version = metadata.version("onnxruntime-extensions")
    assert found == Library(BUILT, DIGEST, PACKAGE, DISTRIBUTION, version)
    assert describe_library(found) == {
        "package": PACKAGE,
        "distribution": DISTRIBUTION,
        "version": version,
        "sha256": DIGEST,
    }


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    shutil.copy(BUILT, tmp_path / "ours.so")
    found = find_library(OperatorLibrary(file=tmp_path / "ours.so"))
    assert found == Library(tmp_path / "ours.so", DIGEST)
    assert describe_library(found) == {"file": "ours.so", "sha256": DIGEST}


def not_a_library(folder: Path) -> OperatorLibrary:
    (folder / "text.so").write_text("no library")
    return OperatorLibrary(file=folder / "text.so")


def without_operators(folder: Path) -> OperatorLibrary:
    """A shared library that has nothing of custom operators."""
    import _ctypes

    shutil.copy(_ctypes.__file__, folder / "other.so")
    return OperatorLibrary(file=folder / "other.so")


def without_a_distribution(folder: Path) -> OperatorLibrary:
    code = f"def get_library_path():\n    return {str(BUILT)!r}\n"
    (folder / "ours_without_version.py").write_text(code)
    return OperatorLibrary(package="ours_without_version")


FAULTS = {
    "no such file": lambda folder: OperatorLibrary(file=folder / "gone.so"),
    "does not load text.so": not_a_library,
    "does not load other.so": without_operators,
    "No module named 'no_such_package'": lambda folder: OperatorLibrary(package="no_such_package"),
    "has no attribute 'get_library_path'": lambda folder: OperatorLibrary(package="yaml"),
    "belongs to no installed distribution": without_a_distribution,
}


@pytest.mark.parametrize("words", FAULTS)
def test_what_is_no_library_is_refused_with_the_reason(
    tmp_path: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(JobError, match=words) as caught:
        find_library(FAULTS[words](tmp_path))
    assert caught.value.exit_code == 2


def test_a_run_keeps_a_copy_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built anew meanwhile is not what the run began with, and code that is mapped may not change under it."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    shutil.copy(BUILT, tmp_path / "ours.so")
    job = job_with(tmp_path, {"file": "ours.so"}, {"package": PACKAGE})
    kept, installed = start_run(job).libraries
    assert kept.path.is_relative_to(tmp_path / "state") and kept.path.name == "ours.so" and kept.digest == DIGEST
    assert installed.path == BUILT
    (tmp_path / "ours.so").write_bytes(b"")
    assert hashlib.sha256(kept.path.read_bytes()).hexdigest() == DIGEST
