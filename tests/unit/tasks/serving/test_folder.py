"""A folder that is written whole or not at all, and replaced only if it is what was written before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.serving import folder
from tasks.serving.folder import MARK, write_folder
from validators.digests import digest_text
from validators.errors import InfrastructureError, JobError


def write(place: Path, text: str) -> None:
    """A file that is moved there, and a text."""
    source = place.parent / "download"
    source.write_text(text)
    write_folder(place, {"1/model.onnx": source, "config.pbtxt": f"of {text}"}, {"version": text}, place.parent)


def held(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in place.rglob("*") if path.is_file()}


def test_it_says_what_it_holds(tmp_path: Path) -> None:
    place = tmp_path / "m"
    place.mkdir()  # an empty one is as good as none
    write(place, "a")
    found = held(place)
    told = json.loads(found.pop(MARK))
    assert found == {"1/model.onnx": "a", "config.pbtxt": "of a"}
    assert told == {"version": "a", "files": {name: digest_text(text) for name, text in found.items()}}
    assert [path.name for path in tmp_path.iterdir()] == ["m"], "nothing is left beside it"
    assert place.stat().st_mode & 0o055, "a server of another user reads it"


def test_what_was_written_before_is_replaced(tmp_path: Path) -> None:
    for text in ("a", "b"):
        write(tmp_path / "m", text)
    assert held(tmp_path / "m")["1/model.onnx"] == "b" and [path.name for path in tmp_path.iterdir()] == ["m"]


def add(place: Path) -> None:
    (place / "2").mkdir()
    (place / "2" / "model.onnx").write_text("mine")


def change(place: Path) -> None:
    (place / "config.pbtxt").write_text("mine")


def take(place: Path) -> None:
    (place / "config.pbtxt").unlink()


def unmark(place: Path) -> None:
    (place / MARK).unlink()


def garble(place: Path) -> None:
    (place / MARK).write_text("[]")


def lead_elsewhere(place: Path) -> None:
    place.rename(place.with_name("other"))
    place.symlink_to("other")


@pytest.mark.parametrize("spoil", [add, change, take, unmark, garble, lead_elsewhere])
def test_anything_else_is_refused_and_stays(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    place = tmp_path / "m"
    write(place, "a")
    spoil(place)
    before = held(place)
    with pytest.raises(JobError, match=str(place)):
        write(place, "b")
    assert held(place) == before


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("mine")
    with pytest.raises(JobError, match="was not written by quantgate"):
        write(tmp_path / "m", "b")


@pytest.mark.parametrize("at", ["move", "put"])
def test_a_failure_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """While files are moved, and between the two renames: the old folder, whole, and nothing beside it."""
    place = tmp_path / "m"
    write(place, "a")
    before = held(place)

    def full(*_: object) -> None:
        raise OSError("no space left")

    if at == "move":
        monkeypatch.setattr(folder.shutil, "move", full)
    else:
        rename = Path.rename
        monkeypatch.setattr(Path, "rename", lambda path, to: full() if path.name == "new" else rename(path, to))
    with pytest.raises(InfrastructureError, match="no space left"):
        write(place, "b")
    monkeypatch.undo()
    assert held(place) == before
    assert sorted(path.name for path in tmp_path.iterdir()) in (["download", "m"], ["m"])
