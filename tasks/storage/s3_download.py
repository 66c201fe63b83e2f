"""Download of an S3 object to a file: streamed to a temporary file, resumed after a break, verified, then renamed."""

from __future__ import annotations

import base64
import hashlib
import zlib
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from tasks.storage.files import room_in, write_whole
from tasks.storage.s3 import S3, S3Object, is_unmet, wrong_bytes
from tasks.storage.s3_retry import Attempts
from validators.untrusted.s3_uris import S3Uri

CHUNK_BYTES = 2**20


class _Crc32:
    """zlib's CRC-32 with the interface of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes) -> None:
        self._value = zlib.crc32(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(4, "big")


class StreamedChecksum:
    """Verification of an object by its strongest available checksum, computed while its bytes arrive."""

    def __init__(self, found: S3Object) -> None:
        self._length, self._found = 0, found
        self.by, self._expected, self._hash = _choose(found)

    def update(self, data: bytes) -> None:
        """Add the next bytes."""
        self._length += len(data)
        if self._hash is not None:
            self._hash.update(data)

    @property
    def holds(self) -> bool:
        """True if the bytes so far are the whole object."""
        right = self._hash is None or self._hash.digest() == self._expected
        return right and self._length == self._found.size_bytes


def _choose(found: S3Object) -> tuple[str, bytes, Any]:
    if found.sha256:
        return "sha256", bytes.fromhex(found.sha256), hashlib.sha256()
    makers: dict[str, Any] = {"SHA256": hashlib.sha256, "SHA1": hashlib.sha1, "CRC32": _Crc32}
    for name, value in found.checksums:
        return f"checksum ({name})", base64.b64decode(value), makers[name]()
    etag = found.etag.strip('"')
    # For an object in parts, or encrypted with a key of the server, the ETag is not the MD5 of the content.
    if len(etag) == 32 and not found.encrypted:
        with suppress(ValueError):
            return "ETag (MD5)", bytes.fromhex(etag), hashlib.md5(usedforsecurity=False)
    return "length", b"", None


def verified_by(found: S3Object) -> str:
    """Return the name of the checksum that verifies a download of the object."""
    return StreamedChecksum(found).by


def download(s3: S3, uri: S3Uri, path: Path, *, sha256: str | None = None) -> S3Object:
    """Write the verified object to `path` atomically; `sha256` is the expected digest, if the caller knows it.

    Raises:
        ObjectMissing: there is no such object.
        StorageFull: there is no room for it.
        InfrastructureError: the download did not succeed in time.
    """
    attempts = Attempts(s3.patience, f"downloading {uri}")
    # Data may be private: only this user may read it.
    with room_in(path.parent), write_whole(path, 0o600) as partial, partial.open("wb") as file:
        return _fetch(s3, uri, file, attempts, sha256)


def _fetch(s3: S3, uri: S3Uri, file: IO[bytes], attempts: Attempts, sha256: str | None) -> S3Object:
    """Retry until the file holds one version of the object from its first byte to its last."""
    while True:
        found = s3.head(uri)
        if sha256 is not None and found.sha256 != sha256:
            attempts.failed(wrong_bytes(uri, f"sha256 {sha256[:12]}"))
            continue
        file.seek(0)
        file.truncate()
        check = StreamedChecksum(found)
        if not _stream(s3, found, file, check, attempts):
            continue
        if check.holds:
            return found
        attempts.failed(wrong_bytes(uri, check.by))


def _stream(s3: S3, found: S3Object, file: IO[bytes], check: StreamedChecksum, attempts: Attempts) -> bool:
    """Append the rest of the object, over as many connections as needed; return False if the object was replaced."""
    while (offset := file.tell()) < found.size_bytes:
        try:
            answer = _ask(s3, found, offset)
            with closing(answer["Body"]) as body:
                while data := body.read(CHUNK_BYTES):
                    file.write(data)
                    check.update(data)
        except Exception as error:
            if file.tell() > offset:
                attempts.progressed()
            changed = is_unmet(error)
            attempts.failed(wrong_bytes(found.uri, "ETag") if changed else error)
            if changed:
                return False
    return True


def _ask(s3: S3, found: S3Object, offset: int) -> Any:
    """Return the response with the bytes of this version of the object from `offset` on."""
    answer = s3.client.get_object(
        Bucket=found.uri.bucket, Key=found.uri.key, Range=f"bytes={offset}-", IfMatch=found.etag
    )
    size = found.size_bytes
    if answer["ETag"] != found.etag or answer.get("ContentRange") != f"bytes {offset}-{size - 1}/{size}":
        answer["Body"].close()
        raise wrong_bytes(found.uri, "ETag or range")
    return answer
