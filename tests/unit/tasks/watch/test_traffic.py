"""Samples drawn from traffic."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasks.watch import traffic
from tasks.watch.traffic import Traffic, TrafficFile, TrafficMark, _draw, gather_traffic, newest_files
from validators.records.run import DataFile
from validators.samples.datasets import Samples


def test_samples_too_few_for_one_batch_are_still_counted() -> None:
    """Three requests of a model with batches of four: none is drawn, and the look says that three were found."""
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(3, 2)}
    read = [Samples(DataFile(Path("a.npz"), "d", 3), arrays, None)]
    assert _draw(read, 100, 4, 0) == (None, 3)
    drawn, found = _draw(read, 100, None, 0)
    assert drawn is not None and found == len(drawn.inputs["x"]) == 3


def test_every_type_of_data_file_is_listed(tmp_path: Path) -> None:
    names = {"a.npz", "b.parquet", "c.csv", "d.arrow"}
    for name in (*names, "notes.txt", ".hidden.npz", "_part.csv"):
        (tmp_path / name).write_bytes(b"x")
    assert {file.name for file in newest_files(tmp_path, 1.0)} == names


class Clock:
    """A folder of traffic and the looks at it, with the time that a look takes it to be."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now, self.seen = folder, 1e9, TrafficMark()
        monkeypatch.setattr(traffic.time, "time", lambda: self.now)
        monkeypatch.setattr(traffic, "_read", lambda _run, file, *_: Samples(_data(file), _rows(), None))

    def write(self, name: str, at: float) -> None:
        (self.folder / name).write_bytes(b"x")
        os.utime(self.folder / name, (at, at))

    def look(self) -> set[str]:
        """The files that a look reads; it is recorded, as one with samples is."""
        watch: Any = SimpleNamespace(traffic=self.folder, newest_hours=24.0, max_samples=100, min_samples=1)
        unused: Any = None
        found: Traffic = gather_traffic(unused, watch, self.seen, unused, unused, None, draw=0)
        self.seen = found.seen if found.samples is not None else self.seen
        return {file.name for file in found.files}


def _data(file: TrafficFile) -> DataFile:
    return DataFile(Path(file.name), "d", 3)


def _rows() -> dict[str, Any]:
    return {"x": np.random.default_rng().normal(size=(3, 2)).astype(np.float32)}


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(tmp_path, monkeypatch)


def test_a_file_is_seen_once_and_again_when_it_is_written_again(clock: Clock) -> None:
    clock.write("a.npz", 1e9 - 60)
    assert (clock.look(), clock.look()) == ({"a.npz"}, set())
    clock.write("a.npz", 1e9 - 30)
    clock.write("b.npz", 1e9 - 30)
    assert (clock.look(), clock.look()) == ({"a.npz", "b.npz"}, set())


def test_a_file_from_the_future_hides_no_traffic(clock: Clock) -> None:
    """Its writer's clock is a day ahead; it is seen once, too, also when its time comes."""
    clock.write("a.npz", 1e9 - 60)
    clock.write("ahead.npz", 1e9 + 86_400)
    assert (clock.look(), clock.look()) == ({"a.npz", "ahead.npz"}, set())
    clock.now += 600
    clock.write("b.npz", 1e9 + 300)
    assert (clock.look(), clock.look()) == ({"b.npz"}, set())
    clock.now += 86_400
    clock.write("c.npz", clock.now - 1)
    assert clock.look() == {"c.npz"}


@pytest.mark.parametrize("jump", [3600.0, 86_400.0])
def test_the_watch_sees_on_after_its_clock_was_wrong(clock: Clock, jump: float) -> None:
    """A look and a file in the hour, or the day, that never was; then the clock is right again."""
    clock.now += jump
    clock.write("ahead.npz", clock.now - 1)
    assert clock.look() == {"ahead.npz"}
    clock.now -= jump - 60
    clock.write("a.npz", clock.now - 1)
    assert "a.npz" in clock.look()
    clock.now += 60
    clock.write("b.npz", clock.now - 1)
    assert (clock.look(), clock.look()) == ({"b.npz"}, set())
