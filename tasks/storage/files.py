"""Local files: atomic writes, the error for a full disk, and removal of what killed processes left behind."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from validators.errors import StorageFull

# Prefix of the folder in which an entry of the store is made, beside its destination.
MAKING = ".making-"
# Longer than any maker works on one entry.
OLD_SECONDS = 86_400.0


@contextmanager
def write_whole(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """Yield an empty file to write to; at the end of the block it replaces `path`. On an error `path` stays as it is."""
    partial = _partial(path, mode)
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_once(path: Path, write: Callable[[Path], object], mode: int = 0o666) -> bool:
    """Let `write` fill a file that appears complete at `path`; return False if another process created it first."""
    partial = _partial(path, mode)
    try:
        write(partial)
        _sync(partial)
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        partial.unlink(missing_ok=True)
    return True


def _partial(path: Path, mode: int) -> Path:
    # Not `tempfile`: only the owner may read its files, but a shared folder has several users.
    partial = path.with_name(f".{os.urandom(6).hex()}.writing")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    return partial


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def room_in(folder: Path) -> Iterator[None]:
    """Turn the system's error for a full disk into one that states the free space.

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
    """Return the error for a full disk, with the space that is left on it."""
    probe = folder
    while not probe.exists():
        probe = probe.parent
    free_mb = shutil.disk_usage(probe).free / 1e6
    return StorageFull(
        found=f"no space left for {folder} ({free_mb:.0f} MB free): {error.strerror}",
        expected="room for the variants: about three times the source's size for each candidate",
        fix="free space, or set QUANTGATE_STATE to a folder on a larger disk, and run again: finished candidates are kept",
    )


def remove_leftovers(root: Path, older_than_seconds: float = OLD_SECONDS) -> int:
    """Remove folders of unfinished entries older than `older_than_seconds` (by last write); return how many."""
    removed = 0
    for folder in root.glob(f"*/{MAKING}*"):
        if time.time() - last_written(folder) > older_than_seconds:
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def last_written(path: Path) -> float:
    """Return the time of the last write to a file or into a folder (seconds since 1970); now if it is being removed."""
    try:
        return max(each.stat().st_mtime for each in (path, *path.rglob("*")))
    except FileNotFoundError:
        return time.time()
