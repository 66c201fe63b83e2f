"""Secrets that the service on one machine generates: one file each, readable only by its user."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from tasks.storage.files import write_once


def secret(state: Path, name: str) -> str:
    """Return the secret of a name: 32 random bytes in URL-safe base64, as a Fernet key needs; generated on first use.

    Raises:
        OSError: the state folder cannot be written.
    """
    folder = state / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / name
    if not path.exists():
        write_once(path, lambda partial: partial.write_bytes(base64.urlsafe_b64encode(os.urandom(32))), mode=0o600)
    return path.read_text(encoding="ascii")
