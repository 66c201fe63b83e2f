"""Full and read-only disks: which error it is, which disk it names, and that no step or call tries again."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy
from mlflow.exceptions import MlflowException

from tasks.registry.mlflow_registry import registry_call
from tasks.run.settings import written_folders
from tasks.storage import files
from tasks.storage.files import check_room, disk_error, room_in
from validators.errors import ServiceDown, StorageFull

Usage = namedtuple("Usage", ["total", "used", "free"])


def fill_database(path: Path) -> None:
    """Write to a database until SQLite itself refuses."""
    engine = sqlalchemy.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("create table t (x blob)")
        connection.exec_driver_sql("pragma max_page_count = 8")
        connection.exec_driver_sql("insert into t values (zeroblob(100000))")


def write_full_device(_: Path) -> None:
    with Path("/dev/full").open("wb", buffering=0) as stream:
        stream.write(b"x")


@pytest.mark.parametrize("fail", [fill_database, write_full_device])
def test_a_full_disk_is_named_with_the_fullest_of_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Callable[[Path], None]
) -> None:
    """The system's and SQLite's own errors, also below one of MLflow's; they name no path."""
    free = {tmp_path / "wide": 9_000_000_000, tmp_path / "narrow": 2_000_000}
    for folder in free:
        folder.mkdir()
    monkeypatch.setattr(files.shutil, "disk_usage", lambda path: Usage(10**10, 0, free.get(path, 10**10)))

    def call() -> None:
        try:
            fail(tmp_path / "a.db")
        except Exception as error:
            raise MlflowException("INTERNAL_ERROR") from error

    with pytest.raises(StorageFull, match=r"no space left for \S*narrow \(2 MB free\)") as caught, room_in(*free):
        call()
    assert caught.value.exit_code == 1 and "TMPDIR" in caught.value.fix


def test_a_path_that_the_error_names_is_kept(tmp_path: Path) -> None:
    error = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "sub" / "file"))
    found = disk_error(error, Path("/"))
    assert found is not None and str(tmp_path / "sub" / "file") in found.found


def test_a_read_only_disk_is_called_so(tmp_path: Path) -> None:
    found = disk_error(OSError(errno.EROFS, os.strerror(errno.EROFS), "/sys/x"), tmp_path)
    assert found is not None and found.found == "cannot write /sys/x: Read-only file system"
    (tmp_path / "b.db").touch()
    connection = sqlite3.connect(f"file:{tmp_path / 'b.db'}?mode=ro", uri=True)
    with pytest.raises(StorageFull, match=r"cannot write .*readonly database"), room_in(tmp_path):
        connection.execute("create table t (x)")
    connection.close()


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), ValueError("full"), KeyError("disk")])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: Exception) -> None:
    assert disk_error(error, tmp_path) is None
    with pytest.raises(type(error)) as caught, room_in(tmp_path):
        raise error
    assert caught.value is error


def test_registry_call_tells_a_full_disk_from_a_dead_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is not worth another try."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    with pytest.raises(StorageFull):
        registry_call(fill_database, tmp_path / "mlflow.db")
    with pytest.raises(ServiceDown):
        registry_call(lambda: sqlalchemy.create_engine("sqlite://").connect().exec_driver_sql("select * from nothing"))


def test_a_run_does_not_start_on_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the state, of MLflow's database, of temporary files."""
    monkeypatch.setenv("QUANTGATE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'db' / 'mlflow.db'}")
    folders = written_folders()
    assert folders[:2] == (tmp_path / "state", tmp_path / "db") and len(folders) == 3
    check_room(*folders)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: Usage(10**10, 10**10, 63_000_000))
    with pytest.raises(StorageFull, match=r"\(63 MB free\): too little for a run"):
        check_room(*folders)
    monkeypatch.setattr(files.os, "access", lambda path, mode: str(path) != "/sys")
    with pytest.raises(StorageFull, match="cannot write /sys: read-only file system"):
        check_room(Path("/sys"))
