"""Secrets that the service on one machine makes for itself: one file each, for its user alone."""

from __future__ import annotations

import base64
import contextlib
import os
import tempfile
from pathlib import Path


def secret(state: Path, name: str) -> str:
    """The secret of a name, 32 random bytes in URL-safe base64, which is also what a Fernet key is; made on first use.

    Raises:
        OSError: the state folder cannot be written.
    """
    folder = state / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        _make(path)
    return path.read_text(encoding="ascii")


def _make(path: Path) -> None:
    # Written under a name of its own and then linked, it is never seen half, and of two processes one makes it.
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(base64.urlsafe_b64encode(os.urandom(32)))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
