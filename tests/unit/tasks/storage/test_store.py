"""The store: an entry is made once, is whole or not there, and moves with its folder."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tasks.storage.product import Product
from tasks.storage.shared_entries import RECORD_FILE
from tasks.storage.store import Store
from validators.errors import InfrastructureError, StorageFull
from validators.records.measurements import Estimate

ROOT = Path(__file__).parents[4]


@dataclass(frozen=True)
class Thing:
    """A record with a path in it."""

    path: Path
    number: int
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


@dataclass
class Maker:
    """Writes one file, and counts its calls."""

    number: int = 1
    calls: int = 0

    def __call__(self, folder: Path) -> Thing:
        self.calls += 1
        (folder / "file.bin").write_bytes(b"content")
        return Thing(folder / "file.bin", self.number, ("a", "b"), {"x": 2})


def entries(store: Store) -> list[Path]:
    """Everything below the store that is not a whole entry's own file."""
    return sorted(path for path in store.root.rglob("*") if path.is_dir() and path.parent.parent == store.root)


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    """The second call, and another store on the same folder, read what the first made."""
    store, maker = Store(tmp_path / "store"), Maker()
    first, was_there = store.make(Product("thing", ("a", 1), Thing, maker))
    assert not was_there and first.path.read_bytes() == b"content"
    assert first == Thing(first.path, 1, ("a", "b"), {"x": 2})
    again, was_there = store.make(Product("thing", ("a", 1), Thing, maker))
    assert was_there and again == first
    other, was_there = Store(tmp_path / "store").make(Product("thing", ("a", 1), Thing, maker))
    assert was_there and other == first
    assert maker.calls == 1 and len(entries(store)) == 1


@pytest.mark.parametrize(
    ("kind", "key"),
    [("thing", ("a", 2)), ("other", ("a", 1)), ("thing", ("a", "1")), ("thing", ("a",)), ("thing", ("a", 1, None))],
)
def test_another_key_is_another_entry(tmp_path: Path, kind: str, key: tuple[object, ...]) -> None:
    """Any difference in kind or key makes anew; the order of a mapping's keys is none."""
    store, maker = Store(tmp_path), Maker()
    store.make(Product("thing", ("a", 1), Thing, maker))
    assert store.make(Product(kind, key, Thing, maker))[1] is False
    store.make(Product("thing", ({"x": 1, "y": 2},), Thing, maker))
    assert store.make(Product("thing", ({"y": 2, "x": 1},), Thing, maker))[1] is True
    assert maker.calls == 3


def test_paths_follow_a_store_that_moves(tmp_path: Path) -> None:
    """Also to a folder whose name JSON must escape: the record points to the file where it is now."""
    store, maker = Store(tmp_path / 'a "b"\\c'), Maker()
    store.make(Product("thing", ("a",), Thing, maker))
    moved = tmp_path / "elsewhere" / "é\tstore"
    moved.parent.mkdir()
    store.root.rename(moved)
    thing, was_there = Store(moved).make(Product("thing", ("a",), Thing, maker))
    assert was_there and maker.calls == 1
    assert thing.path.is_relative_to(moved) and thing.path.read_bytes() == b"content"


def test_a_path_outside_of_the_entry_stays(tmp_path: Path) -> None:
    """Only what lies in the entry moves with it."""
    outside = tmp_path / "data.npz"
    thing, _ = Store(tmp_path / "store").make(Product("thing", ("a",), Thing, lambda _: Thing(outside, 1)))
    assert thing.path == outside


def test_a_maker_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Its error goes on as it is, and the next call makes the entry."""
    store, maker = Store(tmp_path), Maker()

    def fail(folder: Path) -> Thing:
        maker(folder)
        raise ValueError("half done")

    with pytest.raises(ValueError, match="half done"):
        store.make(Product("thing", ("a",), Thing, fail))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert entries(store) == []
    assert store.make(Product("thing", ("a",), Thing, maker))[1] is False


def test_a_full_disk_is_said_with_what_is_free(tmp_path: Path) -> None:
    """The system's own ENOSPC, from /dev/full: an infrastructure error of its own, and nothing half there."""
    store, maker = Store(tmp_path / "not" / "there" / "yet"), Maker()

    def fill(folder: Path) -> Thing:
        maker(folder)
        with open("/dev/full", "wb", buffering=0) as stream:  # noqa: PTH123  # the device, not a file
            stream.write(b"x")
        return Thing(folder, 1)

    with pytest.raises(StorageFull, match=r"no space left for .*\(\d+ MB free\): No space left on device") as caught:
        store.make(Product("thing", ("a",), Thing, fill))
    assert isinstance(caught.value, InfrastructureError) and caught.value.exit_code == 1
    assert "QUANTGATE_STATE" in caught.value.fix and caught.value.expected
    assert entries(store) == []


def test_other_system_errors_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    """A file that is not there is a fault of the maker."""

    def missing(folder: Path) -> Thing:
        (folder / "none").read_bytes()
        raise AssertionError

    with pytest.raises(FileNotFoundError):
        Store(tmp_path).make(Product("thing", ("a",), Thing, missing))


def test_threads_that_race_for_an_entry_make_it_once(tmp_path: Path) -> None:
    """Eight at once: one makes, and all get the same; another key does not wait for it."""
    store, maker = Store(tmp_path), Maker()
    start, inside, leave = threading.Barrier(8), threading.Event(), threading.Event()
    seen: list[tuple[Thing, bool]] = []

    def slow(folder: Path) -> Thing:
        inside.set()
        assert leave.wait(60)
        return maker(folder)

    def race() -> None:
        start.wait(60)
        seen.append(store.make(Product("thing", ("a",), Thing, slow)))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert inside.wait(60)
    # The entry of another key is made while this one is being made.
    assert store.make(Product("thing", ("b",), Thing, Maker()))[1] is False
    leave.set()
    for thread in threads:
        thread.join()
    assert maker.calls == 1 and len(seen) == 8
    assert len({thing.path for thing, _ in seen}) == 1
    assert sorted(was_there for _, was_there in seen) == [False] + [True] * 7


# Another process that makes an entry: it says when it is in the middle, and goes on when it is told to.
CHILD = """
import sys
from dataclasses import dataclass
from pathlib import Path
from tasks.storage.product import Product
from tasks.storage.store import Store

@dataclass(frozen=True)
class Thing:
    path: Path
    number: int

def make(folder):
    (folder / "file.bin").write_bytes(b"content")
    print("in the middle", flush=True)
    sys.stdin.readline()
    return Thing(folder / "file.bin", int(sys.argv[2]))

thing, was_there = Store(Path(sys.argv[1])).make(Product("thing", ("a",), Thing, make))
print(thing.number, was_there, thing.path.read_bytes() == b"content", flush=True)
"""


def start_maker(root: Path, number: int) -> subprocess.Popen[str]:
    """A process in the middle of making the entry `("a",)`."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "in the middle\n"
    return process


def finish(process: subprocess.Popen[str]) -> str:
    """Let it go on; what it said."""
    said, _ = process.communicate("\n")
    assert process.returncode == 0
    return said.strip()


def test_a_process_killed_in_the_middle_leaves_no_entry(tmp_path: Path) -> None:
    """kill -9 while the files are there and the record is not: a later make finds no entry, and makes it."""
    process = start_maker(tmp_path, 1)
    written = list(tmp_path.rglob("file.bin"))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert len(written) == 1 and written[0].exists(), "the kill must come when something was written"
    assert list(tmp_path.rglob(RECORD_FILE)) == []
    maker = Maker(number=2)
    thing, was_there = Store(tmp_path).make(Product("thing", ("a",), Thing, maker))
    assert not was_there and maker.calls == 1 and thing.number == 2
    assert thing.path.read_bytes() == b"content"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_processes_that_race_end_with_one_entry(tmp_path: Path, order: tuple[int, int]) -> None:
    """Both are in the middle at once; who comes first has made it, and the other takes that and cleans up."""
    processes = [start_maker(tmp_path, number) for number in (1, 2)]
    said = [finish(processes[index]) for index in order]
    first = order[0] + 1
    assert [line.split()[0] for line in said] == [str(first), str(first)]
    assert all(line.endswith("True") for line in said)
    records = list(tmp_path.rglob(RECORD_FILE))
    assert len(records) == 1 and json.loads(records[0].read_text())["number"] == first
    assert [path.name for path in (tmp_path / "thing").iterdir()] == [records[0].parent.name]


@pytest.mark.parametrize("record", [Thing(Path("/x"), 1), Thing(Path("relative"), -3, ("ü", '"'), {"k": 0})])
def test_records_come_back_as_they_were(tmp_path: Path, record: Thing) -> None:
    """Types survive the file: paths, tuples, numbers, text."""
    make: Callable[[Path], Thing] = lambda _: record  # noqa: E731  # annotated, which a def in one line cannot be so briefly
    assert Store(tmp_path).make(Product("thing", ("a",), Thing, make))[0] == record


@pytest.mark.parametrize("name", ["josé", "模型", "with space", 'quo"te'])
def test_a_store_may_lie_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    """The record points to the entry, not to the folder in which it was made."""
    store, maker = Store(tmp_path / name), Maker()
    for was_there in (False, True):
        thing, seen = store.make(Product("thing", ("a",), Thing, maker))
        assert seen is was_there
        assert thing.path.is_relative_to(tmp_path / name) and thing.path.read_bytes() == b"content"
    assert maker.calls == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_kept(tmp_path: Path, value: float) -> None:
    """The accuracy of a variant that computes NaN is a finding, and must be readable again."""
    for was_there in (False, True):
        made, seen = Store(tmp_path).make(Product("estimate", ("a",), Estimate, lambda _: Estimate(value, None, value)))
        assert seen is was_there and repr(made) == repr(Estimate(value, None, value))
