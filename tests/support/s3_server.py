"""A real S3 server for the length of a test module, and what tests of it share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stack import BUCKET, S3_KEY, S3_SECRET, Stack

from tasks.storage.s3 import S3
from tasks.storage.s3_retry import Patience
from validators.untrusted.s3_uris import S3Uri

# The least that S3 takes as a part.
PART_BYTES = 5 * 2**20
# Attempts that cost no time; a server on a busy machine is not taken for one that stalls.
PATIENCE = Patience(attempts=12, seconds=300, first_delay_seconds=0.01, longest_delay_seconds=0.2, answer_seconds=5)


@contextmanager
def s3_stack(root: Path) -> Iterator[Stack]:
    """A running server that boto3 finds by this process's environment."""
    stack = Stack(root)
    try:
        stack.start_s3()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", S3_KEY)
            patch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
            patch.setenv("AWS_ENDPOINT_URL", stack.endpoint)
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            yield stack
    finally:
        # Asked to end, it takes its time over connections that clients keep.
        if "s3" in stack.processes:
            stack.kill("s3")


def some_place() -> S3Uri:
    """A prefix that nothing is below."""
    return S3Uri(BUCKET, f"tests/{os.urandom(6).hex()}")


def client(endpoint: str, patience: Patience = PATIENCE) -> S3:
    """A client of the server, or of a proxy before it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", endpoint)
        s3 = S3(patience, part_bytes=PART_BYTES)
        assert s3.client.meta.endpoint_url == endpoint
    return s3
