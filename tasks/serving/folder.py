"""Atomic writing of a folder, which replaces only a folder that quantgate wrote and nobody changed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from validators.digests import digest_file
from validators.errors import InfrastructureError, JobError

# File with the version in a folder, and the sha256 of each of its files.
MARK = "quantgate.json"


def write_folder(place: Path, contents: Mapping[str, Path | str], about: Mapping[str, object], beside: Path) -> None:
    """Write the folder `place`.

    `contents` maps a relative path to a file to move there, or to its text. `MARK` holds `about` and the digests. The folder is
    prepared in `beside`, a folder on the same disk that nobody reads, so that `place` is never incomplete.

    Raises:
        JobError: `place` holds files that this function did not write, or that changed since.
        InfrastructureError: the folder cannot be written.
    """
    check_own(place)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".quantgate-", dir=beside) as scratch:
            made = Path(scratch, "new")
            for name, content in contents.items():
                path = made / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, str):
                    path.write_text(content, encoding="utf-8")
                else:
                    shutil.move(content, path)
            digests = {name: digest_file(made / name) for name in contents}
            (made / MARK).write_text(json.dumps({**about, "files": digests}, indent=1) + "\n", encoding="utf-8")
            _put(made, place, Path(scratch, "old"))
    except OSError as error:
        raise InfrastructureError(
            found=f"{place} cannot be written: {error}",
            expected=f"writable folders {place} and {beside} on the same disk",
            fix="export to another folder, and move its content there",
        ) from error


def _put(made: Path, place: Path, old: Path) -> None:
    """Replace the old folder with the new one; restore the old one on failure."""
    if not place.exists():
        made.rename(place)
        return
    place.rename(old)
    try:
        made.rename(place)
    except BaseException:
        old.rename(place)
        raise


def check_own(place: Path) -> None:
    """Check that the folder is missing, empty, or has exactly the files that `MARK` names, unchanged.

    Raises:
        JobError: it has other content, or is a link.
    """
    if not place.is_symlink() and (not place.exists() or (place.is_dir() and not any(place.iterdir()))):
        return
    found = "was not written by quantgate"
    try:
        told = json.loads((place / MARK).read_text(encoding="utf-8"))["files"]
        present = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()} - {MARK}
        changed = sorted(present ^ told.keys()) or [name for name in told if digest_file(place / name) != told[name]]
        if not changed and not place.is_symlink():
            return
        found = f"has {changed[0]} changed since quantgate wrote it" if changed else "is a link"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise JobError(found=f"{place} {found}", expected="a new folder", fix="name another folder, or move this one away")
