"""Paths named by a model or a job: those of a model must stay in its own folder."""

from __future__ import annotations

import errno
import os
import stat
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


def why_no_file(path: Path) -> str:
    """Return the reason why a path, of a job or a command, cannot be read as a file.

    >>> why_no_file(Path("/dev/null")), why_no_file(Path("/none"))
    ('neither a regular file nor a folder', 'no such file')
    """
    try:
        if path.is_dir():
            return "no such file, but a folder"
        if path.exists():
            return "neither a regular file nor a folder"
        return "a link that leads nowhere" if path.is_symlink() else "no such file"
    except OSError as error:
        return error.strerror or "no such file"


def is_file(path: Path) -> bool:
    """Return True for a regular file; False also for a path that the system refuses, such as one that is too long."""
    try:
        return path.is_file()
    except OSError:
        return False


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Return the content of a regular file of at most `most_bytes` bytes.

    A named pipe or a device is refused before any read, since reading it may never end.

    Raises:
        OSError: the file is missing, not a regular file, or larger; `strerror` says which.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(most_bytes + 1) if found.st_size <= most_bytes else b""
    if max(len(content), found.st_size) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
    return content
