"""Upload of a file to S3: whole or in parts, each with its checksum; resumable, verified, one part in memory at a time."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.storage.s3 import MAX_PARTS, S3, SHA256, S3Object, is_unmet
from tasks.storage.s3_retry import Attempts, call, code_of, status_of
from validators.digests import digest_file
from validators.errors import InfrastructureError, ObjectMissing, WrongBytes
from validators.untrusted.s3_uris import S3Uri


@dataclass(frozen=True)
class _Part:
    number: int
    data: bytes

    @property
    def sha256(self) -> str:
        return base64.b64encode(hashlib.sha256(self.data).digest()).decode()

    @property
    def etag(self) -> str:
        return f'"{hashlib.md5(self.data, usedforsecurity=False).hexdigest()}"'


class _Gone(WrongBytes):
    """The server no longer knows the multipart upload: it was finished or aborted."""


def upload(s3: S3, path: Path, uri: S3Uri, *, only_if_absent: bool = False) -> S3Object | None:
    """Upload a file; with `only_if_absent`, return None if there is another object already.

    An interrupted multipart upload is resumed if the key contains the sha256 of the content. For other keys, the parts on the
    server may be those of another file.

    Raises:
        StorageRefused: the server refuses.
        InfrastructureError: the upload did not succeed in time, or the file changed meanwhile.
    """
    digest, size = digest_file(path), path.stat().st_size
    if size <= s3.part_bytes:
        data = path.read_bytes()
        _check_unchanged(path, hashlib.sha256(data).hexdigest(), digest)
        return s3.write(uri, data, only_if_absent=only_if_absent)
    if only_if_absent:
        # Check before gigabytes are sent; an object that appears meanwhile is noticed at the end.
        with suppress(ObjectMissing):
            there = s3.head(uri)
            return there if there.sha256 == digest else None
    attempts = Attempts(s3.patience, f"uploading {path.name} to {uri}")
    while True:
        try:
            return _in_parts(s3, path, uri, digest, only_if_absent=only_if_absent)
        except _Gone as error:
            # The answer to our last request may have been lost, or another process finished the same upload.
            found = s3.is_ours(uri, digest)
            if found is not None:
                return found
            attempts.failed(error)


def _in_parts(s3: S3, path: Path, uri: S3Uri, digest: str, *, only_if_absent: bool) -> S3Object | None:
    upload_id, there = _unfinished(s3, uri) if digest in uri.key else (None, {})
    if upload_id is None:
        told = {"ChecksumAlgorithm": "SHA256", "Metadata": {SHA256: digest}}
        upload_id = str(s3.call("beginning", "create_multipart_upload", uri, **told)["UploadId"])
    whole, parts = hashlib.sha256(), []
    for part in _parts_of(path, s3.part_bytes):
        whole.update(part.data)
        if there.get(part.number) != part.etag:
            sent = {"PartNumber": part.number, "Body": part.data, "ChecksumSHA256": part.sha256}
            etag = _of_upload(s3, "sending a part of", "upload_part", uri, upload_id, **sent)["ETag"]
        else:
            etag = part.etag
        parts.append({"PartNumber": part.number, "ETag": etag, "ChecksumSHA256": part.sha256})
    try:
        _check_unchanged(path, whole.hexdigest(), digest)
    except InfrastructureError:
        _abort(s3, uri, upload_id)
        raise
    return _complete(s3, uri, upload_id, parts, digest, only_if_absent=only_if_absent)


def _complete(
    s3: S3, uri: S3Uri, upload_id: str, parts: list[dict[str, Any]], digest: str, *, only_if_absent: bool
) -> S3Object | None:
    told: dict[str, Any] = {"MultipartUpload": {"Parts": parts}}
    if only_if_absent:
        told["IfNoneMatch"] = "*"
    try:
        _of_upload(s3, "finishing", "complete_multipart_upload", uri, upload_id, **told)
    except _Unmet:
        _abort(s3, uri, upload_id)
        # The first answer may have been lost: the present object decides.
        return s3.is_ours(uri, digest)
    found = s3.is_ours(uri, digest)
    # The list of parts may have been damaged on the way: compare with the checksum of what the server assembled.
    if found is None or found.parts_sha256 not in (None, _sha256_of_parts(parts)):
        raise _Gone(found=f"{uri} is another object", expected="the object that was just uploaded", fix="run again")
    return found


def _sha256_of_parts(parts: list[dict[str, Any]]) -> str:
    """Return S3's composite checksum: the sha256 of the parts' concatenated checksums, and their number."""
    digests = b"".join(base64.b64decode(part["ChecksumSHA256"]) for part in parts)
    return f"{base64.b64encode(hashlib.sha256(digests).digest()).decode()}-{len(parts)}"


class _Unmet(Exception):
    """The key already has an object."""


def _of_upload(s3: S3, what: str, operation: str, uri: S3Uri, upload_id: str, **told: Any) -> Any:
    attempts = Attempts(s3.patience, f"{what} {uri}")
    while True:
        try:
            return getattr(s3.client, operation)(Bucket=uri.bucket, Key=uri.key, UploadId=upload_id, **told)
        except Exception as error:
            if is_unmet(error):
                raise _Unmet from error
            # If the listing of parts was wrong, one of them is invalid: all parts are sent again.
            code = code_of(error)
            if code in ("NoSuchUpload", "InvalidPart") or (status_of(error) == 404 and code != "NoSuchBucket"):
                raise _Gone(
                    found=f"the upload of {uri} is gone: {code}", expected="its parts", fix="run again"
                ) from error
            attempts.failed(error)


def _unfinished(s3: S3, uri: S3Uri) -> tuple[str | None, dict[int, str]]:
    """Return an unfinished upload to this key, if any, and the ETags of its parts by number."""
    what = f"looking for parts of {uri}"
    answer = call(s3.patience, what, s3.client.list_multipart_uploads, Bucket=uri.bucket, Prefix=uri.key)
    ids = [item["UploadId"] for item in answer.get("Uploads", ()) if item["Key"] == uri.key]
    if not ids:
        return None, {}
    there: dict[int, str] = {}
    told: dict[str, Any] = {"UploadId": ids[-1]}
    with suppress(ObjectMissing):
        while True:
            page = s3.call("looking for parts of", "list_parts", uri, **told)
            there |= {item["PartNumber"]: item["ETag"] for item in page.get("Parts", ())}
            if not page.get("IsTruncated"):
                return str(ids[-1]), there
            told["PartNumberMarker"] = page["NextPartNumberMarker"]
    return None, {}


def _parts_of(path: Path, part_bytes: int) -> Iterator[_Part]:
    size = max(part_bytes, -(-path.stat().st_size // MAX_PARTS))
    with path.open("rb", buffering=0) as stream:
        number = 0
        while data := stream.read(size):
            number += 1
            yield _Part(number, data)


def _abort(s3: S3, uri: S3Uri, upload_id: str) -> None:
    """Abort the upload; if that fails, the bucket's lifecycle rule removes its parts."""
    with suppress(InfrastructureError):
        s3.call("giving up", "abort_multipart_upload", uri, UploadId=upload_id)


def _check_unchanged(path: Path, digest: str, before: str) -> None:
    if digest != before:
        raise InfrastructureError(
            found=f"{path} changed while it was uploaded", expected="a file that does not change", fix="run again"
        )
