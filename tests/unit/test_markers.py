"""Tests of a GPU run where there is one, and are left out where there is none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import conftest
import pytest


class Item:
    """A collected test."""

    def __init__(self, *markers: str, path: Path = Path("tests/unit/test_x.py")) -> None:
        self.markers = [*markers]
        self.path = path

    def add_marker(self, name: str) -> None:
        """As pytest's."""
        self.markers.append(name)

    def get_closest_marker(self, name: str) -> object | None:
        """As pytest's."""
        return name if name in self.markers else None


def config_of(markexpr: str, told: list[Any]) -> Any:
    """What the hook asks of pytest."""
    hook = SimpleNamespace(pytest_deselected=lambda items: told.extend(items))
    return SimpleNamespace(hook=hook, getoption={"markexpr": markexpr}.__getitem__)


@pytest.mark.parametrize(("markexpr", "left"), [("", 1), ("slow", 1), ("faults", 2), ("slow or faults", 2)])
def test_every_fault_is_tried_where_it_is_asked_for(markexpr: str, left: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the marker's name, and told as deselected otherwise."""
    items: list[Any] = [Item(), Item("faults")]
    told: list[Any] = []
    monkeypatch.setattr(conftest, "has_gpu", lambda: True)
    conftest.pytest_collection_modifyitems(config_of(markexpr, told), items)
    assert (len(items), len(told)) == (left, 2 - left)


@pytest.mark.parametrize("there", [False, True])
def test_tests_of_a_gpu_are_left_out_without_one(there: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They alone, and told as deselected."""
    plain, slow, gpu, both = Item(), Item("slow"), Item("gpu"), Item("slow", "gpu")
    items: list[Any] = [plain, gpu, slow, both]
    told: list[Any] = []
    config = config_of("", told)
    monkeypatch.setattr(conftest, "has_gpu", lambda: there)
    conftest.pytest_collection_modifyitems(config, items)
    assert items == ([plain, gpu, slow, both] if there else [plain, slow])
    assert told == ([] if there else [gpu, both])


def test_system_tests_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    unit, system = Item(), Item(path=conftest.SYSTEM / "test_x.py")
    monkeypatch.setattr(conftest, "has_gpu", lambda: True)
    conftest.pytest_collection_modifyitems(config_of("", []), [unit, system])
    assert (unit.markers, system.markers) == ([], ["slow"])


def test_a_gpu_is_there_where_the_driver_shows_one(tmp_path: Path) -> None:
    """Numbered device files; the driver's own are there without a GPU too."""
    for name in ("nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert not conftest.has_gpu(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert conftest.has_gpu(tmp_path)
