"""The error for a full disk."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from validators.errors import StorageFull


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Say of a full disk that it is, and how full.

    Raises:
        StorageFull: there was no room in the block.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise storage_full(folder, error) from error
        raise


def storage_full(folder: Path, error: OSError) -> StorageFull:
    """The error for a full disk, with what is left on it."""
    probe = folder
    while not probe.exists():
        probe = probe.parent
    free_mb = shutil.disk_usage(probe).free / 1e6
    return StorageFull(
        found=f"no space left for {folder} ({free_mb:.0f} MB free): {error.strerror}",
        expected="room for the variants: about three times the source's size for each candidate",
        fix="free space, or set QUANTGATE_STATE to a folder on a larger disk, and run again: finished candidates are kept",
    )
