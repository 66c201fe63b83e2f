"""What every backend of shared blobs must do: the same tests for a folder, for S3, and for a backend that only tests have."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3_server import s3_stack, some_place

from tasks.storage import blobs as catalog
from tasks.storage.blobs import BACKENDS, NO_VERSION, Blobs, is_address, open_blobs
from tasks.storage.leases import open_locks
from tasks.storage.product import Product
from tasks.storage.shared_entries import check_conditions
from tasks.storage.store import open_store
from validators.errors import InfrastructureError, JobError, LockTaken, ObjectMissing, StorageFull, StorageRefused

MEMORY: dict[str, dict[str, tuple[bytes, str]]] = {}


@dataclass
class MemoryBlobs:
    """A backend in one class, as one for another service would be: blobs of this process, by address."""

    address: str
    kept: dict[str, tuple[bytes, str]]
    versions = itertools.count(1)

    def read(self, name: str) -> tuple[bytes, str]:
        if name not in self.kept:
            raise ObjectMissing(found=f"no {name}", expected="a blob", fix="store one")
        return self.kept[name]

    def fetch(self, name: str, path: Path, sha256: str) -> None:
        data, _ = self.read(name)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InfrastructureError(found="another sha256", expected=sha256, fix="delete it")
        path.write_bytes(data)

    def write_once(self, name: str, content: bytes | Path) -> str | None:
        data = content if isinstance(content, bytes) else content.read_bytes()
        mine = (data, str(next(self.versions)))
        return mine[1] if self.kept.setdefault(name, mine) is mine else None

    def replace(self, name: str, data: bytes, version: str) -> str | None:
        with LOCK:
            if self.kept.get(name, (b"", ""))[1] != version:
                return None
            self.kept[name] = (data, str(next(self.versions)))
            return self.kept[name][1]

    def list(self, prefix: str) -> Iterator[str]:
        yield from sorted(name for name in self.kept if name.startswith(f"{prefix}/"))

    def delete(self, name: str, version: str | None = None) -> bool:
        with LOCK:
            if version is not None and self.kept.get(name, (b"", ""))[1] != version:
                return False
            self.kept.pop(name, None)
            return True


LOCK = threading.Lock()


def open_memory(address: str, _seconds: float | None) -> MemoryBlobs:
    """Open `memory://name`."""
    return MemoryBlobs(address, MEMORY.setdefault(address, {}))


@pytest.fixture(scope="module")
def s3_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A running S3 server."""
    with s3_stack(tmp_path_factory.mktemp("s3")):
        yield


@pytest.fixture(params=["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address below which nothing is; for the test's backend one row of the table is all that is added."""
    if request.param == "s3":
        request.getfixturevalue("s3_address")
        return str(some_place())
    monkeypatch.setitem(catalog.BACKENDS, "memory", open_memory)
    return f"file://{tmp_path / 'shared'}" if request.param == "file" else f"memory://{os.urandom(4).hex()}"


@pytest.fixture
def blobs(address: str) -> Blobs:
    """The blobs below the address."""
    opened = open_blobs(f"{address}/store")
    assert opened.address == f"{address}/store"
    return opened


def test_first_write_of_a_name_is_kept(blobs: Blobs) -> None:
    with pytest.raises(ObjectMissing):
        blobs.read("marker")
    version = blobs.write_once("marker", b"first")
    assert version and blobs.read("marker") == (b"first", version)
    assert blobs.write_once("marker", b"second") is None
    assert open_blobs(blobs.address).read("marker") == (b"first", version)


def test_one_of_many_writers_at_once_is_told_that_it_wrote(blobs: Blobs) -> None:
    with ThreadPoolExecutor(8) as pool:
        wrote = list(pool.map(lambda number: blobs.write_once("kind/a/record.json", b"%d" % number), range(8)))
    (winner,) = [number for number, version in enumerate(wrote) if version]
    assert blobs.read("kind/a/record.json") == (b"%d" % winner, wrote[winner])


def test_replace_wants_the_version_that_is_there(blobs: Blobs) -> None:
    assert blobs.replace("x", b"0", NO_VERSION) is None
    first = blobs.write_once("x", b"1")
    assert first and blobs.replace("x", b"2", NO_VERSION) is None
    second = blobs.replace("x", b"2", first)
    assert second and second != first and blobs.read("x") == (b"2", second)
    assert blobs.replace("x", b"3", first) is None and blobs.read("x")[0] == b"2"


def test_replacements_exclude_each_other(blobs: Blobs) -> None:
    """Four threads count by compare and swap: each number is written once, and none is lost."""
    blobs.write_once("number", b"0 first")

    def add(thread: int) -> list[int]:
        wrote: list[int] = []
        while len(wrote) < 5:
            data, version = blobs.read("number")
            value = int(data.split()[0]) + 1
            if blobs.replace("number", b"%d %d %d" % (value, thread, len(wrote)), version):
                wrote.append(value)
        return wrote

    with ThreadPoolExecutor(4) as pool:
        counts = Counter(value for values in pool.map(add, range(4)) for value in values)
    assert counts == dict.fromkeys(range(1, 21), 1)


def test_delete_wants_the_version_that_it_is_given(blobs: Blobs) -> None:
    version = blobs.write_once("x", b"1")
    assert not blobs.delete("x", NO_VERSION) and blobs.read("x")[0] == b"1"
    assert blobs.delete("x", version) and not blobs.delete("x", version)
    blobs.delete("x")
    with pytest.raises(ObjectMissing):
        blobs.read("x")
    assert blobs.write_once("x", b"2")


def test_files_arrive_with_their_digest_or_not_at_all(blobs: Blobs, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(3_000_000))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert blobs.write_once(f"kind/a/files/{digest}", source)
    blobs.fetch(f"kind/a/files/{digest}", target, digest)
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(ObjectMissing):
        blobs.fetch("kind/a/files/none", tmp_path / "none", digest)
    blobs.write_once("kind/a/files/small", b"other bytes")
    if not blobs.address.startswith("s3://"):  # S3 reads such an object again for minutes: see test_shared_store
        with pytest.raises(InfrastructureError, match="another sha256"):
            blobs.fetch("kind/a/files/small", tmp_path / "none", digest)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "shared") == ["source", "target"]


def test_list_yields_names_below_the_prefix_only(blobs: Blobs) -> None:
    assert list(blobs.list("kind")) == []
    for name in ("kind/b/record.json", "kind/a/files/0", "kinds/a", "marker"):
        blobs.write_once(name, b"")
    blobs.delete("marker")
    assert list(blobs.list("kind")) == ["kind/a/files/0", "kind/b/record.json"]


def test_every_backend_passes_the_check_of_its_conditions(blobs: Blobs) -> None:
    check_conditions(blobs)
    assert list(blobs.list("probes")) == []


def test_an_entry_and_a_lease_are_shared_by_two_machines(address: str, tmp_path: Path) -> None:
    """The whole store on the backend: one makes, the other reads; one holds, the other waits in vain."""
    here, there = open_store(tmp_path / "here", address), open_store(tmp_path / "there", address)

    def make(folder: Path) -> Path:
        (folder / "deep").mkdir()
        (folder / "deep" / "model.bin").write_bytes(b"content")
        return folder / "deep" / "model.bin"

    made, was_there = here.make(Product("variant", ("key",), Path, make))
    found, found_there = there.make(Product("variant", ("key",), Path, make))
    assert (was_there, found_there) == (False, True)
    assert found.is_relative_to(tmp_path / "there") and found.read_bytes() == made.read_bytes() == b"content"
    ours, theirs = open_locks(tmp_path / "here", address), open_locks(tmp_path / "there", address)
    with (
        ours.hold("promotion", wait_seconds=0) as held,
        pytest.raises(LockTaken, match=f"process {os.getpid()}"),
        theirs.hold("promotion", wait_seconds=0),
    ):
        held.check()
    with theirs.hold("promotion", wait_seconds=0) as held:
        held.check()
    assert list(open_blobs(f"{address}/locks").list("promotion.json")) == []


# What is true of addresses and of the folder


def test_an_unknown_scheme_is_refused_with_those_that_are_known() -> None:
    for text in ("gs://bucket/prefix", "bucket/prefix", "/folder", "s3:/bucket"):
        assert not is_address(text)
        with pytest.raises(JobError, match=r"s3:// or file://"):
            open_blobs(text)
    for text in ("file://relative", "file:///a/../b", "s3://B_ucket/x"):
        with pytest.raises(JobError):
            open_blobs(text)
    assert list(BACKENDS) == ["s3", "file"]


def test_a_killed_writer_leaves_no_blob(tmp_path: Path) -> None:
    """Its partial file is hidden: no name of a blob, and no obstacle."""
    blobs = open_blobs(f"file://{tmp_path}")
    (tmp_path / "kind").mkdir()
    (tmp_path / "kind" / ".0123.writing").write_bytes(b"half")
    assert list(blobs.list("kind")) == [] and blobs.write_once("kind/x", b"whole")


def test_a_folder_without_room_or_rights_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = open_blobs(f"file://{tmp_path}")
    with Path("/dev/full").open("wb", buffering=0) as stream:
        monkeypatch.setattr(Path, "write_bytes", lambda _, data: stream.write(data))
        with pytest.raises(StorageFull, match="no space left"):
            blobs.write_once("x", b"data")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == []

    def refuse(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tasks.storage.files.os.open", refuse)
    with pytest.raises(StorageRefused, match="Permission denied"):
        blobs.write_once("x", b"data")
