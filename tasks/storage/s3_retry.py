"""What is tried again on S3, how often and for how long; and what is not, with what to check.

boto3 is told to try once: its own attempts know nothing of a body that breaks off, or of a conditional write whose answer was
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

# 409 is another write to the same key that has not ended yet.
_RETRIED_STATUS = {408, 409, 425, 429, 500, 502, 503, 504}
# A body that arrived otherwise than it was sent, whichever side noticed.
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
    """How long one thing is tried: so many attempts, and seconds, in a row that bring nothing.

    Waits between attempts are drawn evenly from 0 to a ceiling that doubles (AWS Architecture Blog, "Exponential Backoff And
    Jitter": full jitter), so that many clients do not come back at once. `answer_seconds` is how long a connection may be
    silent.
    """

    attempts: int = 8
    seconds: float = 180.0
    first_delay_seconds: float = 0.25
    longest_delay_seconds: float = 15.0
    answer_seconds: float = 30.0


class Attempts:
    """The attempts at one thing; `progressed` begins the count anew."""

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience, self._what = patience, what
        self.progressed()

    def progressed(self) -> None:
        """Something came of the last attempt."""
        self._failed, self._since = 0, time.monotonic()

    def failed(self, error: Exception) -> None:
        """Wait before the next attempt.

        Raises:
            StorageRefused: there is no sense in one.
            InfrastructureError: there were enough.
        """
        if not is_passing(error):
            refusal = refusal_of(error, self._what)
            raise refusal from (None if refusal is error else error)
        self._failed += 1
        seconds = time.monotonic() - self._since
        if self._failed >= self._patience.attempts or seconds >= self._patience.seconds:
            raise ServiceDown(
                found=f"{self._what}: {self._failed} attempts in {seconds:.0f} s, the last: {in_short(error)}",
                expected="an S3 server that answers rightly",
                fix="look at the server and the way to it (AWS_ENDPOINT_URL), and run again: what is finished is kept",
            ) from error
        ceiling = self._patience.first_delay_seconds * 2 ** (self._failed - 1)
        ceiling = min(ceiling, self._patience.longest_delay_seconds)
        time.sleep(random.uniform(0, ceiling))  # noqa: S311  # no secret


def call(patience: Patience, what: str, function: Callable[..., Answer], **arguments: Any) -> Answer:
    """What the function gives, tried until it does.

    Raises:
        StorageRefused: trying again makes no sense.
        InfrastructureError: it did not go well in time.
    """
    attempts = Attempts(patience, what)
    while True:
        try:
            return function(**arguments)
        except Exception as error:
            attempts.failed(error)


def is_passing(error: Exception) -> bool:
    """Whether the same request may go well the next time."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    if isinstance(error, exceptions.ClientError):
        return status_of(error) in _RETRIED_STATUS or code_of(error) in _RETRIED_CODES
    passing = (
        exceptions.HTTPClientError,
        # Nobody listens: botocore's own class, which is no HTTPClientError. A server that is started anew is away for seconds.
        exceptions.ConnectionError,
        ResponseParserError,
        exceptions.IncompleteReadError,
        exceptions.FlexibleChecksumError,
    )
    return isinstance(error, (*passing, ConnectionError, TimeoutError, WrongBytes))


def status_of(error: Exception) -> int:
    """The HTTP status of an answer that is an error, or 0."""
    return int(_answer_in(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: Exception) -> str:
    """S3's name of an error, such as NoSuchKey, or nothing."""
    return str(_answer_in(error).get("Error", {}).get("Code", ""))


def _answer_in(error: Exception) -> dict[str, Any]:
    # Errors of the connection have the attribute as well, and nothing in it.
    answer = getattr(error, "response", None)
    return answer if isinstance(answer, dict) else {}


def in_short(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def refusal_of(error: Exception, what: str) -> Exception:
    """The error that says what to check; what is no refusal of the server's goes on as it is."""
    from botocore import exceptions

    status, code = status_of(error), code_of(error)
    if code == "NoSuchBucket":
        return StorageRefused(
            found=f"{what}: no such bucket",
            expected="a bucket that exists on this server",
            fix="check its name, and AWS_ENDPOINT_URL and AWS_DEFAULT_REGION",
        )
    if status == 404:
        return ObjectMissing(
            found=f"{what}: no such object (or bucket)",
            expected="an object",
            fix="check bucket and key, letter by letter",
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
            expected="a request that the server takes",
            fix="check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION, and that the server speaks S3",
        )
    return error
