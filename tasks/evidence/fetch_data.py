"""Download of data files from S3 into the state folder, once per address and version, with verification."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.run.context import log
from tasks.storage.s3 import S3, S3Object
from tasks.storage.s3_download import download, verified_by
from validators.digests import digest_file, digest_values
from validators.errors import DataError, StorageRefused
from validators.untrusted.s3_uris import S3Uri

# File systems allow 255 bytes in a name.
_NAME_BYTES = 120
_FOLDER = "data"


@dataclass(frozen=True)
class Fetched:
    """Local copy of an object; `version` is the server's version of it, or its ETag."""

    path: Path
    version: str


def fetch_data(state: Path, uri: S3Uri, role: str) -> Fetched:
    """Return a local copy of the object, downloaded unless this version is already here.

    Raises:
        DataError: the server refuses access, or the object does not exist.
        InfrastructureError: the download failed, was corrupt or took too long.
        StorageFull: the disk has no room for the object.
    """
    s3 = S3()
    try:
        found = s3.head(uri)
        if not _is_whole(_place(state, found)):
            found = _download(s3, uri, state)
    except StorageRefused as error:
        raise DataError(found=f"{role} data: {error.found}", expected=error.expected, fix=error.fix) from error
    return Fetched(_place(state, found), _version(found))


def _version(found: S3Object) -> str:
    # A bucket without versioning reports the version "null".
    return found.version if found.version not in (None, "null") else found.etag.strip('"')


def _place(state: Path, found: S3Object) -> Path:
    name = found.uri.name.encode()[-_NAME_BYTES:].decode(errors="ignore")
    return state / _FOLDER / digest_values(str(found.uri), found.etag, found.version, found.size_bytes) / name


def _download(s3: S3, uri: S3Uri, state: Path) -> S3Object:
    """Download the object to its path; return the version that was downloaded, which may be newer than the one looked up."""
    (state / _FOLDER).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state / _FOLDER, prefix=".fetching-") as folder:
        loaded = Path(folder, "data")
        found = download(s3, uri, loaded)
        place = _place(state, found)
        place.parent.mkdir(exist_ok=True)
        _beside(place).write_text(digest_file(loaded), encoding="ascii")
        loaded.replace(place)
    log.info("downloaded %s, %d bytes, verified by its %s", uri, found.size_bytes, verified_by(found))
    return found


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_whole(path: Path) -> bool:
    """Return True if the file still has the digest that it had when downloaded; it may be old."""
    beside = _beside(path)
    return path.exists() and beside.exists() and beside.read_text(encoding="ascii") == digest_file(path)
