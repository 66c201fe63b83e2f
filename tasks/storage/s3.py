"""Client of any S3 server: head, read, write, list and delete objects. For files see `s3_download` and `s3_upload`."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from tasks.storage.s3_retry import Patience, call, code_of, status_of
from validators.errors import ObjectMissing, StorageRefused, WrongBytes
from validators.untrusted.s3_uris import S3Uri

# Metadata key with the sha256 of the whole object: S3's checksums cover parts, or are not supported by every server.
SHA256 = "sha256"
# S3 takes parts of at least 5 MiB, and at most 10,000 of them.
PART_BYTES = 8 * 2**20
MAX_PARTS = 10_000


@dataclass(frozen=True)
class S3Object:
    """An object as the server describes it.

    `sha256` is from our upload's metadata, `checksums` from S3, by algorithm, and `parts_sha256` is the checksum of the parts'
    checksums. `modified`, in seconds since 1970, is set only by a list.
    """

    uri: S3Uri
    size_bytes: int
    etag: str
    sha256: str | None = None
    version: str | None = None
    checksums: tuple[tuple[str, str], ...] = ()
    parts_sha256: str | None = None
    encrypted: bool = False
    modified: float | None = None


class S3:
    """S3 client; boto3 reads endpoint, region and credentials from the environment."""

    def __init__(self, patience: Patience | None = None, part_bytes: int = PART_BYTES) -> None:
        self.patience = patience or Patience()
        self.part_bytes = part_bytes
        self._client: Any = None
        self._lock = threading.Lock()

    @property
    def client(self) -> Any:
        """boto3's client, created on first use: its import takes half a second."""
        with self._lock:
            if self._client is None:
                self._client = _connect(self.patience)
            return self._client

    def call(self, what: str, operation: str, uri: S3Uri, **arguments: Any) -> Any:
        """Send one request by its name in boto3, and retry it after passing errors.

        Raises:
            StorageRefused: the error is permanent.
            InfrastructureError: the retries did not succeed in time.
        """
        arguments = {"Bucket": uri.bucket, "Key": uri.key} | arguments
        return call(self.patience, f"{what} {uri}", getattr(self.client, operation), **arguments)

    def head(self, uri: S3Uri) -> S3Object:
        """Return the description of an object.

        Raises:
            ObjectMissing: there is no such object.
        """
        return found_in(uri, self.call("looking at", "head_object", uri, ChecksumMode="ENABLED"))

    def read(self, uri: S3Uri) -> tuple[bytes, S3Object]:
        """Return a small object's bytes, verified against the sha256 in its metadata.

        Raises:
            ObjectMissing: there is no such object.
        """

        def read() -> tuple[bytes, S3Object]:
            answer = self.client.get_object(Bucket=uri.bucket, Key=uri.key)
            with closing(answer["Body"]) as body:
                data: bytes = body.read()
            found = found_in(uri, answer)
            if len(data) != found.size_bytes or found.sha256 not in (None, hashlib.sha256(data).hexdigest()):
                raise wrong_bytes(uri, "sha256 or length")
            return data, found

        return call(self.patience, f"reading {uri}", read)

    def write(
        self, uri: S3Uri, data: bytes, *, only_if_absent: bool = False, only_if: str | None = None
    ) -> S3Object | None:
        """Put a small object; return None if the condition did not hold. `only_if` is the ETag of the object to replace.

        If the answer to a conditional write is lost, the retry fails its condition because of the first write: then the present
        object decides. None therefore also stands for a write that another one has already overwritten.

        Raises:
            StorageRefused: the server refuses.
        """
        digest = hashlib.sha256(data)
        condition = {"IfNoneMatch": "*"} if only_if_absent else {"IfMatch": only_if} if only_if else {}
        attempts = 0

        def put() -> S3Object | None:
            nonlocal attempts
            attempts += 1
            try:
                answer = self.client.put_object(
                    Bucket=uri.bucket,
                    Key=uri.key,
                    Body=data,
                    ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
                    Metadata={SHA256: digest.hexdigest()},
                    **condition,
                )
            except Exception as error:
                if not is_unmet(error):
                    raise
                return self.is_ours(uri, digest.hexdigest()) if attempts > 1 else None
            return S3Object(uri, len(data), answer["ETag"], digest.hexdigest(), answer.get("VersionId"))

        return call(self.patience, f"writing {uri}", put)

    def is_ours(self, uri: S3Uri, sha256: str) -> S3Object | None:
        """Return the object if our upload of these bytes wrote it, else None."""
        try:
            found = self.head(uri)
        except ObjectMissing:
            return None
        return found if found.sha256 == sha256 else None

    def list(self, prefix: S3Uri) -> Iterator[S3Object]:
        """Yield every object below a prefix, by key, without its `sha256`."""
        told: dict[str, Any] = {"Bucket": prefix.bucket, "Prefix": f"{prefix.key}/"}
        while True:
            answer = call(self.patience, f"listing {prefix}", self.client.list_objects_v2, **told)
            for item in answer.get("Contents", ()):
                yield S3Object(
                    S3Uri(prefix.bucket, item["Key"]),
                    item["Size"],
                    item["ETag"],
                    modified=item["LastModified"].timestamp(),
                )
            if not answer.get("IsTruncated"):
                return
            told["ContinuationToken"] = answer["NextContinuationToken"]

    def delete(self, uri: S3Uri, *, only_if: str | None = None) -> bool:
        """Delete an object; a missing one is no error.

        `only_if` is the ETag that it must have. If it has another, or is missing, delete nothing and return False.
        """
        try:
            self.call("deleting", "delete_object", uri, **({"IfMatch": only_if} if only_if else {}))
        except ObjectMissing:
            return only_if is None
        except StorageRefused as error:
            if only_if is None or not isinstance(error.__cause__, Exception) or not is_unmet(error.__cause__):
                raise
            return False
        return True


def _connect(patience: Patience) -> Any:
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=min(10.0, patience.answer_seconds),
        read_timeout=patience.answer_seconds,
        retries={"total_max_attempts": 1, "mode": "standard"},
        # This module sends and verifies checksums itself, also for ranges and resumed parts, which boto3 does not cover.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        max_pool_connections=16,
    )
    return boto3.session.Session().client("s3", config=config)


def found_in(uri: S3Uri, answer: Any) -> S3Object:
    """Return the description of an object from a response of the server."""
    whole = answer.get("ChecksumType") in (None, "FULL_OBJECT")
    names = {"SHA256": "ChecksumSHA256", "SHA1": "ChecksumSHA1", "CRC32": "ChecksumCRC32"}
    checksums = tuple((name, answer[key]) for name, key in names.items() if key in answer and "-" not in answer[key])
    return S3Object(
        uri,
        answer["ContentLength"],
        answer["ETag"],
        answer.get("Metadata", {}).get(SHA256),
        answer.get("VersionId"),
        checksums if whole else (),
        None if whole else answer.get("ChecksumSHA256"),
        encrypted=str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer,
    )


def is_unmet(error: Exception) -> bool:
    """Return True if the condition of a request did not hold."""
    return status_of(error) == 412 or code_of(error) == "PreconditionFailed"


def wrong_bytes(uri: S3Uri, by: str) -> WrongBytes:
    """Return the error for received bytes that differ from the object's."""
    return WrongBytes(
        found=f"{uri}: the received bytes do not match its {by}",
        expected="the bytes that were stored",
        fix="run again; if the error recurs, the object is damaged: delete it, and run again",
    )
