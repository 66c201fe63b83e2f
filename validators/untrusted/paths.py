"""Paths that come with a model: they may lead to its own files, and nowhere else."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from validators.errors import SourceError


def inside(folder: Path, name: str, *, said_by: str) -> Path:
    """The file or folder `name` below `folder`; `said_by` is what names it, such as the file of an ONNX model.

    Raises:
        SourceError: the name is absolute, climbs with `..`, or leads out of the folder by a link.
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
