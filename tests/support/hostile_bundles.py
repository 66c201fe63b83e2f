"""The table of hostile evidence: edits of a sound version, and the parts at one of which `quantgate verify` has to fail."""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from evidence import Version
from hostile_files import npy_header

from tasks.champion.bundle.contents import record_text
from tasks.champion.bundle.statement import sealed, statement_of
from tasks.champion.bundle.verify import read_record
from tasks.champion.signed_evidence.archive import archived
from tasks.champion.signed_evidence.envelope import RECORD, STATEMENT

Plant = Callable[[Version], object]
Record = dict[str, Any]
WINNER, TIMES, KEPT = "winner/scores.npy", "latency/point0.npz", "samples/confirmation.npy"


@dataclass(frozen=True)
class HostileBundle:
    """An edit, and the part that names it: a star for any, empty where nothing fails."""

    name: str
    plant: Plant
    part: str
    is_refused: bool = True
    """True if the consumer's check of evidence refuses it as well; its check of the files comes later."""


def content(make: Callable[[Version], bytes]) -> Plant:
    """Write other bytes for the bundle."""
    return lambda version: version.bundle.write_bytes(make(version))


def members(**changes: bytes | None) -> Plant:
    """Pack the bundle with other members, whose statement is no longer true."""

    def plant(version: Version) -> None:
        found = {name: content for name, content in (version.members | changes).items() if content is not None}
        version.bundle.write_bytes(archived(found))

    return plant


def stated(changes: Mapping[str, bytes]) -> Plant:
    """Pack the bundle with other members, and a statement that names them."""

    def plant(version: Version) -> None:
        found = version.members | changes
        record = read_record(found[RECORD])
        found |= {RECORD: record_text(record).encode()}
        version.bundle.write_bytes(archived(found | {STATEMENT: sealed(statement_of(record, found), None)}))

    return lambda version: (unsigned(version), plant(version))


def unsigned(version: Version) -> None:
    version.seal(version.record, None)
    version.members[RECORD] = json.dumps(version.record | {"signer": ""}, indent=1, sort_keys=True).encode()


def record(change: Callable[[Record], object]) -> Plant:
    """Seal the bundle with a changed record."""

    def plant(version: Version) -> None:
        document = version.record
        change(document)
        version.seal(document, None)

    return plant


def restated(**changes: Any) -> Plant:
    """Pack the bundle with a changed record, and a statement with its digest that is otherwise the former one."""

    def plant(version: Version) -> None:
        unsigned(version)
        found = json.dumps(json.loads(version.members[RECORD]) | changes, indent=1, sort_keys=True).encode()
        statement = statement_of(read_record(version.members[RECORD]), version.members)
        for one in statement["predicate"]["runDetails"]["byproducts"]:
            if one["name"] == RECORD:
                one["digest"]["sha256"] = hashlib.sha256(found).hexdigest()
        changed = {RECORD: found, STATEMENT: sealed(statement, None)}
        version.bundle.write_bytes(archived(version.members | changed))

    return plant


def raw_record(text: str | bytes) -> Plant:
    return members(**{RECORD: text if isinstance(text, bytes) else text.encode()})


def times(**changes: Any) -> Plant:
    """Other times of the first operating point."""

    def plant(version: Version) -> None:
        with np.load(io.BytesIO(version.members[TIMES])) as archive:
            arrays = dict(archive) | changes
        stated({TIMES: npz({f"{name}.npy": npy(array) for name, array in arrays.items()})})(version)

    return plant


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def npz(files: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, one in files.items():
            archive.writestr(name, one)
    return stream.getvalue()


def bomb(_: Version | None = None) -> bytes:
    """An archive of 64 kB whose array has 64 MB."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    head = npy_header("(8388608,)", "<f8", b"")
    body, check, size = packed.compress(head), zlib.crc32(head), len(head)
    for _ in range(64):
        body, check, size = body + packed.compress(bytes(1 << 20)), zlib.crc32(bytes(1 << 20), check), size + (1 << 20)
    return _zip_of(b"baseline.npy", body + packed.flush(), check, size, method=8)


def _zip_of(name: bytes, body: bytes, check: int, size: int, *, method: int = 0, count: int = 1) -> bytes:
    fields = (20, 0, method, 0, 0, check, len(body), size)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", *fields, len(name), 0) + name + body
    names = [name] if count == 1 else [b"n%06d" % number for number in range(count)]
    central = b"".join(
        struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, *fields, len(one), 0, 0, 0, 0, 0, 0) + one for one in names
    )
    end = (0, 0, min(count, 65535), min(count, 65535), len(central), len(local), 0)
    return local + central + struct.pack("<4s4H2IH", b"PK\5\6", *end)


def pipe(name: str) -> Plant:
    def plant(version: Version) -> None:
        path = version.folder / name
        path.unlink()
        os.mkfifo(path)

    return plant


def device(name: str) -> Plant:
    def plant(version: Version) -> None:
        (version.folder / name).unlink()
        (version.folder / name).symlink_to("/dev/zero")

    return plant


def text(name: str, written: str) -> Plant:
    return lambda version: (version.folder / name).write_text(written)


def trial(**changes: Any) -> Plant:
    return record(lambda document: document["trial"].update(changes))


def job(**changes: Any) -> Plant:
    return record(lambda document: document["job"].update(changes))


def repeated(document: Record) -> None:
    document["trial"]["latencies"] *= 3000


def in_latency(document: Record, **changes: Any) -> None:
    document["trial"]["latencies"][0].update(changes)


def many_gates(document: Record) -> None:
    first = document["trial"]["verdicts"][0]
    document["trial"]["verdicts"] += [first | {"gate": f"own_{number}"} for number in range(2000)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def wide(version: Version) -> None:
    """Every sample is a group of a slice of its own, in 50,000 samples."""
    count = 50_000
    changes: dict[str, bytes] = {"samples/slice0.npy": npy(np.arange(count)), KEPT: npy(np.arange(count) % 2 == 1)}
    for side in ("baseline", "winner"):
        changes |= {f"{side}/scores.npy": npy(np.ones((count, 1))), f"{side}/finite.npy": npy(np.ones(count))}
    document = version.record | {"slices": ["place"], "signer": ""}
    version.members[RECORD] = json.dumps(document, indent=1, sort_keys=True).encode()
    stated(changes)(version)


def with_metric(metric: str, rows: Any) -> Plant:
    """Rows of another metric."""

    def plant(version: Version) -> None:
        document = version.record | {"signer": ""}
        document["job"]["metric"] = metric
        version.members[RECORD] = json.dumps(document, indent=1, sort_keys=True).encode()
        scores = npy(np.broadcast_to(np.asarray(rows, np.float64), (1000, np.shape(rows)[-1])))
        found = version.members | {"baseline/scores.npy": scores, WINNER: scores}
        again = read_record(found[RECORD])
        found |= {RECORD: record_text(again).encode()}
        version.bundle.write_bytes(archived(found | {STATEMENT: sealed(statement_of(again, found), None)}))

    return plant


BLOCKS = 100_000
META = "registered_model_meta"
LAUGHS = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
ZIP = [
    HostileBundle("a pipe", pipe("artifacts/evidence.zip"), "archive"),
    HostileBundle("a device", device("artifacts/evidence.zip"), "archive"),
    HostileBundle("nothing", content(lambda _: b""), "archive"),
    HostileBundle("3 GB of zeros", lambda version: os.truncate(version.bundle, 3 << 30), "archive"),
    HostileBundle("text", content(lambda _: b"no archive"), "archive"),
    HostileBundle("a member of 3 GB declared", content(lambda _: _zip_of(b"a", b"1234", 0, 3 << 30)), "archive"),
    HostileBundle(
        "overlapping members",
        content(lambda _: _zip_of(b"n000000", bytes(4 << 20), zlib.crc32(bytes(4 << 20)), 4 << 20, count=2000)),
        "archive",
    ),
    HostileBundle("many members", content(lambda _: npz({f"n{n}": b"" for n in range(3000)})), "archive"),
    HostileBundle("many members declared", content(lambda _: _zip_of(b"a", b"", 0, 0, count=200_000)), "archive"),
    HostileBundle("a compressed member", content(bomb), "archive"),
    HostileBundle("half of it", content(lambda version: archived(version.members)[:3000]), "*"),
]
DOCUMENTS = [
    HostileBundle("no record", members(**{RECORD: None}), RECORD),
    HostileBundle("no statement", members(**{STATEMENT: None}), STATEMENT),
    HostileBundle("a deep record", raw_record("[" * 200_000), RECORD),
    HostileBundle("a wide record", raw_record(f"[{'[],' * 4_000_000}[]]"), RECORD),
    HostileBundle("a record of digits", raw_record(f'{{"format": {"9" * 100_000}}}'), RECORD),
    HostileBundle("a record that is a list", raw_record("[]"), RECORD),
    HostileBundle("a record of bytes", raw_record(b"\xff\xfe"), RECORD),
    HostileBundle("a deep statement", members(**{STATEMENT: b"[" * 200_000}), STATEMENT),
    HostileBundle("a wide statement", members(**{STATEMENT: b"[" + b"[]," * 4_000_000 + b"[]]"}), STATEMENT),
    HostileBundle("a statement of another form", members(**{STATEMENT: b'{"payload": 1}'}), STATEMENT),
    HostileBundle("a deep job", job(provider_options=nested(900)), "*"),
    HostileBundle("a job of nothing", record(lambda document: document.update(job={})), "*"),
    HostileBundle("a manifest of depth", restated(manifest="[" * 5000), RECORD),
    HostileBundle("a manifest that is a list", restated(manifest="[]"), RECORD),
    HostileBundle("a manifest of names that are lists", restated(manifest='{"files": [["a"]]}'), RECORD),
]
RECORDS = [
    HostileBundle("a candidate without a name", trial(candidate=""), "*"),
    HostileBundle("a candidate above the folder", trial(candidate="../../x@ort-cpu"), "*"),
    HostileBundle("a candidate of no target", trial(candidate="int8-dynamic-pc"), "*"),
    HostileBundle("a candidate of control characters", trial(candidate="\x1b[2J\u202e@ort-cpu"), "*"),
    HostileBundle("a candidate of a lone surrogate", trial(candidate="\ud800@ort-cpu"), "*"),
    HostileBundle("a candidate of a megabyte", trial(candidate="a" * 1_000_000), "*"),
    HostileBundle("times 3,000 times", record(repeated), "*"),
    HostileBundle("2,000 gates", record(many_gates), "*"),
    HostileBundle("no size", record(lambda document: document.update(baseline_bytes=0)), "*"),
    HostileBundle("a negative size", record(lambda document: document.update(baseline_bytes=-1)), "*"),
    HostileBundle(
        "no rows a sample", record(lambda document: document["trial"]["accuracy"].update(samples_a_row=0)), "*"
    ),
    HostileBundle("a metric of code, which is not run", job(metric="os:system", metric_direction="higher"), ""),
    HostileBundle(
        "confidence of 2", record(lambda one: [v.update(confidence=2.0) for v in one["trial"]["verdicts"]]), "*"
    ),
    HostileBundle("a trial that did not run", trial(accuracy=None, variant=None, coverage=None), "*"),
    HostileBundle("times in no member", record(lambda document: in_latency(document, samples_path="none.npz")), "*"),
    HostileBundle("times outside", record(lambda document: in_latency(document, samples_path="../../etc/passwd")), "*"),
    HostileBundle("times in the record", record(lambda document: in_latency(document, samples_path=RECORD)), "*"),
    HostileBundle("a slice without a member", record(lambda document: document.update(slices=["a"] * 5000)), "*"),
]
ARRAYS = [
    HostileBundle("8 TiB declared", stated({WINNER: npy_header("(1099511627776,)", "<f8")}), WINNER),
    HostileBundle("an empty array file", stated({WINNER: b""}), WINNER),
    HostileBundle("an array file of a magic number", stated({WINNER: b"\x93NUMPY"}), WINNER),
    HostileBundle("a damaged header", stated({WINNER: b"\x93NUMPY\1\0\x20\0" + b"(" * 32}), WINNER),
    HostileBundle("a header of 4 GB", stated({WINNER: b"\x93NUMPY\2\0\xff\xff\xff\xff{}"}), WINNER),
    HostileBundle("Python objects", stated({WINNER: npy(np.array([[{}]], dtype=object))}), WINNER),
    HostileBundle("10^12 values of no bytes", stated({WINNER: npy_header("(1000000000000, 1)", "<U0", b"")}), WINNER),
    HostileBundle("a structured type", stated({WINNER: npy(np.zeros((1000, 1), [("a", "f8")]))}), "*"),
    HostileBundle("a negative axis", stated({WINNER: npy_header("(-1, -8)", "<f8")}), WINNER),
    HostileBundle("one number", stated({WINNER: npy(np.float64(1))}), "*"),
    HostileBundle("rows of three axes", stated({WINNER: npy(np.ones((1000, 1, 1)))}), "*"),
    HostileBundle("too few rows", stated({WINNER: npy(np.ones((3, 1)))}), "*"),
    HostileBundle("rows without columns", stated({WINNER: npy(np.ones((1000, 0)))}), "*"),
    HostileBundle("rows of NaN", stated({WINNER: npy(np.full((1000, 1), np.nan))}), "*"),
    HostileBundle("rows of text", stated({WINNER: npy(np.full((1000, 1), "x"))}), "*"),
    HostileBundle("rows of complex numbers", stated({WINNER: npy(np.full((1000, 1), 1j))}), "*"),
    HostileBundle("an archive for rows", stated({WINNER: npz({"a.npy": npy(np.ones(1))})}), WINNER),
    HostileBundle("a mask of numbers", stated({KEPT: npy(np.full(1000, 10**12))}), "*"),
    HostileBundle("a mask of none", stated({KEPT: npy(np.zeros(1000, bool))}), "*"),
    HostileBundle("labels of 10^9", with_metric("f1_macro", [1e9, 1e9]), "*"),
    HostileBundle("labels below zero", with_metric("f1_macro", [-5, 1]), "*"),
    HostileBundle("labels of NaN", with_metric("f1_macro", [float("nan"), 1]), "*"),
    HostileBundle("rows of another metric", with_metric("auroc", [0.5]), "*"),
    HostileBundle("50,000 groups of a slice", wide, "*"),
]
LATENCIES = [
    HostileBundle("64 MB of times in 64 kB", stated({TIMES: bomb()}), TIMES),
    HostileBundle(
        "times of 8 TiB declared", stated({TIMES: npz({"launch.npy": npy_header("(1099511627776,)")})}), TIMES
    ),
    HostileBundle("times that are no archive", stated({TIMES: b"1234"}), TIMES),
    HostileBundle("times of nothing", stated({TIMES: b""}), TIMES),
    HostileBundle("no times", stated({TIMES: npz({})}), "*"),
    HostileBundle(
        "compressed times", stated({TIMES: npz({"launch.npy": npy(np.zeros(9))}, zipfile.ZIP_DEFLATED)}), TIMES
    ),
    HostileBundle(
        "overlapping times",
        stated({TIMES: _zip_of(b"n000000", bytes(4 << 20), zlib.crc32(bytes(4 << 20)), 4 << 20, count=500)}),
        TIMES,
    ),
    HostileBundle("200,000 arrays of times", stated({TIMES: _zip_of(b"a", b"", 0, 0, count=200_000)}), TIMES),
    HostileBundle("10^18 launches", times(launch=np.full(6, 10**18)), TIMES),
    HostileBundle("a launch below zero", times(launch=np.full(6, -(10**18))), TIMES),
    HostileBundle("launches of fractions", times(launch=np.linspace(0, 1, 6)), TIMES),
    HostileBundle("launches of text", times(launch=np.full(6, "x")), TIMES),
    HostileBundle("one launch without an axis", times(launch=np.array(0)), TIMES),
    HostileBundle("no launch", times(launch=np.zeros(0, int)), TIMES),
    HostileBundle(
        "a block and a launch for each request",
        times(
            launch=np.arange(BLOCKS),
            **{side: np.ones(BLOCKS) for side in ("baseline", "variant")},
            **{f"{side}_block": np.arange(BLOCKS) for side in ("baseline", "variant")},
        ),
        TIMES,
    ),
    HostileBundle("times of zero", times(variant=np.zeros(480)), TIMES),
    HostileBundle("times of infinity", times(variant=np.full(480, np.inf)), TIMES),
    HostileBundle("times of text", times(variant=np.full(480, "x")), TIMES),
    HostileBundle("several counts of requests", times(requests=np.arange(9)), TIMES),
    HostileBundle("blocks of text", times(variant_block=np.full(480, "x")), TIMES),
]
FILES = [
    HostileBundle("a pipe for a manifest", pipe("artifacts/manifest.json"), "manifest"),
    HostileBundle("a device for a manifest", device("artifacts/manifest.json"), "manifest"),
    HostileBundle("a pipe for a model", pipe("artifacts/variant/model.onnx"), "artifact model.onnx", is_refused=False),
    HostileBundle(
        "a device for a model", device("artifacts/variant/model.onnx"), "artifact model.onnx", is_refused=False
    ),
    HostileBundle("a pipe for the name", pipe(META), META),
    HostileBundle("a device for the name", device(META), META),
    HostileBundle("a name of aliases", text(META, LAUGHS + "model_name: *i\nmodel_version: 1\n"), META),
    HostileBundle("a name without its tag", text(META, 'model_name: !!int ""\nmodel_version: 1\n'), META),
    HostileBundle("a name of base 60", text(META, f"model_name: {'1:' * 200_000}1\nmodel_version: 1\n"), META),
    HostileBundle("a deep name", text(META, "[" * 100_000), META),
]
HOSTILE_BUNDLES = [*ZIP, *DOCUMENTS, *RECORDS, *ARRAYS, *LATENCIES, *FILES]
