"""Entries of a store that machines share: files first, under their digests, and the record that makes them an entry last."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from tasks.storage.blobs import NO_VERSION, Blobs
from validators.digests import digest_file
from validators.errors import InfrastructureError, ObjectMissing, StorageRefused

RECORD_FILE = "record.json"
MARKER_FILE = "marker"


@dataclass(frozen=True)
class _EntryRecord:
    """The record object of an entry: which entry it is, its record as packed text, and the sha256 of each file by path."""

    kind: str
    digest: str
    record: str
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


@dataclass(frozen=True)
class Manifest:
    """An entry that is shared, as its record blob tells; `version` is that blob's."""

    kind: str
    digest: str
    record: str
    files: dict[str, str]
    version: str


class SharedEntries:
    """The entries `<address>/<kind>/<digest>/`: `record.json` beside `files/<sha256>`.

    A file's name is its content, so that two makers of one entry never write different bytes to one place, and an upload that
    broke off is taken up by whoever makes the entry next.
    """

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._marker = ""

    @property
    def root(self) -> str:
        """Address of the store."""
        return self.blobs.address

    def marker(self) -> str:
        """What tells this store from any other, whatever its address; made on first use, once the server proved itself.

        Raises:
            StorageRefused: the server ignores the conditions of conditional writes.
        """
        if not self._marker:
            try:
                self._marker = self.blobs.read(MARKER_FILE)[0].decode()
            except ObjectMissing:
                check_conditions(self.blobs)
                self.blobs.write_once(MARKER_FILE, os.urandom(16).hex().encode())
                self._marker = self.blobs.read(MARKER_FILE)[0].decode()
        return self._marker

    def find(self, kind: str, digest: str) -> Manifest | None:
        """The manifest of an entry that is there.

        Raises:
            InfrastructureError: what is there is no manifest of this entry.
        """
        name = _record_name(kind, digest)
        try:
            data, version = self.blobs.read(name)
        except ObjectMissing:
            return None
        try:
            told = TypeAdapter(_EntryRecord).validate_json(data)
        except ValidationError as error:
            raise self._no_record(name) from error
        if (told.kind, told.digest) != (kind, digest) or not all(_is_inside(file) for file in told.files):
            raise self._no_record(name)
        return Manifest(kind, digest, told.record, told.files, version)

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """The files of an entry into a folder, and its record last; each is held against its digest.

        Raises:
            ObjectMissing: a file of the entry is not there.
        """
        for name, sha256 in manifest.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self.blobs.fetch(_file_name(manifest.kind, manifest.digest, sha256), path, sha256)
        (folder / RECORD_FILE).write_text(manifest.record, encoding="utf-8")

    def publish(self, kind: str, digest: str, folder: Path, *, replaces: Manifest | None = None) -> bool:
        """Put what was made in a folder; False where another maker's entry is there, whose is the one that counts.

        `replaces` is an entry with files missing, the only one that may be written over.
        """
        self.marker()
        files = {
            str(path.relative_to(folder).as_posix()): digest_file(path)
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path != folder / RECORD_FILE
        }
        for name, sha256 in files.items():
            self.blobs.write_once(_file_name(kind, digest, sha256), folder / name)
        told = _EntryRecord(kind, digest, (folder / RECORD_FILE).read_text(encoding="utf-8"), files)
        name, data = _record_name(kind, digest), json.dumps(asdict(told)).encode()
        version = self.blobs.replace(name, data, replaces.version) if replaces else self.blobs.write_once(name, data)
        if version is not None:
            return True
        self._drop(kind, digest, set(files.values()))
        return False

    def _drop(self, kind: str, digest: str, mine: set[str]) -> None:
        """Delete what this maker alone uploaded."""
        winner = self.find(kind, digest)
        for sha256 in mine - set(winner.files.values() if winner else mine):
            self.blobs.delete(_file_name(kind, digest, sha256))

    def _no_record(self, name: str) -> InfrastructureError:
        return InfrastructureError(
            found=f"{self.root}/{name} is no record of this entry",
            expected="the record that quantgate wrote",
            fix="delete the object, and run again",
        )


def check_conditions(blobs: Blobs) -> None:
    """Try each condition on a blob that is deleted again: some servers ignore them, and nothing shared would be safe.

    Raises:
        StorageRefused: the server writes where the condition does not hold.
    """
    name = f"probes/{os.urandom(8).hex()}"
    try:
        first = blobs.write_once(name, b"first")
        twice = blobs.write_once(name, b"again")
        stale = blobs.replace(name, b"stale", NO_VERSION)
        fresh = blobs.replace(name, b"fresh", first) if first else None
        if first is None or fresh is None or twice is not None or stale is not None:
            raise StorageRefused(
                found=f"a server that {'ignores' if twice or stale else 'refuses'} conditional writes below {blobs.address}",
                expected="If-None-Match and If-Match on PutObject, as AWS S3, SeaweedFS and MinIO have them",
                fix="take a server (or a newer version) that has them, or unset QUANTGATE_STORE and use a shared folder",
            )
    finally:
        blobs.delete(name)


def _record_name(kind: str, digest: str) -> str:
    return f"{kind}/{digest}/{RECORD_FILE}"


def _file_name(kind: str, digest: str, sha256: str) -> str:
    return f"{kind}/{digest}/files/{sha256}"


def _is_inside(name: str) -> bool:
    """Whether a file's path, read from a bucket that others may write to, stays in its entry."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
