"""Secrets that the service on one machine generates: one file each, readable only by its user."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from tasks.storage.files import write_once, write_whole


def secret(state: Path, name: str) -> str:
    """Return the secret of a name: 32 random bytes in URL-safe base64, as a Fernet key needs; generated on first use.

    Raises:
        OSError: the state folder cannot be written.
    """
    path = _folder(state) / name
    if not path.exists():
        write_once(path, lambda partial: partial.write_bytes(base64.urlsafe_b64encode(os.urandom(32))), mode=0o600)
    return path.read_text(encoding="ascii")


def prefect_auth(state: Path, api: str) -> str:
    """Return `user:password` of the service's Prefect server, and record it with the address `api` for other commands.

    Raises:
        OSError: the state folder cannot be written.
    """
    auth = f"quantgate:{secret(state, 'prefect')}"
    with write_whole(access_file(state), mode=0o600) as partial:
        partial.write_text(f"PREFECT_API_URL={api}\nPREFECT_API_AUTH_STRING={auth}\n", encoding="ascii")
    return auth


def access_file(state: Path) -> Path:
    """Return the file with the variables that a client of the service's Prefect server needs, one a line."""
    return _folder(state) / "prefect.env"


def recorded_auth(state: Path, api: str | None) -> str | None:
    """Return `user:password` of the Prefect server at `api` if it is the service's, of this state folder."""
    path = state / "secrets" / "prefect.env"
    if not api or not path.exists():
        return None
    recorded = dict(line.split("=", 1) for line in path.read_text(encoding="ascii").splitlines())
    return recorded["PREFECT_API_AUTH_STRING"] if recorded["PREFECT_API_URL"] == api.rstrip("/") else None


def _folder(state: Path) -> Path:
    folder = state / "secrets"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
