"""Finished work under the digest of all that made it: made once, never half there."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from validators.digests import digest_values
from validators.errors import InfrastructureError

Record = TypeVar("Record")
RECORD_FILE = "record.json"
# Stands for the entry's folder in a stored record, so that the store may be moved.
_HERE = "{entry}"


class StorageFull(InfrastructureError):
    """The disk of the state folder is full: every further step would fail the same way."""


class Store:
    """Entries `root/kind/digest/`, each a folder with its files and the record that describes them.

    An entry is made in a temporary folder beside its place and renamed when it is whole, so that a process that is killed
    leaves no entry, and two that make the same one end with one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def make(
        self, kind: str, key: tuple[Any, ...], record_type: type[Record], maker: Callable[[Path], Record]
    ) -> tuple[Record, bool]:
        """The record of the entry, made by `maker(folder)` unless it is there; and whether it was there.

        `maker` writes its files into the folder that it is given. Paths in the record below that folder follow the entry.

        Raises:
            StorageFull: there is no room for the entry.
        """
        place = self.root / kind / digest_values(*key)
        with self._lock:
            lock = self._locks[str(place)]
        with lock:
            if (place / RECORD_FILE).exists():
                return self._read(place, record_type), True
            self._write(place, record_type, maker)
            return self._read(place, record_type), False

    def _write(self, place: Path, record_type: type[Record], maker: Callable[[Path], Record]) -> None:
        folder: Path | None = None
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=".making-"))
            record = TypeAdapter(record_type).dump_python(maker(folder), mode="json")
            # As JSON strings, since a path may hold characters that JSON escapes. By this module and not by pydantic, which
            # escapes other characters and writes NaN, a finding like any other, as null.
            text = json.dumps(record, indent=1).replace(json.dumps(str(folder))[1:-1], _HERE)
            (folder / RECORD_FILE).write_text(text, encoding="utf-8")
            folder.rename(place)
        except OSError as error:
            if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
                return  # another process finished the same entry first
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise storage_full(self.root, error) from error
            raise
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, place: Path, record_type: type[Record]) -> Record:
        text = (place / RECORD_FILE).read_text(encoding="utf-8")
        return TypeAdapter(record_type).validate_json(text.replace(_HERE, json.dumps(str(place))[1:-1]))


def storage_full(folder: Path, error: OSError) -> StorageFull:
    """The error for a full disk, with what is left on it."""
    probe = folder
    while not probe.exists():
        probe = probe.parent
    free_mb = shutil.disk_usage(probe).free / 1e6
    return StorageFull(
        found=f"no space left for {folder} ({free_mb:.0f} MB free): {error.strerror}",
        expected="room for the variants: about three times the source's size for each candidate",
        fix="free space, or set QUANTGATE_STATE to a folder on a larger disk, and run again: finished candidates are kept",
    )
