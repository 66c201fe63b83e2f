"""Where a deployment keeps finished work and its locks: folders of this machine, or S3 for several machines."""

from __future__ import annotations

from pathlib import Path

from tasks.storage.leases import S3Locks
from tasks.storage.locks import FolderLocks, Locks
from tasks.storage.s3 import S3
from tasks.storage.shared_entries import SharedEntries
from tasks.storage.store import Store
from validators.digests import digest_values
from validators.untrusted.s3_uris import S3Uri


def open_store(state: Path, where: S3Uri | None) -> Store:
    """The store in a state folder or, with what this machine has of it there, on S3."""
    locks = open_locks(state, where)
    if where is None:
        return Store(state / "store", locks=locks)
    # A folder for each place: what was made without S3, or for another bucket, is not what this one has.
    root = state / f"store-{digest_values(str(where))[:12]}"
    return Store(root, shared=SharedEntries(S3(), where / "store"), locks=locks)


def open_locks(state: Path, where: S3Uri | None) -> Locks:
    """Locks among all that share the state folder or, on S3, the place there."""
    return FolderLocks(state / "locks") if where is None else S3Locks(where / "locks")
