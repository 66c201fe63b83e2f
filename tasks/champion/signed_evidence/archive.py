"""Archive of a bundle: a zip whose bytes follow from its members, so that no byte can change unseen."""

from __future__ import annotations

import io
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FILE = "evidence.zip"
_NAME = re.compile(r"[a-z0-9_]+(?:[./-][a-z0-9_]+)*")
# A bundle has rows and times, no models: more is no bundle of ours.
_LARGEST_BYTES, _MOST_MEMBERS = 4 << 30, 1000
# A record or a statement; Python's objects of a JSON text need twenty times its size.
_LARGEST_DOCUMENT = 8 << 20
_LONGEST_REASON = 1000
# Local file header of a member: APPNOTE.TXT of PKWARE, section 4.3.7.
_HEADER = struct.Struct("<4s5H3I2H")


class BundleUnsound(Exception):
    """A part of a bundle is missing, damaged, or says something else than the rest."""

    def __init__(self, part: str, reason: str) -> None:
        self.part, self.reason = part[:_LONGEST_REASON], reason[:_LONGEST_REASON]
        super().__init__(f"{self.part}: {self.reason}")


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
        OSError: the file is missing, or not a regular file.
    """
    with open_regular(path) as (stream, size):
        members = dict(_members(stream, size))
        stream.seek(0)
        again = memoryview(archived(members))
        blocks = (again[at : at + _LARGEST_DOCUMENT] for at in range(0, len(again), _LARGEST_DOCUMENT))
        if len(again) != size or any(block != stream.read(len(block)) for block in blocks):
            raise BundleUnsound("archive", "its bytes are not those that its members give")
    return members


def read_member(path: Path, name: str) -> bytes:
    """Return one member of an archive, whose other members are skipped.

    Raises:
        BundleUnsound: the file is no archive, or the member is missing.
        OSError: the file is missing, or not a regular file.
    """
    with open_regular(path) as (stream, size):
        for _, content in _members(stream, size, only=name):
            return content
    raise BundleUnsound(name, "the member is missing")


def check_document(content: bytes, part: str) -> None:
    """Raise BundleUnsound if a JSON document is too large to be read."""
    if len(content) > _LARGEST_DOCUMENT:
        raise BundleUnsound(part, f"found {len(content)} bytes; expected at most {_LARGEST_DOCUMENT}")


@contextmanager
def open_regular(path: Path) -> Iterator[tuple[io.BufferedReader, int]]:
    """Open a regular file; yield the stream and its size in bytes.

    A named pipe or a device is refused before any read, since reading it may never end.

    Raises:
        OSError: the file is missing, or not a regular file.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path.name} is not a regular file")
        yield stream, found.st_size


def _members(stream: io.BufferedReader, size: int, only: str = "") -> Iterator[tuple[str, bytes]]:
    """Yield the members of an archive in the order of its bytes; each declared size is compared with the bytes that are left.

    The central directory is not read: its bytes follow from the members. With `only` other members are skipped.
    """
    if size > _LARGEST_BYTES:
        raise BundleUnsound("archive", f"found {size} bytes; expected at most {_LARGEST_BYTES}")
    last = ""
    for _ in range(_MOST_MEMBERS):
        header = stream.read(_HEADER.size)
        if header[:4] == b"PK\x01\x02" and last:
            return
        if len(header) < _HEADER.size or header[:4] != b"PK\x03\x04":
            raise BundleUnsound("archive", "found no zip archive as quantgate writes it")
        _, _, flags, method, _, _, check, packed, held, name_length, extra = _HEADER.unpack(header)
        name = stream.read(name_length).decode("ascii", errors="replace")
        if flags or method or extra or packed != held or not _NAME.fullmatch(name) or name <= last:
            raise BundleUnsound("archive", f"found the member {name[:200]!r}, which no bundle has")
        if held > size - stream.tell():
            raise BundleUnsound(name, f"it declares {held} bytes, and the archive has {size - stream.tell()} after it")
        if only and name != only:
            stream.seek(held, os.SEEK_CUR)
        else:
            content = stream.read(held)
            if zlib.crc32(content) != check:
                raise BundleUnsound(name, "the member is damaged: its checksum is another")
            yield name, content
        last = name
    raise BundleUnsound("archive", f"found more than {_MOST_MEMBERS} members")
