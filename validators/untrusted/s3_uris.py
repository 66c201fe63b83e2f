"""Strict parsing of S3 URIs, because a part of the key becomes the name of a local file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from validators.errors import JobError

SCHEME = "s3://"
# AWS, "General purpose bucket naming rules": 3 to 63 characters, a letter or digit at both ends, no two dots in a row.
_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# AWS, "Naming Amazon S3 objects".
MAX_KEY_BYTES = 1024
# Some clients read `?` and `#` as a version or fragment, others as part of the key.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\?#]")


@dataclass(frozen=True, order=True)
class S3Uri:
    """The URI of an object or a prefix: `key` has no empty, `.` or `..` segment, and no slash at its ends."""

    bucket: str
    key: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"

    @property
    def name(self) -> str:
        """Last segment of the key."""
        return self.key.rpartition("/")[2]

    def __truediv__(self, segments: str) -> S3Uri:
        return parse_s3_uri(f"{self}/{segments}")


def parse_s3_uri(text: str) -> S3Uri:
    """Parse `s3://bucket/key`.

    >>> parse_s3_uri("s3://data/text/evaluation.npz")
    S3Uri(bucket='data', key='text/evaluation.npz')

    Raises:
        JobError: the bucket or key is missing, or not safe as part of a path.
    """
    bucket, _, key = text.removeprefix(SCHEME).partition("/")
    problem = _problem(text, bucket, key)
    if problem:
        raise JobError(
            found=f"{text[:200]!r}: {problem}",
            expected="s3://bucket/key, with non-empty segments separated by single slashes",
            fix="correct the address; a prefix has no slash at its end",
        )
    return S3Uri(bucket, key)


def _problem(text: str, bucket: str, key: str) -> str:
    if not text.startswith(SCHEME):
        return "it does not begin with s3://"
    if not _BUCKET.fullmatch(bucket):
        return "its bucket name is invalid"
    if not key:
        return "no key"
    if len(key.encode("utf-8", "surrogatepass")) > MAX_KEY_BYTES:
        return f"its key has more than {MAX_KEY_BYTES} bytes"
    if _UNSAFE.search(key) or not key.isprintable():
        return "its key has a control character, a backslash, ? or #"
    if set(key.split("/")) & {"", ".", ".."}:
        return "its key has an empty segment, . or .."
    return ""
