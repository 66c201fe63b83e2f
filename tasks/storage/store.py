"""Finished work under the digest of all that made it: made once, never half there, on one machine or for several."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from tasks.storage.files import MAKING, room_in
from tasks.storage.locks import Locks
from tasks.storage.portable import pack, references, unpack, without_places
from tasks.storage.product import Product
from tasks.storage.shared_entries import RECORD_FILE, SharedEntries
from validators.digests import digest_values
from validators.errors import InfrastructureError, LockTaken, ObjectMissing

log = logging.getLogger("quantgate")

Record = TypeVar("Record")
# How long a maker waits for another one of the same entry before it makes its own: the first to end is kept.
WAIT_SECONDS = 1800.0


class Store:
    """Entries `root/kind/digest/`, each a folder with its files and the record that describes them.

    An entry is made in a temporary folder beside its place and renamed when it is whole, so that a process that is killed
    leaves no entry, and two that make the same one end with one. With `shared`, `root` is what this machine has of the entries
    on S3: one is renamed into place when it is there. With `locks`, one process makes an entry at a time while others wait.
    """

    def __init__(
        self,
        root: Path,
        *,
        shared: SharedEntries | None = None,
        locks: Locks | None = None,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.root = root
        self.shared = shared
        # Bytes of the entries that this process made, without those that it found.
        self.written_bytes = 0
        # Checked with the size of an entry before it is kept; raises to refuse it.
        self.admit: Callable[[str, int], None] = lambda _, __: None
        self._held_by, self._wait_seconds = locks, wait_seconds
        # Of the folders that machines have of their own, the deepest first.
        self._places = {"store": root, "state": root.parent}
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def make(self, product: Product[Record]) -> tuple[Record, bool]:
        """Return the record of a product, made unless it is there, and whether it was there.

        Paths in the record below the product's folder follow the entry. Those of other entries are this machine's wherever
        the record is read.

        Raises:
            StorageFull: there is no room for the entry.
            BudgetExceeded: the run may not take as much disk.
            InfrastructureError: the S3 server does not answer.
        """
        place = self._place(product.kind, product.key)
        with self._of_this_process(place):
            if self._is_here(place):
                return self._read(place, product.record_type), True
            with self._alone(place):
                was_there = self._is_here(place)
                if not was_there:
                    self._write(place, product.record_type, product.make)
            return self._read(place, product.record_type), was_there

    @property
    def name(self) -> str:
        """What people call the place."""
        return str(self.shared.root if self.shared else self.root)

    def keep(self, kind: str, key: tuple[Any, ...], record_type: Any, record: Any) -> None:
        """Put a record that is there already, and is worth no waiting for another one's."""
        place = self._place(kind, key)
        with self._of_this_process(place):
            if not self._is_here(place):
                self._write(place, record_type, lambda _: record)

    def find(self, kind: str, key: tuple[Any, ...], record_type: type[Record]) -> Record | None:
        """The record of an entry, if it is there."""
        place = self._place(kind, key)
        with self._of_this_process(place):
            return self._read(place, record_type) if self._is_here(place) else None

    def pack(self, text: str) -> str:
        """JSON in which paths of this store and its state folder mean the same to whoever shares the store."""
        return pack(text, self._places)

    def unpack(self, text: str) -> str:
        """The JSON with this machine's paths; the entries that it names are here then.

        Raises:
            InfrastructureError: one of them is nowhere.
        """
        for kind, digest in sorted(references(text)):
            place = self.root / kind / digest
            with self._of_this_process(place):
                if self.shared is not None and not self._is_here(place):
                    raise InfrastructureError(
                        found=f"no {kind} {digest[:12]} in {self.shared.root}, which a record names",
                        expected="an entry that is kept as long as those that name it",
                        fix="delete the record's entry as well, and run again: it is made anew",
                    )
        return unpack(text, self._places)

    def _place(self, kind: str, key: tuple[Any, ...]) -> Path:
        return self.root / kind / digest_values(*without_places(key, self._places))

    @contextmanager
    def _of_this_process(self, place: Path) -> Iterator[None]:
        with self._lock:
            lock = self._locks[str(place)]
        with lock:
            yield

    @contextmanager
    def _alone(self, place: Path) -> Iterator[None]:
        """Hold the entry among processes; after the longest wait go on without, since whose record comes first is kept."""
        with ExitStack() as stack:
            if self._held_by is not None:
                with suppress(LockTaken):
                    name = f"entry-{place.parent.name}-{place.name}"
                    stack.enter_context(self._held_by.hold(name, wait_seconds=self._wait_seconds))
            yield

    def _is_here(self, place: Path) -> bool:
        """Whether the entry is on this machine, after it was fetched if it is on S3."""
        return (place / RECORD_FILE).exists() or self._fetch(place)

    def _fetch(self, place: Path) -> bool:
        """Bring the entry from S3; False where it is not there, or not all of it."""
        manifest = self.shared.find(place.parent.name, place.name) if self.shared else None
        if manifest is None:
            return False
        assert self.shared is not None
        with self._folder_beside(place) as folder:
            try:
                self.shared.fetch(manifest, folder)
            except ObjectMissing as error:
                log.warning("%s; the entry is made anew", error.found)
                return False
            _settle(folder, place)
        return True

    def _write(self, place: Path, record_type: Any, maker: Callable[[Path], Any]) -> None:
        with self._folder_beside(place) as folder:
            record = TypeAdapter(record_type).dump_python(maker(folder), mode="json")
            # By this module and not by pydantic, which writes NaN, a finding like any other, as null.
            text = pack(json.dumps(record, indent=1), {"entry": folder, **self._places})
            (folder / RECORD_FILE).write_text(text, encoding="utf-8")
            size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
            self.admit(place.parent.name, size)
            with self._lock:
                self.written_bytes += size
            if self._publish(place, folder):
                _settle(folder, place)

    def _publish(self, place: Path, folder: Path) -> bool:
        """Put the entry on S3; False where another maker's was there, which then is here."""
        if self.shared is None:
            return True
        kind, digest = place.parent.name, place.name
        if self.shared.publish(kind, digest, folder):
            return True
        if self._fetch(place):
            return False
        # Not all of the other one's is there: nobody can use it.
        if self.shared.publish(kind, digest, folder, replaces=self.shared.find(kind, digest)):
            return True
        if self._fetch(place):
            return False
        raise InfrastructureError(
            found=f"{kind} {digest[:12]} in {self.shared.root}, of which files are missing, and which cannot be replaced",
            expected="an entry whose files are kept as long as its record",
            fix="delete what lies below it, and run again",
        )

    @contextmanager
    def _folder_beside(self, place: Path) -> Iterator[Path]:
        """A temporary folder on the disk of the entry, which is gone at the end unless it was renamed.

        Raises:
            StorageFull: there is no room.
        """
        folder: Path | None = None
        try:
            with room_in(self.root):
                place.parent.mkdir(parents=True, exist_ok=True)
                folder = Path(tempfile.mkdtemp(dir=place.parent, prefix=MAKING))
                yield folder
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, place: Path, record_type: type[Record]) -> Record:
        # When it was last used, for who deletes what is not; one that was deleted right now is missed by the next line.
        with suppress(OSError):
            os.utime(place / RECORD_FILE)
        text = unpack((place / RECORD_FILE).read_text(encoding="utf-8"), {"entry": place})
        return TypeAdapter(record_type).validate_json(self.unpack(text))


def _settle(folder: Path, place: Path) -> None:
    """Rename what is whole into its place, unless another process was first."""
    try:
        folder.rename(place)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
