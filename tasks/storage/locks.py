"""Named locks among all processes that share a state folder or a store."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol, TextIO

from validators.digests import digest_values
from validators.errors import LockTaken

POLL_SECONDS = 0.2


class HeldLock(Protocol):
    """A lock that is held."""

    def check(self) -> None:
        """Return if the lock is certainly still held.

        Raises:
            LockLost: another process may hold it.
        """


class Locks(Protocol):
    """Locks by name."""

    def hold(self, name: str, *, wait_seconds: float) -> AbstractContextManager[HeldLock]:
        """Hold the lock for the length of the block.

        Raises:
            LockTaken: after `wait_seconds` another process still holds it.
        """


class _HeldFile:
    def check(self) -> None:
        """Return always: the kernel keeps a file lock until this process ends."""


class FolderLocks:
    """Locks as files of one folder; the kernel frees them when their holder ends, even if killed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def hold(self, name: str, *, wait_seconds: float) -> Iterator[HeldLock]:
        """See `Locks`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{lock_key(name)}.lock"
        with _open_locked(path, name, time.monotonic() + wait_seconds) as file:
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            try:
                yield _HeldFile()
            finally:
                # Entries of the store are locked by digest: files of locks that are never taken again would accumulate.
                path.unlink(missing_ok=True)


def lock_key(name: str) -> str:
    """Return a name as a file name: characters with a meaning in paths are percent-encoded.

    >>> lock_key("promotion-../model-ort-cpu")
    'promotion-..%2Fmodel-ort-cpu'
    """
    key = re.sub(r"[^\w.@-]", lambda found: f"%{ord(found.group()):02X}", name)
    # A file name has at most 255 bytes; long names become a prefix and a digest.
    return key if len(key.encode()) <= 200 else f"{key[:30]}-{digest_values(name)}"


def _open_locked(path: Path, name: str, end: float) -> TextIO:
    """Return the locked file; open it again if its previous holder removed it meanwhile."""
    while True:
        with ExitStack() as stack:
            file = stack.enter_context(path.open("a+", encoding="utf-8"))
            _lock(file, name, end)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                    stack.pop_all()
                    return file


def _lock(file: TextIO, name: str, end: float) -> None:
    while True:
        try:
            return fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= end:
                file.seek(0)
                raise LockTaken(
                    found=f"{name} is held by process {file.read().strip() or 'unknown'}",
                    expected="one holder at a time",
                    fix="wait until it ends, and run again",
                ) from error
        time.sleep(POLL_SECONDS)
