"""Where a deployment keeps finished work and its locks: folders of this machine, or an address that several machines share."""

from __future__ import annotations

from pathlib import Path

from tasks.storage.blobs import open_blobs
from tasks.storage.leases import Leases, renewal_seconds
from tasks.storage.locks import FolderLocks, Locks
from tasks.storage.shared_entries import SharedEntries
from tasks.storage.store import Store
from validators.digests import digest_values


def open_store(state: Path, where: str | None) -> Store:
    """Open the store in a state folder or, with this machine's copy in that folder, the one below an address.

    Raises:
        JobError: the address is not one.
    """
    locks = open_locks(state, where)
    if where is None:
        return Store(state / "store", locks=locks)
    # One cache folder per store address.
    root = state / f"store-{digest_values(where)[:12]}"
    return Store(root, shared=SharedEntries(open_blobs(f"{where}/store")), locks=locks)


def open_locks(state: Path, where: str | None) -> Locks:
    """Open the locks of all that share the state folder or the address.

    Raises:
        JobError: the address is not one.
    """
    return FolderLocks(state / "locks") if where is None else Leases(open_blobs(f"{where}/locks", renewal_seconds()))
