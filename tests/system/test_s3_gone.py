"""An S3 server that is away is tried again, and then said to be down: a step waits for what is down."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError
from stack import free_port

from tasks.storage.s3_retry import Patience, call, is_passing
from validators.errors import ServiceDown

SHORT = Patience(attempts=3, seconds=5.0, first_delay_seconds=0.01, longest_delay_seconds=0.02)


@pytest.fixture
def nobody() -> Any:
    """A client of a port where nobody listens."""
    config = Config(retries={"total_max_attempts": 1})
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=f"http://127.0.0.1:{free_port()}", config=config, **keys)


def test_nobody_listens(nobody: Any) -> None:
    """The error is one that passes, and there are as many attempts as there should be."""
    asked = []

    def ask() -> None:
        asked.append(1)
        nobody.head_object(Bucket="bucket", Key="key")

    with pytest.raises(EndpointConnectionError) as refused:
        nobody.head_object(Bucket="bucket", Key="key")
    assert is_passing(refused.value)
    with pytest.raises(ServiceDown, match="3 attempts"):
        call(SHORT, "reading s3://bucket/key", ask)
    assert len(asked) == 3
