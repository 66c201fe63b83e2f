"""Blobs on S3; `s3_upload` and `s3_download` transfer files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks.storage.s3 import S3, S3Object
from tasks.storage.s3_download import download
from tasks.storage.s3_retry import Patience
from tasks.storage.s3_upload import upload
from validators.errors import ObjectMissing
from validators.untrusted.s3_uris import S3Uri, parse_s3_uri


@dataclass(frozen=True)
class S3Blobs:
    """See `Blobs`. Versions are ETags."""

    root: S3Uri
    s3: S3

    @property
    def address(self) -> str:
        """See `Blobs`."""
        return str(self.root)

    def read(self, name: str) -> tuple[bytes, str]:
        """See `Blobs`."""
        data, found = self.s3.read(self.root / name)
        return data, found.etag

    def fetch(self, name: str, path: Path, sha256: str) -> None:
        """See `Blobs`."""
        download(self.s3, self.root / name, path, sha256=sha256)

    def write_once(self, name: str, content: bytes | Path) -> str | None:
        """See `Blobs`."""
        uri = self.root / name
        if isinstance(content, Path):
            return _etag(upload(self.s3, content, uri, only_if_absent=True))
        return _etag(self.s3.write(uri, content, only_if_absent=True))

    def replace(self, name: str, data: bytes, version: str) -> str | None:
        """See `Blobs`."""
        try:
            return _etag(self.s3.write(self.root / name, data, only_if=version))
        except ObjectMissing:
            return None

    def list(self, prefix: str) -> Iterator[str]:
        """See `Blobs`."""
        for found in self.s3.list(self.root / prefix):
            yield found.uri.key.removeprefix(f"{self.root.key}/")

    def delete(self, name: str, version: str | None = None) -> bool:
        """See `Blobs`."""
        return self.s3.delete(self.root / name, only_if=version)


def open_s3(address: str, seconds: float | None) -> S3Blobs:
    """Open `s3://bucket/prefix`.

    Raises:
        JobError: the address has another form.
    """
    patience = None
    if seconds is not None:
        patience = Patience(attempts=4, seconds=seconds, first_delay_seconds=0.1, answer_seconds=seconds / 2)
    return S3Blobs(parse_s3_uri(address), S3(patience))


def _etag(found: S3Object | None) -> str | None:
    return found.etag if found else None
