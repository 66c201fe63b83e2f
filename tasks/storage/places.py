"""Store and locks of a deployment: in folders of this machine, or at an address that several machines share."""

from __future__ import annotations

from pathlib import Path

from tasks.storage.blobs import open_blobs
from tasks.storage.leases import Leases, renewal_seconds
from tasks.storage.locks import FolderLocks, Locks
from tasks.storage.shared_entries import SharedEntries
from tasks.storage.store import Store
from validators.digests import digest_values


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


def open_locks(state: Path, where: str | None) -> Locks:
    """Open the locks of all processes that share the state folder or the address.

    Raises:
        JobError: the address is invalid.
    """
    return FolderLocks(state / "locks") if where is None else Leases(open_blobs(f"{where}/locks", renewal_seconds()))
