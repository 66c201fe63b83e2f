"""Named bytes that several machines share: one protocol, and the table of backends by address scheme.

A backend for another service (GCS, Azure, an fsspec file system) is one module with a class like `S3Blobs`, and one row of
`BACKENDS`. `tests/unit/tasks/storage/test_blobs.py` states what it must do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from tasks.storage.blobs_folder import open_folder
from tasks.storage.blobs_s3 import open_s3
from validators.errors import JobError

# A version that no blob has, formatted as an ETag.
NO_VERSION = '"00000000000000000000000000000000"'


class Blobs(Protocol):
    """Blobs below one address. A name is one or more plain segments joined by `/`.

    A version is a text that changes with every write of other bytes. Every method raises `StorageRefused` if the service
    refuses, and `ServiceDown` after the backend's own retries.
    """

    @property
    def address(self) -> str:
        """Address of the root, `scheme://...`."""

    def read(self, name: str) -> tuple[bytes, str]:
        """Return a small blob and its version.

        Raises:
            ObjectMissing: there is no such blob.
        """

    def fetch(self, name: str, path: Path, sha256: str) -> None:
        """Write a blob of any size to a file, complete and with this digest (hex) or not at all.

        Raises:
            ObjectMissing: there is no such blob.
            StorageFull: this machine's disk has no room for it.
            InfrastructureError: the bytes have another digest.
        """

    def write_once(self, name: str, content: bytes | Path) -> str | None:
        """Store bytes, or a file of any size, unless the name is taken; return the version, or None if it is taken."""

    def replace(self, name: str, data: bytes, version: str) -> str | None:
        """Replace a small blob that still has `version`; return the new version, or None if it has another or is missing.

        A write whose answer was lost counts as done if the blob has these bytes, so concurrent writers must write different
        bytes.
        """

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names of all blobs below a prefix, sorted."""

    def delete(self, name: str, version: str | None = None) -> bool:
        """Delete a blob; with `version`, only if it has that version, and return whether it had.

        Without `version`, a missing blob is no error.
        """


# Each opens an address; the seconds are the caller's time limit per call (None: the backend's own).
BACKENDS: dict[str, Callable[[str, float | None], Blobs]] = {
    "s3": open_s3,
    "file": open_folder,
}


def is_address(text: str) -> bool:
    """Return True if the text is an address of shared blobs, rather than a path of this machine."""
    return text.partition("://")[0] in BACKENDS and "://" in text


def open_blobs(address: str, seconds: float | None = None) -> Blobs:
    """Open the blobs below an address, without contacting the service yet.

    Raises:
        JobError: no backend has its scheme, or the backend refuses the address.
    """
    if not is_address(address):
        raise JobError(
            found=f"QUANTGATE_STORE={address[:200]!r}: no backend has this scheme",
            expected="an address that begins with " + " or ".join(f"{scheme}://" for scheme in BACKENDS),
            fix="correct QUANTGATE_STORE, or unset it to keep finished work in the state folder",
        )
    return BACKENDS[address.partition("://")[0]](address, seconds)
