"""Entries of a store that machines share: files are written first, under their digests, and the record last."""

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
    """Content of an entry's record blob: its key, its record as packed text, and the sha256 of each file by path."""

    kind: str
    digest: str
    record: str
    files: dict[str, Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]


@dataclass(frozen=True)
class Manifest(_EntryRecord):
    """A shared entry, read from its record blob; `version` is that blob's version."""

    version: str


class SharedEntries:
    """The entries `<address>/<kind>/<digest>/`: `record.json` beside `files/<sha256>`.

    A file is named after its digest, so that two makers of one entry never write different bytes under one name, and the next
    maker resumes an interrupted upload.
    """

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._marker = ""

    @property
    def root(self) -> str:
        """Address of the store."""
        return self.blobs.address

    def marker(self) -> str:
        """Return the unique marker of this store, whatever its address; created on first use, after testing the server.

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
        """Return the manifest of an entry, or None if there is no entry.

        Raises:
            InfrastructureError: the record blob is not one of this entry.
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
        """Download the files of an entry into a folder, verified by digest, and write its record last.

        Raises:
            ObjectMissing: a file of the entry is missing.
        """
        for name, sha256 in manifest.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self.blobs.fetch(_file_name(manifest.kind, manifest.digest, sha256), path, sha256)
        (folder / RECORD_FILE).write_text(manifest.record, encoding="utf-8")

    def publish(self, kind: str, digest: str, folder: Path, *, replaces: Manifest | None = None) -> bool:
        """Publish the entry in a folder; return False if another maker's entry exists, which then counts.

        `replaces` is an entry with missing files, the only kind that may be overwritten.
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
        """Delete the files that only this maker uploaded."""
        winner = self.find(kind, digest)
        for sha256 in mine - set(winner.files.values() if winner else mine):
            self.blobs.delete(_file_name(kind, digest, sha256))

    def _no_record(self, name: str) -> InfrastructureError:
        return InfrastructureError(
            found=f"{self.root}/{name} is not the record of this entry",
            expected="the record that quantgate wrote",
            fix="delete the object, and run again",
        )


def check_conditions(blobs: Blobs) -> None:
    """Test conditional writes on a temporary blob: some servers ignore the conditions, and sharing would be unsafe.

    Raises:
        StorageRefused: the server ignores or refuses a condition.
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
                expected="If-None-Match and If-Match on PutObject, as AWS S3, SeaweedFS and MinIO support them",
                fix="use a server (or a newer version) that supports them, or unset QUANTGATE_STORE and use a shared folder",
            )
    finally:
        blobs.delete(name)


def _record_name(kind: str, digest: str) -> str:
    return f"{kind}/{digest}/{RECORD_FILE}"


def _file_name(kind: str, digest: str, sha256: str) -> str:
    return f"{kind}/{digest}/files/{sha256}"


def _is_inside(name: str) -> bool:
    """Return True if a file's path, read from a bucket that others may write to, stays inside its entry."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
