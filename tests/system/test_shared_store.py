"""The store on S3: several machines, played by folders and processes of their own, end with one entry of the same bytes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from fault_proxy import faults
from s3_server import client, s3_stack, some_place
from stack import Stack

from tasks.evidence.fetch_data import fetch_data
from tasks.storage.blobs_s3 import S3Blobs, open_s3
from tasks.storage.leases import LEASE_SECONDS, Leases, open_locks, renewal_seconds
from tasks.storage.locks import HeldLock
from tasks.storage.product import Product
from tasks.storage.s3 import S3
from tasks.storage.shared_entries import RECORD_FILE, SharedEntries
from tasks.storage.store import Store, open_store
from validators.errors import DataError, InfrastructureError, LockLost, LockTaken
from validators.untrusted.s3_uris import S3Uri

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Thing:
    """A record with a path of its own, and one of another entry."""

    path: Path
    made_by: str
    other: Path | None = None


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One server for all of these."""
    with s3_stack(tmp_path_factory.mktemp("s3")) as stack:
        yield stack


@pytest.fixture
def where(stack: Stack) -> S3Uri:
    """A place for a store that nothing is in."""
    return some_place()


def make(name: str, content: bytes, other: Path | None = None) -> object:
    """A maker of one file in a folder of the entry."""

    def maker(folder: Path) -> Thing:
        (folder / "deep").mkdir()
        (folder / "deep" / "file.bin").write_bytes(content)
        return Thing(folder / "deep" / "file.bin", name, other)

    return maker


def must_not(_: Path) -> Thing:
    """A maker for what is there."""
    raise AssertionError("made again")


def unlocked(state: Path, where: S3Uri) -> Store:
    """The store of a machine that waits for nobody: what is left is the order of the record's coming."""
    return Store(state / "store", shared=SharedEntries(open_s3(f"{where}/store", None)))


def leases(where: S3Uri, seconds: float = LEASE_SECONDS) -> Leases:
    """Locks below a prefix, as a machine of its own opens them."""
    return Leases(open_s3(str(where), renewal_seconds(seconds)), lease_seconds=seconds)


def keys(where: S3Uri) -> list[str]:
    """What lies below the store, without the leases."""
    return [found.uri.key.removeprefix(f"{where.key}/store/") for found in S3().list(where / "store")]


def test_an_entry_of_one_machine_is_that_of_another(tmp_path: Path, where: S3Uri) -> None:
    """With the entry that its record names, each at this machine's paths; keys of paths are the same in both places."""
    here, there = open_store(tmp_path / "here", str(where)), open_store(tmp_path / "there é", str(where))
    first, was_there = here.make(Product("statistics", ("a",), Thing, make("here", b"1" * 1000)))
    assert not was_there
    second, _ = here.make(Product("variant", ("b", first.path), Thing, make("here", b"2", first.path)))
    assert here.make(Product("variant", ("b", first.path), Thing, must_not)) == (second, True)
    theirs = there.root / first.path.relative_to(here.root)
    assert not theirs.exists()
    found, was_there = there.make(Product("variant", ("b", theirs), Thing, must_not))
    assert was_there and found.made_by == "here" and found.other == theirs
    assert found.path.is_relative_to(there.root) and found.path.read_bytes() == b"2"
    assert theirs.read_bytes() == b"1" * 1000
    assert len(keys(where)) == 5  # two records, two files, the marker


def test_records_pass_between_machines_by_what_they_name(tmp_path: Path, where: S3Uri) -> None:
    """Texts packed here name the same files there, whatever else is written in them."""
    here, there = open_store(tmp_path / "here", str(where)), open_store(tmp_path / "there", str(where))
    thing, _ = here.make(Product("variant", ("a",), Thing, make("here", b"x")))
    digest = "0" * 64
    told = {"path": str(thing.path), "name": f"{{store}}/variant/{digest}", "cache": str(tmp_path / "here" / "engines")}
    got = json.loads(there.unpack(here.pack(json.dumps(told))))
    assert Path(got["path"]).read_bytes() == b"x" and Path(got["path"]).is_relative_to(there.root)
    assert got["name"] == told["name"] and got["cache"] == str(tmp_path / "there" / "engines")
    with pytest.raises(InfrastructureError, match="no variant 000000000000 in s3://"):
        there.unpack(f'"{{store}}/variant/{digest}/x"')


def test_of_two_makers_one_wins_and_both_read_the_same(tmp_path: Path, where: S3Uri) -> None:
    """Both are in the middle: whose record comes first; the other drops its files, here and there."""
    here, there = unlocked(tmp_path / "here", where), unlocked(tmp_path / "there", where)

    def late(folder: Path) -> Thing:
        there.make(Product("variant", ("a",), Thing, make("there", b"theirs")))
        return make("here", b"ours")(folder)  # type: ignore[operator, no-any-return]  # a maker

    ours, _ = here.make(Product("variant", ("a",), Thing, late))
    theirs, was_there = there.make(Product("variant", ("a",), Thing, must_not))
    assert ours.made_by == theirs.made_by == "there" and was_there
    assert ours.path.read_bytes() == theirs.path.read_bytes() == b"theirs"
    assert len(keys(where)) == 3  # the record, its one file, the marker


CHILD = """
import os, sys, time
from dataclasses import dataclass
from pathlib import Path
from tasks.storage.blobs import open_blobs
from tasks.storage.leases import Leases
from tasks.storage.shared_entries import SharedEntries
from tasks.storage.product import Product
from tasks.storage.store import Store

@dataclass(frozen=True)
class Thing:
    path: Path
    made_by: str

def make(folder):
    print("made", flush=True)
    (folder / "file.bin").write_bytes(os.urandom(300_000))
    time.sleep(float(sys.argv[3]))
    return Thing(folder / "file.bin", str(os.getpid()))

where = sys.argv[2]
locks = Leases(open_blobs(f"{where}/locks", 2.0), lease_seconds=6)
store = Store(Path(sys.argv[1], "store"), shared=SharedEntries(open_blobs(f"{where}/store")), locks=locks)
print("ready", flush=True)
sys.stdin.readline()
thing, was_there = store.make(Product("variant", ("a",), Thing, make))
import hashlib
print(thing.made_by, hashlib.sha256(thing.path.read_bytes()).hexdigest(), flush=True)
"""


def start(state: Path, where: S3Uri, seconds: float = 0.5) -> subprocess.Popen[str]:
    """A process on a machine of its own, about to make an entry."""
    command = [sys.executable, "-c", CHILD, str(state), str(where), str(seconds)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def go(process: subprocess.Popen[str]) -> None:
    """Let it make the entry."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_race_make_an_entry_once(tmp_path: Path, where: S3Uri) -> None:
    """Four on two machines at the same moment: one makes it, the others wait for it, and all read the same bytes."""
    processes = [start(tmp_path / f"machine {number % 2}", where) for number in range(4)]
    for process in processes:
        go(process)
    said = [process.communicate(timeout=300)[0].split() for process in processes]
    print(f"\n{len(said)} processes on 2 machines: made {sum('made' in words for words in said)} time")
    assert sum("made" in words for words in said) == 1
    assert len({tuple(words[-2:]) for words in said}) == 1


def test_killed_maker_leaves_no_entry_and_blocks_nobody_for_ever(tmp_path: Path, where: S3Uri) -> None:
    """SIGKILL while it makes: nothing looks whole, its lease grows old, and the next machine makes the entry."""
    process = start(tmp_path / "killed", where, seconds=600)
    with process:
        go(process)
        assert process.stdout is not None and process.stdout.readline() == "made\n"
        os.kill(process.pid, signal.SIGKILL)
    assert keys(where) == []
    store = Store(
        tmp_path / "next" / "store",
        shared=SharedEntries(open_s3(f"{where}/store", None)),
        locks=leases(where / "locks", 2),
        wait_seconds=300,
    )
    thing, was_there = store.make(Product("variant", ("a",), Thing, make("next", b"y")))
    assert not was_there and thing.made_by == "next"


def test_files_without_a_record_are_no_entry(tmp_path: Path, where: S3Uri) -> None:
    """A maker that ended between its files and its record; the next one finds its own files there, and goes on."""
    dead = SharedEntries(open_s3(f"{where}/store", None))
    folder = tmp_path / "dead"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "file.bin").write_bytes(b"same")
    (folder / RECORD_FILE).write_text("{}")
    store = open_store(tmp_path / "next", str(where))
    product = Product("variant", ("a",), Thing, make("next", b"same"))
    (digest,) = {store._place("variant", product.key).name}
    dead.publish("variant", digest, folder)
    S3().delete(where / f"store/variant/{digest}/{RECORD_FILE}")
    assert len(keys(where)) == 2
    thing, was_there = store.make(product)
    assert not was_there and thing.path.read_bytes() == b"same" and len(keys(where)) == 3


def test_an_entry_with_a_file_missing_is_made_anew(
    tmp_path: Path, where: S3Uri, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said, the record is replaced, and every machine reads the new one."""
    open_store(tmp_path / "here", str(where)).make(Product("variant", ("a",), Thing, make("here", b"1")))
    (lost,) = [key for key in keys(where) if "/files/" in key]
    S3().delete(where / f"store/{lost}")
    with caplog.at_level(logging.WARNING, "quantgate"):
        thing, was_there = open_store(tmp_path / "there", str(where)).make(
            Product("variant", ("a",), Thing, make("there", b"2"))
        )
    assert not was_there and thing.made_by == "there" and "making the entry again" in caplog.text
    assert (
        open_store(tmp_path / "third", str(where)).make(Product("variant", ("a",), Thing, must_not))[0].made_by
        == "there"
    )


@pytest.mark.parametrize("damage", ["bytes", "record", "path"])
def test_a_damaged_entry_is_never_taken(tmp_path: Path, where: S3Uri, damage: str) -> None:
    """Another file under the name of one, a record that is none, one whose file would lie outside of its entry."""
    here = open_store(tmp_path / "here", str(where))
    product = Product("variant", ("a",), Thing, make("here", b"1"))
    thing, _ = here.make(product)
    digest, s3 = here._place("variant", product.key).name, client(os.environ["AWS_ENDPOINT_URL"])
    record = where / f"store/variant/{digest}/{RECORD_FILE}"
    if damage == "bytes":
        (file,) = [key for key in keys(where) if "/files/" in key]
        s3.client.put_object(Bucket=where.bucket, Key=f"{where.key}/store/{file}", Body=b"2")
    elif damage == "record":
        s3.write(record, b"{}")
    else:
        s3.write(record, s3.read(record)[0].replace(b"deep/file.bin", b"../../file.bin"))
    there = Store(tmp_path / "there" / "store", shared=SharedEntries(S3Blobs(where / "store", s3)))
    with pytest.raises(InfrastructureError, match=r"sha256|not the record of this entry"):
        there.make(Product("variant", ("a",), Thing, must_not))
    assert [path for path in (tmp_path / "there").rglob("*") if path.is_file()] == []
    assert thing.path.read_bytes() == b"1"


def test_a_lease_excludes_and_ends(where: S3Uri, tmp_path: Path) -> None:
    """Held while it is renewed, for longer than it is good for; given back at the end; a name of another lock is free."""
    ours, theirs = leases(where, 1.5), open_locks(tmp_path, str(where))
    with ours.hold("promotion-../m", wait_seconds=0) as held:
        with (
            pytest.raises(LockTaken, match=f"process {os.getpid()}"),
            leases(where).hold("promotion-../m", wait_seconds=4),
        ):
            pass
        held.check()
        with ours.hold("another", wait_seconds=0):
            pass
    with theirs.hold("x", wait_seconds=0), ours.hold("promotion-../m", wait_seconds=0) as held:
        held.check()


def test_unrenewed_lease_is_lost_before_another_takes_it(where: S3Uri) -> None:
    """The S3 server is out of the holder's reach: it says so by itself, and only then is it another's."""
    locks = leases(where, 3)
    with locks.hold("m", wait_seconds=0) as held:
        locks._blobs.s3.client.meta.events.register("before-call.s3.PutObject", _unreachable)
        order: list[str] = []

        def wait() -> None:
            with leases(where).hold("m", wait_seconds=300):
                order.append("another has it")

        thread = threading.Thread(target=wait)
        thread.start()
        with pytest.raises(LockLost, match="not renewed"):
            check_until_lost(held)
        order.append("lost")
        thread.join(300)
    assert order == ["lost", "another has it"]


def check_until_lost(held: HeldLock) -> None:
    """Ask for as long as it is held."""
    while True:
        held.check()
        time.sleep(0.01)


def _unreachable(**_: object) -> None:
    raise ConnectionError("planted")


def test_a_lease_that_another_took_is_not_given_back(where: S3Uri) -> None:
    """A holder that was asleep finds out, and leaves the other's alone."""
    locks = leases(where, 60)
    with locks.hold("m", wait_seconds=0) as held:
        data, found = S3().read(where / "m.json")
        other = json.loads(data) | {"holder": "another", "token": "t"}
        assert S3().write(where / "m.json", json.dumps(other).encode(), only_if=found.etag)
        assert not held._write(held._told)
    assert json.loads(S3().read(where / "m.json")[0]) == other


def test_a_lease_that_is_given_back_leaves_no_object(where: S3Uri) -> None:
    """Every entry of the store has a lock of its own: thousands of leases would stay."""
    locks = leases(where, 60)
    with locks.hold("entry-a", wait_seconds=0):
        assert [found.uri.name for found in S3().list(where)] == ["entry-a.json"]
    assert list(S3().list(where)) == []
    with locks.hold("entry-a", wait_seconds=0) as held:
        held.check()


def test_a_lease_of_another_is_not_deleted(where: S3Uri) -> None:
    """Another took it between the release and the deletion."""
    s3 = S3()
    first = s3.write(where / "m.json", b"first", only_if_absent=True)
    assert first is not None
    second = s3.write(where / "m.json", b"second", only_if=first.etag)
    assert second is not None
    assert not s3.delete(where / "m.json", only_if=first.etag)
    assert s3.read(where / "m.json")[0] == b"second"
    assert s3.delete(where / "m.json", only_if=second.etag) and not s3.delete(where / "m.json", only_if=second.etag)


def test_leases_stay_where_the_server_deletes_regardless(where: S3Uri, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ignores the condition could delete a lease that another has taken meanwhile."""
    monkeypatch.setattr(S3, "delete", lambda self, uri, only_if=None: bool(self.call("deleting", "delete_object", uri)))
    with leases(where, 60).hold("m", wait_seconds=0):
        pass
    (left,) = S3().list(where)
    assert json.loads(S3().read(left.uri)[0])["released"]


def test_renewal_goes_on_after_one_whose_answers_were_lost(
    stack: Stack, where: S3Uri, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server renewed the lease and no answer arrived: what the holder finds there then is its own."""
    port = int(stack.endpoint.rpartition(":")[2])
    with faults(port, {"lost": 1.0}, seed=1) as proxy:
        proxy.paused = True
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        with leases(where, 60).hold("m", wait_seconds=0) as held:
            told = held._told
            proxy.paused = False
            with pytest.raises(InfrastructureError):
                held._write(replace(told, renewals=1))
            proxy.paused = True
            assert json.loads(S3().read(where / "m.json")[0])["renewals"] == 1
            assert held._write(replace(told, renewals=2))
            held.check()


def test_folder_is_fetched_once_and_again_when_an_object_changes(tmp_path: Path, where: S3Uri) -> None:
    """All objects below a prefix, also in sub-folders; a file that was tampered with is fetched anew."""
    prefix, s3 = where / "pictures", S3()
    for name, content in (("a.png", b"a"), ("more/b.png", b"b")):
        s3.write(prefix / name, content)
    s3.write(where / "pictures-of-others" / "c.png", b"c")
    first = fetch_data(tmp_path / "state", prefix, "evaluation")

    def held(folder: Path) -> dict[str, bytes]:
        return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}

    assert first.path.name == "pictures" and held(first.path) == {"a.png": b"a", "more/b.png": b"b"}
    stamp = first.path.stat().st_mtime_ns
    assert fetch_data(tmp_path / "state", prefix, "evaluation") == first and first.path.stat().st_mtime_ns == stamp
    (first.path / "a.png").write_bytes(b"tampered")
    assert held(fetch_data(tmp_path / "state", prefix, "evaluation").path)["a.png"] == b"a"
    s3.write(prefix / "a.png", b"new")
    second = fetch_data(tmp_path / "state", prefix, "evaluation")
    assert second.version != first.version and held(second.path)["a.png"] == b"new"


def test_data_is_fetched_once_and_again_when_it_changes(tmp_path: Path, where: S3Uri) -> None:
    """By address and version; a file that was tampered with is fetched anew; what is not there is the job's fault."""
    uri, s3 = where / "evaluation.npz", S3()
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    s3.write(uri, (tmp_path / "a.npz").read_bytes())
    first = fetch_data(tmp_path / "state", uri, "evaluation")
    assert first.path.name == "evaluation.npz" and first.path.read_bytes() == (tmp_path / "a.npz").read_bytes()
    stamp = first.path.stat().st_mtime_ns
    assert fetch_data(tmp_path / "state", uri, "evaluation") == first and first.path.stat().st_mtime_ns == stamp
    first.path.write_bytes(b"tampered")
    assert fetch_data(tmp_path / "state", uri, "evaluation").path.read_bytes() == (tmp_path / "a.npz").read_bytes()
    s3.write(uri, b"another")
    second = fetch_data(tmp_path / "state", uri, "evaluation")
    assert second.path != first.path and second.version != first.version and second.path.read_bytes() == b"another"
    with pytest.raises(DataError, match=r"calibration data: .*no such object"):
        fetch_data(tmp_path / "state", where / "none.npz", "calibration")
