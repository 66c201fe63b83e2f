"""The S3 client beside a real server, and behind a proxy that breaks what passes: nothing wrong is accepted, nothing half."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fault_proxy import FAULTS, evenly, faults
from s3_server import PART_BYTES, PATIENCE, client, s3_stack, some_place
from stack import S3_KEY, Stack

from tasks.storage.blobs_s3 import S3Blobs
from tasks.storage.s3 import S3
from tasks.storage.s3_download import download, verified_by
from tasks.storage.s3_retry import Patience
from tasks.storage.s3_upload import upload
from tasks.storage.shared_entries import check_conditions
from validators.errors import InfrastructureError, ObjectMissing, StorageRefused
from validators.untrusted.s3_uris import S3Uri, parse_s3_uri

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
# One of ten goes up in parts.
SIZES = (0, 1, 1000, 3000, 70_000, 100_000, 300_000, 900_000, 1_200_000, 2 * PART_BYTES + 17)
HURRIED = Patience(attempts=3, seconds=300, first_delay_seconds=0.01, longest_delay_seconds=0.05, answer_seconds=5)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One server for all of these."""
    with s3_stack(tmp_path_factory.mktemp("s3")) as stack:
        yield stack


@pytest.fixture
def s3(stack: Stack) -> S3:
    """A client of it."""
    return client(stack.endpoint)


def made(path: Path, size: int, seed: int = 0) -> Path:
    """A file of so many bytes."""
    path.write_bytes(random.Random(seed).randbytes(size))
    return path


def hidden(folder: Path) -> list[str]:
    """What a transfer would leave behind."""
    return [path.name for path in folder.rglob(".*")]


def transfer(s3: S3, folder: Path, place: S3Uri, number: int) -> str:
    """A file up and down again: what came of it; bytes that are not its own are no outcome."""
    draw = random.Random(number)
    source = made(folder / f"{number}.up", draw.choice(SIZES), number)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    # Half of them under their digest, whose parts are taken up by later attempts.
    uri = place / (f"{number}-{digest}" if number % 2 else f"{number}")
    back = folder / f"{number}.down"
    try:
        found = upload(s3, source, uri, only_if_absent=number % 3 > 0)
        assert found is not None and found.sha256 == digest
        download(s3, uri, back, sha256=digest if number % 5 == 0 else None)
    except InfrastructureError as error:
        return "said" if "attempts in" in error.found and not back.exists() else error.found
    assert back.read_bytes() == source.read_bytes()
    return "right"


@pytest.mark.parametrize(("rate", "transfers", "patience"), [(0.3, 150, PATIENCE), (0.8, 30, HURRIED)])
def test_whatever_passes_between_nothing_wrong_is_accepted(
    stack: Stack, tmp_path: Path, rate: float, transfers: int, patience: Patience
) -> None:
    """Every kind of fault, on three requests of ten and on eight: all ends well, or it is said; no byte is another."""
    place = some_place()
    with faults(stack.port("s3"), evenly(rate), seed=11) as proxy, ThreadPoolExecutor(8) as pool:
        s3 = client(proxy.endpoint, patience)
        outcomes = Counter(pool.map(lambda number: transfer(s3, tmp_path, place, number), range(transfers)))
        met = proxy.met
    print(f"\n{transfers} files up and down, {met.total()} requests, {rate:.0%} of them with a fault")
    print(f"  arrived {outcomes['right']}, given up and said {outcomes['said']}, wrong 0")
    for fault, count in sorted(met.items()):
        print(f"  {fault:16} {count:5}")
    assert outcomes.total() == transfers and hidden(tmp_path) == []
    # Stalls are drawn so seldom that one of the two kinds may be absent.
    often = {fault for fault in FAULTS if not fault.startswith("stalled")}
    assert set(met) >= often if rate < 0.5 else met.total() - met["none"] > 50
    assert met["stalled"] + met["stalled in body"] > 0
    assert outcomes["said"] == 0 if rate < 0.5 else outcomes["right"] > 0


def test_conditional_writes_exclude_each_other_on_lost_answers(stack: Stack) -> None:
    """Eight threads add to one number by compare and swap: no two are told that they wrote the same one, and none is lost."""
    uri = some_place() / "number"
    told, lock = Counter[int](), threading.Lock()

    def add(number: int) -> None:
        draw = random.Random(number)
        for _ in range(4):
            while True:
                data, found = s3.read(uri)
                value = int(data.split()[0]) + 1
                # What each writes is its own, or it could not tell its writing from another's.
                if s3.write(uri, f"{value} {draw.random()}".encode(), only_if=found.etag) is not None:
                    break
            with lock:
                told[value] += 1

    with faults(stack.port("s3"), evenly(0.25), seed=5) as proxy, ThreadPoolExecutor(8) as pool:
        s3 = client(proxy.endpoint)
        assert s3.write(uri, b"0 first", only_if_absent=True) is not None
        assert s3.write(uri, b"0 again", only_if_absent=True) is None
        list(pool.map(add, range(8)))
        # How many requests there are is up to the threads.
        assert proxy.met["lost"] + proxy.met["500, done"] > 0
    assert told.total() == len(told) == 32
    # More where one wrote, was not told, and another added to it before it could look.
    assert 32 <= max(told) <= int(client(stack.endpoint).read(uri)[0].split()[0]) < 48


def test_what_was_sent_is_not_sent_again(stack: Stack, tmp_path: Path) -> None:
    """An upload whose process ended, two parts in: the next one sends the rest, of parts that are the same."""
    source = made(tmp_path / "file", 3 * PART_BYTES + 3)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    uri = some_place() / digest
    with faults(stack.port("s3"), {"500": 1.0}, seed=1) as proxy:
        proxy.paused = True
        s3 = client(proxy.endpoint, HURRIED)
        s3.client.meta.events.register("before-call.s3.UploadPart", pause_after(2, proxy))
        with pytest.raises(InfrastructureError, match="3 attempts in"):
            upload(s3, source, uri, only_if_absent=True)
    again, sent = client(stack.endpoint), Counter[int]()
    again.client.meta.events.register(
        "provide-client-params.s3.UploadPart", lambda params, **_: sent.update([params["PartNumber"]])
    )
    assert upload(again, source, uri, only_if_absent=True) is not None
    assert dict(sent) == {3: 1, 4: 1}
    assert download(again, uri, tmp_path / "back").sha256 == digest
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def pause_after(parts: int, proxy: object) -> object:
    """Let so many parts pass, and then no more."""
    seen = Counter[str]()

    def count(**_: object) -> None:
        seen["parts"] += 1
        if seen["parts"] > parts:
            proxy.paused = False  # type: ignore[attr-defined]  # a FaultProxy

    return count


def test_an_object_that_changes_while_it_is_read_is_read_anew(stack: Stack, tmp_path: Path) -> None:
    """Never the head of one and the tail of another."""
    place = some_place()
    first, second = made(tmp_path / "a", 900_000, 1), made(tmp_path / "b", 900_000, 2)
    writer = client(stack.endpoint)
    upload(writer, first, place / "x")
    asked = Counter[str]()

    def change(**_: object) -> None:
        asked["get"] += 1
        proxy.paused = asked["get"] > 1
        if asked["get"] == 2:
            upload(writer, second, place / "x")

    with faults(stack.port("s3"), {"truncated": 1.0}, seed=4) as proxy:
        proxy.paused = True
        reader = client(proxy.endpoint)
        reader.client.meta.events.register("before-call.s3.GetObject", change)
        download(reader, place / "x", tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == second.read_bytes()
    # Broken, refused since it changed, and read from the beginning.
    assert asked["get"] == 3


@pytest.mark.parametrize(
    ("put", "by"),
    [
        ({}, "ETag (MD5)"),
        ({"ChecksumAlgorithm": "SHA256"}, "checksum (SHA256)"),
        ({"ChecksumAlgorithm": "CRC32"}, "checksum (CRC32)"),
        ({"Metadata": {"sha256": hashlib.sha256(b"theirs").hexdigest()}}, "sha256"),
    ],
)
def test_objects_of_others_are_held_against_what_there_is(
    stack: Stack, tmp_path: Path, put: dict[str, object], by: str
) -> None:
    """And a damaged one, whose ETag and checksum are of other bytes, is not accepted."""
    s3, uri = client(stack.endpoint, HURRIED), some_place() / "theirs"
    s3.client.put_object(Bucket=uri.bucket, Key=uri.key, Body=b"theirs", **put)
    assert verified_by(s3.head(uri)) == by
    download(s3, uri, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == b"theirs"
    with (
        faults(stack.port("s3"), {"flipped answer": 1.0}, seed=3) as proxy,
        pytest.raises(InfrastructureError, match="the received bytes do not match its"),
    ):
        download(client(proxy.endpoint, HURRIED), uri, tmp_path / "flipped")
    assert not (tmp_path / "flipped").exists() and hidden(tmp_path) == []


def test_refusals_are_not_tried_again(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No object, no bucket, no rights: each at once, each with what to check."""
    with faults(stack.port("s3"), {}, seed=1) as proxy:
        s3 = client(proxy.endpoint)
        with pytest.raises(ObjectMissing, match="check the spelling of bucket and key"):
            download(s3, some_place() / "nothing", tmp_path / "x")
        with pytest.raises(StorageRefused, match="no such bucket"):
            s3.read(parse_s3_uri("s3://no-such-bucket/key"))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret")
        with pytest.raises(StorageRefused, match="AWS_SECRET_ACCESS_KEY") as caught:
            client(proxy.endpoint).head(some_place() / "x")
        assert "another-secret" not in str(caught.value) and S3_KEY not in str(caught.value)
        assert proxy.met.total() == 3


def test_a_server_that_ignores_conditions_is_not_trusted(stack: Stack) -> None:
    """This one does not; one that would is played by a client that leaves the conditions out."""
    s3 = client(stack.endpoint)
    check_conditions(S3Blobs(some_place(), s3))

    def without(params: dict[str, object], **_: object) -> None:
        params["headers"] = {
            name: value
            for name, value in params["headers"].items()  # type: ignore[attr-defined]  # a mapping
            if name not in ("If-None-Match", "If-Match")
        }

    s3.client.meta.events.register("before-call.s3.PutObject", without)
    with pytest.raises(StorageRefused, match="ignores conditional writes"):
        check_conditions(S3Blobs(some_place(), s3))


def test_only_the_first_of_two_uploads_in_parts_is_kept(stack: Stack, s3: S3, tmp_path: Path) -> None:
    """The condition holds at the end of an upload too, when the other came in the meantime."""
    first, second = (made(tmp_path / name, 2 * PART_BYTES, seed) for seed, name in enumerate(("a", "b")))
    uri, late = some_place() / "x", client(stack.endpoint)

    def come_first(**_: object) -> None:
        assert upload(s3, first, uri, only_if_absent=True) is not None

    late.client.meta.events.register("before-call.s3.CompleteMultipartUpload", come_first)
    assert upload(late, second, uri, only_if_absent=True) is None
    download(s3, uri, tmp_path / "got")
    assert (tmp_path / "got").read_bytes() == first.read_bytes()
    assert not s3.client.list_multipart_uploads(Bucket=uri.bucket, Prefix=uri.key).get("Uploads")


def test_lists_go_over_pages(s3: S3) -> None:
    """More objects than one answer has room for, and none of a prefix that only begins alike."""
    place = some_place()
    for number in range(5):
        s3.write(place / f"a/{number}", b"x" * number)
    s3.write(place / "ab", b"")
    s3.client.meta.events.register(
        "provide-client-params.s3.ListObjectsV2", lambda params, **_: params.update(MaxKeys=2)
    )
    assert [(found.uri.name, found.size_bytes) for found in s3.list(place / "a")] == [(str(n), n) for n in range(5)]
    s3.delete(place / "a/3")
    s3.delete(place / "a/3")
    assert [found.uri.name for found in s3.list(place / "a")] == ["0", "1", "2", "4"]


MEMORY = """
import resource, sys
from pathlib import Path
from tasks.storage.s3 import S3, PART_BYTES
from tasks.storage.s3_download import download
from tasks.storage.s3_upload import upload
from tasks.storage.shared_entries import check_conditions
from validators.untrusted.s3_uris import parse_s3_uri
s3, path, uri = S3(), Path(sys.argv[1]), parse_s3_uri(sys.argv[2])
s3.write(uri, b"warm")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
upload(s3, path, uri)
download(s3, uri, path.with_name("back"))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024, PART_BYTES)
"""


def test_memory_holds_parts_and_no_object(stack: Stack, tmp_path: Path) -> None:
    """A process of its own moves 160 MB up and down: what it needs at most beyond its start is a few parts."""
    source = tmp_path / "large"
    with source.open("wb") as stream:
        for seed in range(20):
            stream.write(random.Random(seed).randbytes(8 * 2**20))
    command = [sys.executable, "-c", MEMORY, str(source), str(some_place() / "large")]
    done = subprocess.run(command, env=dict(os.environ), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    grown, part = map(int, done.stdout.split())
    print(
        f"\n{source.stat().st_size / 1e6:.0f} MB up and down: {grown / 1e6:.0f} MB of memory, parts of {part / 1e6:.0f} MB"
    )
    assert grown < 5 * part < source.stat().st_size / 3
    assert hashlib.sha256((tmp_path / "back").read_bytes()).digest() == hashlib.sha256(source.read_bytes()).digest()
