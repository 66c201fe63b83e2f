"""Entries of a store on S3: files first, under their digests, and the record that makes them an entry last, once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from tasks.storage.s3 import S3
from tasks.storage.s3_conditions import check_conditions
from tasks.storage.s3_download import download
from tasks.storage.s3_upload import upload
from validators.digests import digest_file
from validators.errors import InfrastructureError, ObjectMissing
from validators.untrusted.s3_uris import S3Uri

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
    """An entry that is on S3, as its record object tells; `etag` is that object's."""

    kind: str
    digest: str
    record: str
    files: dict[str, str]
    etag: str


class SharedEntries:
    """The entries `<root>/<kind>/<digest>/`: `record.json` beside `files/<sha256>`.

    A file's name is its content, so that two makers of one entry never write different bytes to one place, and an upload that
    broke off is taken up by whoever makes the entry next.
    """

    def __init__(self, s3: S3, root: S3Uri) -> None:
        self.s3, self.root = s3, root
        self._marker = ""

    def marker(self) -> str:
        """What tells this store from any other, whatever its address; made on first use, once the server proved itself.

        Raises:
            StorageRefused: the server ignores the conditions of conditional writes.
        """
        uri = self.root / MARKER_FILE
        if not self._marker:
            try:
                self._marker = self.s3.read(uri)[0].decode()
            except ObjectMissing:
                check_conditions(self.s3, self.root)
                self.s3.write(uri, os.urandom(16).hex().encode(), only_if_absent=True)
                self._marker = self.s3.read(uri)[0].decode()
        return self._marker

    def find(self, kind: str, digest: str) -> Manifest | None:
        """The manifest of an entry that is there.

        Raises:
            InfrastructureError: what is there is no manifest of this entry.
        """
        uri = self._place(kind, digest) / RECORD_FILE
        try:
            data, found = self.s3.read(uri)
        except ObjectMissing:
            return None
        try:
            told = TypeAdapter(_EntryRecord).validate_json(data)
        except ValidationError as error:
            raise _no_record(uri) from error
        if (told.kind, told.digest) != (kind, digest) or not all(_is_inside(name) for name in told.files):
            raise _no_record(uri)
        return Manifest(kind, digest, told.record, told.files, found.etag)

    def fetch(self, manifest: Manifest, folder: Path) -> None:
        """The files of an entry into a folder, and its record last; each is held against its digest.

        Raises:
            ObjectMissing: a file of the entry is not there.
        """
        for name, sha256 in manifest.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            download(self.s3, self._file(manifest.kind, manifest.digest, sha256), path, sha256=sha256)
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
            upload(self.s3, folder / name, self._file(kind, digest, sha256), only_if_absent=True)
        told = _EntryRecord(kind, digest, (folder / RECORD_FILE).read_text(encoding="utf-8"), files)
        uri = self._place(kind, digest) / RECORD_FILE
        condition: dict[str, Any] = {"only_if": replaces.etag} if replaces else {"only_if_absent": True}
        if self.s3.write(uri, json.dumps(asdict(told)).encode(), **condition) is not None:
            return True
        self._drop(kind, digest, set(files.values()))
        return False

    def _drop(self, kind: str, digest: str, mine: set[str]) -> None:
        """Delete what this maker alone uploaded."""
        winner = self.find(kind, digest)
        for sha256 in mine - set(winner.files.values() if winner else mine):
            self.s3.delete(self._file(kind, digest, sha256))

    def _place(self, kind: str, digest: str) -> S3Uri:
        return self.root / f"{kind}/{digest}"

    def _file(self, kind: str, digest: str, sha256: str) -> S3Uri:
        return self._place(kind, digest) / f"files/{sha256}"


def _no_record(uri: S3Uri) -> InfrastructureError:
    return InfrastructureError(
        found=f"{uri} is no record of this entry",
        expected="the record that quantgate wrote",
        fix="delete the object, and run again",
    )


def _is_inside(name: str) -> bool:
    """Whether a file's path, read from a bucket that others may write to, stays in its entry."""
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\0" not in name
