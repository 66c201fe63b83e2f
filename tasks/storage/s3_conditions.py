"""Whether a server holds to the conditions of conditional writes, on which all that is shared rests: some ignore them."""

from __future__ import annotations

import os

from tasks.storage.s3 import S3
from validators.errors import StorageRefused
from validators.untrusted.s3_uris import S3Uri


def check_conditions(s3: S3, root: S3Uri) -> None:
    """Try each condition on an object that goes again.

    Raises:
        StorageRefused: the server writes where the condition does not hold.
    """
    uri = root / f"probes/{os.urandom(8).hex()}"
    try:
        first = s3.write(uri, b"first", only_if_absent=True)
        twice = s3.write(uri, b"again", only_if_absent=True)
        stale = s3.write(uri, b"stale", only_if='"00000000000000000000000000000000"')
        fresh = s3.write(uri, b"fresh", only_if=first.etag) if first else None
        if first is None or fresh is None or twice is not None or stale is not None:
            raise StorageRefused(
                found=f"a server that {'ignores' if twice or stale else 'refuses'} conditional writes below {root}",
                expected="If-None-Match and If-Match on PutObject, as AWS S3, SeaweedFS and MinIO have them",
                fix="take a server (or a newer version) that has them, or unset QUANTGATE_STORE and use a shared folder",
            )
    finally:
        s3.delete(uri)
