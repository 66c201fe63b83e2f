"""Files of a registered version, checked against its manifest, and of engines that were built here."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from .stale import digest_file


def check_files(folder: Path, files: dict[str, str]) -> None:
    """Raise unless the folder holds exactly the files of the manifest; `files` maps names to sha256 digests.

    Raises:
        RuntimeError: a file is missing, has another digest, or is not in the manifest; or a name points outside the folder.
    """
    outside = [name for name in files if Path(name).name != name or name in ("", "..")]
    if outside:
        raise RuntimeError(f"found {outside[0]!r} in the manifest; expected names of files beside the model")
    found = {path.name: path for path in folder.iterdir()}
    strays = sorted(found.keys() - files.keys())
    if strays:
        raise RuntimeError(f"found {strays[0]!r}, which the manifest does not name; download the version again")
    for name, expected in files.items():
        if name not in found or found[name].is_symlink() or not found[name].is_file():
            raise RuntimeError(f"found no file {name}, which the manifest names; download the version again")
        digest = digest_file(found[name])
        if digest != expected:
            raise RuntimeError(f"found {name} with sha256 {digest}; expected {expected}; download the version again")


def keep(path: Path, content: bytes) -> str:
    """Write a file as its digest and its content, all at once; return why it could not be written, empty if it was."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(content).digest() + content)
        # Another process may read or write the file at the same time.
        Path(file.name).replace(path)
    except OSError as error:
        return str(error)
    return ""


def read_kept(path: Path) -> bytes | None:
    """Return the content that `keep` wrote; None if there is no file, or its digest is another."""
    try:
        whole = path.read_bytes()
    except OSError:
        return None
    digest, content = whole[:32], whole[32:]
    return content if hashlib.sha256(content).digest() == digest else None
