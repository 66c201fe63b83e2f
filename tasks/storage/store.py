"""The store of finished work, under the digest of all its inputs: made once, and complete, on one machine or several."""

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

from tasks.storage.blobs import open_blobs
from tasks.storage.files import MAKING, room_in
from tasks.storage.leases import open_locks
from tasks.storage.locks import Locks
from tasks.storage.portable import pack, references, unpack, without_places
from tasks.storage.product import Product
from tasks.storage.shared_entries import RECORD_FILE, SharedEntries
from validators.digests import digest_values
from validators.errors import InfrastructureError, LockTaken, ObjectMissing

log = logging.getLogger("quantgate")

Record = TypeVar("Record")
# How long a maker waits for another maker of the same entry before it makes its own; the first to finish is kept.
WAIT_SECONDS = 1800.0


class Store:
    """Entries `root/kind/digest/`, each a folder with its files and the record that describes them.

    An entry is made in a temporary folder beside its path and renamed when it is complete. A killed process therefore leaves no
    entry, and two makers of the same entry leave one. With `shared`, `root` is this machine's cache of the shared entries: an
    entry is renamed into it once it is published or downloaded. With `locks`, one process makes an entry while others wait.
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
        # Bytes of the entries that this process made; cache hits are not counted.
        self.written_bytes = 0
        # Called with the kind and size of an entry before it is kept; raises to refuse it.
        self.admit: Callable[[str, int], None] = lambda _, __: None
        self._held_by, self._wait_seconds = locks, wait_seconds
        # Folders whose paths differ between machines, the deepest first.
        self._places = {"store": root, "state": root.parent}
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._lock = threading.Lock()

    def make(self, product: Product[Record]) -> tuple[Record, bool]:
        """Return the record of a product, which is made if missing, and True if it was a cache hit.

        Paths in the record below the product's folder are relocated with the entry. Paths of other entries become those of
        the machine that reads the record.

        Raises:
            StorageFull: there is no room for the entry.
            BudgetExceeded: the run's budget of disk space does not allow it.
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
        """The address or path of the store, for messages."""
        return str(self.shared.root if self.shared else self.root)

    def keep(self, kind: str, key: tuple[Any, ...], record_type: Any, record: Any) -> None:
        """Store an existing record; it is cheap, so other makers of the same entry are not waited for."""
        place = self._place(kind, key)
        with self._of_this_process(place):
            if not self._is_here(place):
                self._write(place, record_type, lambda _: record)

    def find(self, kind: str, key: tuple[Any, ...], record_type: type[Record]) -> Record | None:
        """Return the record of an entry, or None if there is none."""
        place = self._place(kind, key)
        with self._of_this_process(place):
            return self._read(place, record_type) if self._is_here(place) else None

    def pack(self, text: str) -> str:
        """Return JSON with portable paths of this store and its state folder, for other processes that share the store."""
        return pack(text, self._places)

    def unpack(self, text: str) -> str:
        """Return the JSON with this machine's paths, after downloading the entries that it names.

        Raises:
            InfrastructureError: one of them does not exist.
        """
        for kind, digest in sorted(references(text)):
            place = self.root / kind / digest
            with self._of_this_process(place):
                if self.shared is not None and not self._is_here(place):
                    raise InfrastructureError(
                        found=f"no {kind} {digest[:12]} in {self.shared.root}, which a record names",
                        expected="an entry that is kept as long as the records that name it",
                        fix="delete the record's entry as well, and run again: it is made again",
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
        """Hold the entry's lock among processes; after the longest wait continue without it: the first record is kept."""
        with ExitStack() as stack:
            if self._held_by is not None:
                with suppress(LockTaken):
                    name = f"entry-{place.parent.name}-{place.name}"
                    stack.enter_context(self._held_by.hold(name, wait_seconds=self._wait_seconds))
            yield

    def _is_here(self, place: Path) -> bool:
        """Return True if the entry is on this machine; download it first if it is only on S3."""
        return (place / RECORD_FILE).exists() or self._fetch(place)

    def _fetch(self, place: Path) -> bool:
        """Download the entry from S3; return False if it is missing or incomplete."""
        manifest = self.shared.find(place.parent.name, place.name) if self.shared else None
        if manifest is None:
            return False
        assert self.shared is not None
        with self._folder_beside(place) as folder:
            try:
                self.shared.fetch(manifest, folder)
            except ObjectMissing as error:
                log.warning("%s; making the entry again", error.found)
                return False
            _settle(folder, place)
        return True

    def _write(self, place: Path, record_type: Any, maker: Callable[[Path], Any]) -> None:
        with self._folder_beside(place) as folder:
            record = TypeAdapter(record_type).dump_python(maker(folder), mode="json")
            # By json and not by pydantic, which writes NaN, a valid finding, as null.
            text = pack(json.dumps(record, indent=1), {"entry": folder, **self._places})
            (folder / RECORD_FILE).write_text(text, encoding="utf-8")
            size = sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())
            self.admit(place.parent.name, size)
            with self._lock:
                self.written_bytes += size
            if self._publish(place, folder):
                _settle(folder, place)

    def _publish(self, place: Path, folder: Path) -> bool:
        """Publish the entry on S3; return False if another maker's entry was there, after downloading that one."""
        if self.shared is None:
            return True
        kind, digest = place.parent.name, place.name
        if self.shared.publish(kind, digest, folder):
            return True
        if self._fetch(place):
            return False
        # The existing entry is incomplete: nobody can use it.
        if self.shared.publish(kind, digest, folder, replaces=self.shared.find(kind, digest)):
            return True
        if self._fetch(place):
            return False
        raise InfrastructureError(
            found=f"{kind} {digest[:12]} in {self.shared.root} has missing files and cannot be replaced",
            expected="an entry whose files are kept as long as its record",
            fix="delete everything below it, and run again",
        )

    @contextmanager
    def _folder_beside(self, place: Path) -> Iterator[Path]:
        """Yield a temporary folder on the entry's disk; at the end it is removed, unless it was renamed."""
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
        # Mark the entry as used, for retention. If it was deleted just now, the next line raises.
        with suppress(OSError):
            os.utime(place / RECORD_FILE)
        text = unpack((place / RECORD_FILE).read_text(encoding="utf-8"), {"entry": place})
        return TypeAdapter(record_type).validate_json(self.unpack(text))


def _settle(folder: Path, place: Path) -> None:
    """Rename a complete entry to its path, unless another process was first."""
    try:
        folder.rename(place)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise


def open_store(state: Path, where: str | None) -> Store:
    """Open the store in a state folder, or the one below an address with a local copy in the state folder.

    Raises:
        JobError: the address is invalid.
    """
    locks = open_locks(state, where)
    if where is None:
        return Store(state / "store", locks=locks)
    # One cache folder per store address.
    root = state / f"store-{digest_values(where)[:12]}"
    return Store(root, shared=SharedEntries(open_blobs(f"{where}/store")), locks=locks)
