"""Record of a library of custom operators."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Library:
    """A library of custom operators that a session registers: the file, and the sha256 of its content.

    `package` is the Python package that provides it, installed as `version` of `distribution`; None for a user's file.
    """

    path: Path
    digest: str
    package: str | None = None
    distribution: str | None = None
    version: str | None = None


Libraries = tuple[Library, ...]
