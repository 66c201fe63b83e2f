"""Local files: atomic writes, the error for a full disk, and removal of what killed processes left behind."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from validators.errors import StorageFull

# Prefix of the folder in which an entry of the store is made, beside its destination.
MAKING = ".making-"
# Suffix of a file that is being written.
WRITING = ".writing"
# Databases of a first run and its logs; less would end in the middle of it.
LEAST_FREE_MB = 64
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_OF_SQLITE = ("database or disk is full", "attempt to write a readonly database")
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
    partial = path.with_name(f".{os.urandom(6).hex()}{WRITING}")
    os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    return partial


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextmanager
def room_in(*folders: Path) -> Iterator[None]:
    """Turn an error of a full or read-only disk into one that names the disk and its free space.

    Raises:
        StorageFull: the disk took nothing more in the block.
    """
    try:
        yield
    except Exception as error:
        full = disk_error(error, *folders)
        if full is None or full is error:
            raise
        raise full from error


def check_room(*folders: Path) -> None:
    """Raise before work starts that could not be kept.

    Raises:
        StorageFull: the disk of a folder is read-only, or has less than `LEAST_FREE_MB` free.
    """
    for folder in folders:
        if not os.access(existing(folder), os.W_OK):
            raise _unwritable(folder, "read-only file system")
        if shutil.disk_usage(existing(folder)).free < 1e6 * LEAST_FREE_MB:
            raise _unwritable(folder, "too little for a run")


def disk_error(error: BaseException, *folders: Path) -> StorageFull | None:
    """Return the error for a full or read-only disk if that is what caused `error`, of files or of SQLite; else None.

    The error names its own path if it has one, else the folder whose disk has the least space.
    """
    folder = min(folders, key=lambda one: shutil.disk_usage(existing(one)).free)
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, StorageFull):
            return seen
        if isinstance(seen, OSError) and seen.errno in _OF_DISKS:
            return _unwritable(Path(os.fsdecode(seen.filename)) if seen.filename else folder, str(seen.strerror))
        text = next((words for words in _OF_SQLITE if words in str(seen)), None)
        if text:
            return _unwritable(folder, text)
        seen = seen.__cause__ or seen.__context__
    return None


def _unwritable(path: Path, why: str) -> StorageFull:
    free_mb = shutil.disk_usage(existing(path)).free / 1e6
    is_full = "read" not in why.lower()
    return StorageFull(
        found=f"no space left for {path} ({free_mb:.0f} MB free): {why}" if is_full else f"cannot write {path}: {why}",
        expected=f"a disk that can be written, with {LEAST_FREE_MB} MB and about three times the source's size a candidate",
        fix="free space, or set QUANTGATE_STATE (TMPDIR for temporary files) to a folder on a larger disk, and run again: "
        "finished candidates are kept",
    )


def existing(path: Path) -> Path:
    """Return the path, or its nearest parent that exists."""
    while not path.exists():
        path = path.parent
    return path


def remove_leftovers(root: Path) -> None:
    """Remove folders of unfinished entries older than `OLD_SECONDS` (by last write)."""
    for folder in root.glob(f"*/{MAKING}*"):
        if time.time() - last_written(folder) > OLD_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def find_leftovers(state: Path) -> Iterator[Path]:
    """Yield what killed processes left: unfinished entries and files below the state folder, this user's temporary ones."""
    yield from sorted(state.glob(f"store*/*/{MAKING}*"))
    yield from sorted(path for path in state.rglob(f".*{WRITING}") if MAKING not in str(path))
    for path in sorted(Path(tempfile.gettempdir()).glob("quantgate-*")):
        with suppress(FileNotFoundError):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                yield path


def delete(path: Path) -> None:
    """Delete a file or a folder; nothing happens if it is gone."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def last_written(path: Path) -> float:
    """Return the time of the last write to a file or into a folder (seconds since 1970); now if it is being removed."""
    try:
        return max(each.stat().st_mtime for each in (path, *path.rglob("*")))
    except FileNotFoundError:
        return time.time()
