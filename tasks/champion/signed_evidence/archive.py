"""Archive of a bundle: a zip whose bytes follow from its members, so that no byte can change unseen."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

FILE = "evidence.zip"
_NAME = re.compile(r"[a-z0-9_]+(?:[./-][a-z0-9_]+)*")
# A bundle has rows and times, no models: more is no bundle of ours.
_LARGEST_BYTES = 4 << 30


class BundleUnsound(Exception):
    """A part of a bundle is missing, damaged, or says something else than the rest."""

    def __init__(self, part: str, reason: str) -> None:
        super().__init__(f"{part}: {reason}")
        self.part, self.reason = part, reason


def write_archive(members: Mapping[str, bytes], folder: Path) -> Path:
    """Write `folder/evidence.zip`, and return its path; a maker of the store."""
    path = folder / FILE
    path.write_bytes(archived(members))
    return path


def archived(members: Mapping[str, bytes]) -> bytes:
    """Return the zip of the members: sorted, stored, all of one date."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            about = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            about.create_system, about.external_attr = 3, 0o644 << 16
            archive.writestr(about, members[name])
    return buffer.getvalue()


def read_archive(path: Path) -> dict[str, bytes]:
    """Return the members of an archive by name.

    Raises:
        BundleUnsound: it is no archive that `archived` gives, or a member is damaged, which the error names.
    """
    if path.stat().st_size > _LARGEST_BYTES:
        raise BundleUnsound("archive", f"found {path.stat().st_size} bytes; expected at most {_LARGEST_BYTES}")
    content = path.read_bytes()
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for about in archive.infolist():
                if about.compress_type != zipfile.ZIP_STORED or not _NAME.fullmatch(about.filename):
                    raise BundleUnsound("archive", f"found the member {about.filename!r}, which no bundle has")
                try:
                    members[about.filename] = archive.read(about)
                except (zipfile.BadZipFile, EOFError, ValueError) as error:
                    raise BundleUnsound(about.filename, f"the member is damaged: {error}") from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OSError, EOFError) as error:
        raise BundleUnsound("archive", f"found no zip archive: {error}") from error
    if archived(members) != content:
        raise BundleUnsound("archive", "its bytes are not those that its members give")
    return members
