"""Paths named by a model: they must stay in the model's own folder."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from validators.errors import SourceError


def inside(folder: Path, name: str, *, said_by: str) -> Path:
    """Return the file or folder `name` below `folder`; `said_by` is the origin of the name in errors, such as an ONNX file.

    Raises:
        SourceError: the name is absolute, contains `..`, or leaves the folder through a link.
    """
    parts = PurePosixPath(name).parts
    climbs = PurePosixPath(name).is_absolute() or ".." in parts or "\0" in name or "\\" in name
    if climbs or not parts or not (folder / name).resolve().is_relative_to(folder.resolve()):
        raise SourceError(
            found=f"{said_by} names {name[:200]!r}, which lies outside of the model's folder",
            expected="files beside the model or below it",
            fix="log or copy the model again with all its files in one folder, links resolved",
        )
    return folder / name
