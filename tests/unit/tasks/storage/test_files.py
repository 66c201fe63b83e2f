"""Files appear complete or not at all; what killed makers left is removed when it is old, and nothing else."""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.cli.doctor import IDLE_SECONDS, clean
from tasks.storage.files import OLD_SECONDS, remove_leftovers, write_once, write_whole


def write(path: Path, age_seconds: float) -> Path:
    """A file that was last written so long ago, as its folder was."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("half")
    at = time.time() - age_seconds
    for each in (path, path.parent):
        os.utime(each, (at, at))
    return path.parent


@pytest.mark.parametrize(
    ("name", "age_seconds", "stays"),
    [
        (".making-a1b2", OLD_SECONDS + 60, False),
        (".making-a1b2", OLD_SECONDS - 60, True),
        ("0f3c", OLD_SECONDS + 60, True),
        (".other", OLD_SECONDS + 60, True),
    ],
)
def test_what_is_old_and_half_made_goes(tmp_path: Path, name: str, age_seconds: float, stays: bool) -> None:
    folder = write(tmp_path / "variant" / name / "model.onnx", age_seconds)
    remove_leftovers(tmp_path)
    assert folder.exists() == stays


def test_a_maker_that_still_writes_keeps_its_folder(tmp_path: Path) -> None:
    """The folder is old, and so is one file; another one is being written."""
    folder = write(tmp_path / "engine" / ".making-x" / "first", OLD_SECONDS * 2)
    (folder / "deep").mkdir()
    (folder / "deep" / "second").write_text("more")
    os.utime(folder, (0, 0))
    remove_leftovers(tmp_path)
    assert folder.exists()


def test_doctor_deletes_what_is_idle_and_lists_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half-made entries, half-written files, temporary folders; finished entries and those of others are not named."""
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    monkeypatch.setenv("QUANTGATE_STATE", str(state))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    old = IDLE_SECONDS + 60
    gone = [
        write(state / "store" / "variant" / ".making-a" / "model.onnx", old),
        write(temporary / "quantgate-x1" / "part", old),
    ]
    (state / "jobs").mkdir()
    half = state / "jobs" / ".0a1b.writing"
    half.write_text("x")
    os.utime(half, (time.time() - old,) * 2)
    kept = [
        write(state / "store" / "variant" / ".making-b" / "model.onnx", IDLE_SECONDS - 60),
        write(state / "store" / "variant" / "0f3c" / "record.json", old),
        write(temporary / "another-x1" / "part", old),
    ]
    answer = clean()
    assert not any(path.exists() for path in (*gone, half)) and all(path.exists() for path in kept)
    told = {one["path"]: one["deleted"] for one in answer.document["leftovers"]}
    assert told == dict.fromkeys(map(str, (*gone, half)), True) | {str(kept[0]): False}
    assert [one["deleted"] for one in clean().document["leftovers"]] == [False]


def test_a_store_that_is_not_there_has_none(tmp_path: Path) -> None:
    remove_leftovers(tmp_path / "store")


def test_a_file_is_replaced_whole_or_stays(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with write_whole(path) as partial:
        partial.write_text("first")
        assert not path.exists()

    def fail() -> None:
        with write_whole(path) as partial:
            partial.write_text("second")
            raise ValueError("half done")

    with pytest.raises(ValueError, match="half"):
        fail()
    assert path.read_text() == "first" and list(tmp_path.iterdir()) == [path]


def test_of_many_writers_one_writes_a_file_once(tmp_path: Path) -> None:
    path = tmp_path / "marker"
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda n: write_once(path, lambda partial: partial.write_text(f"{n}")), range(8)))
    assert wrote.count(True) == 1 and path.read_text() == f"{wrote.index(True)}" and list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_private_from_its_first_byte(tmp_path: Path) -> None:
    seen: list[int] = []

    def write(partial: Path) -> None:
        partial.write_text("secret")
        seen.append(partial.stat().st_mode & 0o777)

    assert write_once(tmp_path / "key", write, mode=0o600)
    assert seen == [0o600] and (tmp_path / "key").stat().st_mode & 0o777 == 0o600
