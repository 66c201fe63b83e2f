"""Retries of S3 requests, and the errors for requests that are not retried.

boto3 makes one attempt only: its own retries cover neither a body that breaks off nor a conditional write whose answer was
lost, and would multiply with these.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from validators.errors import ObjectMissing, ServiceDown, StorageRefused, WrongBytes

Answer = TypeVar("Answer")

# 409: another write to the same key is still in progress.
_RETRIED_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
# Mostly bodies that were damaged on the way, whichever side noticed.
_RETRIED_CODES = {
    "BadDigest",
    "IncompleteBody",
    "InternalError",
    "InvalidPartOrder",
    "MalformedXML",
    "RequestTimeout",
    "SlowDown",
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
}


@dataclass(frozen=True)
class Patience:
    """Limits of the retries of one operation: attempts and seconds in a row without progress.

    The wait between attempts is uniform between 0 and a ceiling that doubles (AWS Architecture Blog, "Exponential Backoff And
    Jitter": full jitter), so that many clients do not retry at once. `answer_seconds` is the timeout of a silent connection.
    """

    attempts: int = 8
    seconds: float = 180.0
    first_delay_seconds: float = 0.25
    longest_delay_seconds: float = 15.0
    answer_seconds: float = 30.0


class Attempts:
    """The attempts at one operation; `progressed` resets the count."""

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience, self._what = patience, what
        self.progressed()

    def progressed(self) -> None:
        """Reset the count: the last attempt made progress."""
        self._failed, self._since = 0, time.monotonic()

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt.

        Raises:
            StorageRefused: the error is permanent.
            InfrastructureError: the limits are reached.
        """
        if not is_passing(error):
            refusal = refusal_of(error, self._what)
            raise refusal from (None if refusal is error else error)
        self._failed += 1
        seconds = time.monotonic() - self._since
        if self._failed >= self._patience.attempts or seconds >= self._patience.seconds:
            raise ServiceDown(
                found=f"{self._what}: {self._failed} attempts in {seconds:.0f} s, the last: {in_short(error)}",
                expected="an S3 server that answers without errors",
                fix="check the server and the network to it (AWS_ENDPOINT_URL), and run again: finished work is kept",
            ) from error
        ceiling = self._patience.first_delay_seconds * 2 ** (self._failed - 1)
        ceiling = min(ceiling, self._patience.longest_delay_seconds)
        time.sleep(random.uniform(0, ceiling))  # noqa: S311  # no secret


def call(patience: Patience, what: str, function: Callable[..., Answer], **arguments: Any) -> Answer:
    """Return the function's result; retry it after passing errors.

    Raises:
        StorageRefused: the error is permanent.
        InfrastructureError: the retries did not succeed in time.
    """
    attempts = Attempts(patience, what)
    while True:
        try:
            return function(**arguments)
        except Exception as error:
            attempts.failed(error)


def is_passing(error: Exception) -> bool:
    """Return True if the same request may succeed on a retry."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        return status_of(error) in _RETRIED_STATUS or code_of(error) in _RETRIED_CODES
    passing = (
        exceptions.HTTPClientError,
        # Connection refused: botocore's own class, not an HTTPClientError. A server that restarts is away for seconds.
        exceptions.ConnectionError,
        ResponseParserError,
        exceptions.IncompleteReadError,
        exceptions.FlexibleChecksumError,
    )
    return isinstance(error, (*passing, ConnectionError, TimeoutError, WrongBytes))


def status_of(error: Exception) -> int:
    """Return the HTTP status of an error response, or 0."""
    return int(_answer_in(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: Exception) -> str:
    """Return S3's code of an error, such as NoSuchKey, or an empty text."""
    return str(_answer_in(error).get("Error", {}).get("Code", ""))


def _answer_in(error: Exception) -> dict[str, Any]:
    # Connection errors have the attribute as well, but empty.
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, dict) else {}


def in_short(error: Exception) -> str:
    """Return an error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def refusal_of(error: Exception, what: str) -> Exception:
    """Return the error that says what to check; an error that is no refusal of the server is returned unchanged."""
    from botocore import exceptions

    status, code = status_of(error), code_of(error)
    if code == "NoSuchBucket":
        return StorageRefused(
            found=f"{what}: no such bucket",
            expected="a bucket that exists on this server",
            fix="check the bucket's name, AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
        )
    if status == 404:
        return ObjectMissing(
            found=f"{what}: no such object (or bucket)",
            expected="an object that exists on this server",
            fix="check the spelling of bucket and key",
        )
    if status in (401, 403) or isinstance(
        error, exceptions.NoCredentialsError | exceptions.PartialCredentialsError | exceptions.ProfileNotFound
    ):
        return StorageRefused(
            found=f"{what}: {code or status or type(error).__name__}",
            expected="credentials with the rights that docs/storage.md lists",
            fix="check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or the role), the clock, and the bucket's policy",
        )
    if isinstance(error, exceptions.ClientError | exceptions.BotoCoreError):
        return StorageRefused(
            found=f"{what}: {in_short(error)}",
            expected="a request that the server accepts",
            fix="check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION, and that the server speaks S3",
        )
    return error
