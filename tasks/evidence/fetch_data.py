"""Data files on S3: fetched once into the state folder by address and version, verified, and used while they are the same."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tasks.run.context import log
from tasks.storage.s3 import S3, Found
from tasks.storage.s3_download import download, verified_by
from validators.digests import digest_file, digest_values
from validators.errors import DataError, StorageRefused
from validators.untrusted.s3_uris import S3Uri

# The most that file systems take in a name is 255 bytes.
_NAME_BYTES = 120
_FOLDER = "data"


@dataclass(frozen=True)
class Fetched:
    """An object as a file here; `version` is the server's version of it, or its ETag."""

    path: Path
    version: str


def fetch_data(state: Path, uri: S3Uri, role: str) -> Fetched:
    """The object as a file of this machine, which is the same as long as the object is.

    Raises:
        DataError: the server refuses it, or there is none.
        InfrastructureError: it did not arrive rightly in time.
        StorageFull: there is no room for it.
    """
    s3 = S3()
    try:
        found = s3.head(uri)
        if not _is_whole(_place(state, found)):
            found = _download(s3, uri, state)
    except StorageRefused as error:
        raise DataError(found=f"{role} data: {error.found}", expected=error.expected, fix=error.fix) from error
    return Fetched(_place(state, found), _version(found))


def _version(found: Found) -> str:
    # "null" is what a bucket calls the version of everything while it keeps none.
    return found.version if found.version not in (None, "null") else found.etag.strip('"')


def _place(state: Path, found: Found) -> Path:
    name = found.uri.name.encode()[-_NAME_BYTES:].decode(errors="ignore")
    return state / _FOLDER / digest_values(str(found.uri), found.etag, found.version, found.size_bytes) / name


def _download(s3: S3, uri: S3Uri, state: Path) -> Found:
    """Bring the object to its place and tell what it was: another version, where it changed since it was looked at."""
    (state / _FOLDER).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=state / _FOLDER, prefix=".fetching-") as folder:
        loaded = Path(folder, "data")
        found = download(s3, uri, loaded)
        place = _place(state, found)
        place.parent.mkdir(exist_ok=True)
        _beside(place).write_text(digest_file(loaded), encoding="ascii")
        loaded.replace(place)
    log.info("fetched %s, %d bytes, held against its %s", uri, found.size_bytes, verified_by(found))
    return found


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _is_whole(path: Path) -> bool:
    """Whether the file is what was fetched, byte for byte: it may have lain there for long."""
    beside = _beside(path)
    return path.exists() and beside.exists() and beside.read_text(encoding="ascii") == digest_file(path)
