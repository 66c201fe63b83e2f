"""A folder that is written whole or not at all, and replaced only if it is what was written before."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from validators.digests import digest_file
from validators.errors import InfrastructureError, JobError

# Which version a folder holds, and the sha256 of each file in it.
MARK = "quantgate.json"


def write_folder(place: Path, contents: Mapping[str, Path | str], about: Mapping[str, object], beside: Path) -> None:
    """Write the folder `place`: by relative path a file to be moved there, or its text; `MARK` has `about` and the digests.

    It is made in a folder of the same disk, `beside`, which nobody reads, so that `place` never holds half of it.

    Raises:
        JobError: `place` holds what this did not write, or what was changed since.
        InfrastructureError: it cannot be written.
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
            expected=f"folders that may be written, {place} and {beside} on one disk",
            fix="export to another folder, and move what is in it there",
        ) from error


def _put(made: Path, place: Path, old: Path) -> None:
    """The new folder in the place of the old one, which comes back if that fails."""
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
    """Nothing, where there is no such folder, or an empty one, or one with the files that `MARK` names and no others.

    Raises:
        JobError: there is something else.
    """
    if not place.is_symlink() and (not place.exists() or (place.is_dir() and not any(place.iterdir()))):
        return
    found = "which quantgate did not write"
    try:
        told = json.loads((place / MARK).read_text(encoding="utf-8"))["files"]
        present = {str(path.relative_to(place)) for path in place.rglob("*") if not path.is_dir()} - {MARK}
        changed = sorted(present ^ told.keys()) or [name for name in told if digest_file(place / name) != told[name]]
        if not changed and not place.is_symlink():
            return
        found = f"in which {changed[0]} was changed since quantgate wrote it" if changed else "which is a link"
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise JobError(found=f"{place}, {found}", expected="a new folder", fix="name another one, or move this one away")
