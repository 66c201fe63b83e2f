"""Locks among several machines: a lease is a blob that its holder renews, and that a waiter takes over when it is too old.

Clocks of two machines are never compared. A waiter measures the age of a lease on its own clock, from the moment when it saw
the blob change; the holder on its own, from the earlier moment when it requested the renewal. A holder therefore considers its
lease lost before any waiter considers it free, as long as no clock runs more than `MARGIN` faster than another.
"""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from tasks.storage.blobs import NO_VERSION, Blobs, open_blobs
from tasks.storage.locks import POLL_SECONDS, FolderLocks, Locks, lock_key
from validators.errors import InfrastructureError, LockLost, LockTaken, ObjectMissing

log = logging.getLogger("quantgate")

LEASE_SECONDS = 30.0
MARGIN = 0.1
# On Linux the clock that also counts while the machine is suspended: a lease expires meanwhile.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _now() -> float:
    return time.clock_gettime(_CLOCK)


@dataclass(frozen=True)
class _Lease:
    """Content of a lease: its lock, its holder, how long it is valid after its last change, and whether it was released.

    `token` and `renewals` make each write another version of the blob.
    """

    name: str
    holder: str
    token: str
    seconds: float
    renewals: int = 0
    released: bool = False

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Leases:
    """Locks as blobs. After a holder was killed, others wait for `lease_seconds` and the margin."""

    def __init__(self, blobs: Blobs, *, lease_seconds: float = LEASE_SECONDS) -> None:
        """Use `blobs` that give up after `renewal_seconds`: the next renewal is then due."""
        self._blobs, self._lease_seconds = blobs, lease_seconds
        self._deletes: bool | None = None
        self._asking = threading.Lock()

    @contextmanager
    def hold(self, name: str, *, wait_seconds: float) -> Iterator[_HeldLease]:
        """See `Locks`.

        Raises:
            LockTaken: after `wait_seconds` another process still holds it.
            InfrastructureError: the service does not answer.
        """
        lease = self._take(name, time.monotonic() + wait_seconds)
        try:
            yield lease
        finally:
            if lease.release():
                # Each entry of the store has its own lease: without deletion they would accumulate by thousands.
                with suppress(InfrastructureError):
                    if self._can_delete():
                        self._blobs.delete(lease.file, lease.version)

    def _take(self, name: str, end: float) -> _HeldLease:
        file = f"{lock_key(name)}.json"
        holder = f"process {os.getpid()} on {socket.gethostname()}"
        told = _Lease(name, holder, os.urandom(16).hex(), self._lease_seconds)
        seen, since = "", 0.0
        while True:
            asked = _now()
            version = self._blobs.write_once(file, told.as_json())
            there = None
            if version is None:
                with suppress(ObjectMissing):
                    read, current = _read(self._blobs, file)
                    # An unreadable lease is assumed to be held, for as long as ours.
                    there = read or replace(told, holder="an unreadable lease")
                    if current != seen:
                        seen, since = current, _now()
                    if there.released or _now() - since > there.seconds * (1 + MARGIN):
                        asked = _now()
                        version = self._blobs.replace(file, told.as_json(), current)
            if version is not None:
                return _HeldLease(self._blobs, file, told, version, asked)
            if there is not None and time.monotonic() >= end:
                raise LockTaken(
                    found=f"{name} is held by {there.holder}",
                    expected="one holder at a time",
                    fix="wait until it ends, and run again",
                )
            # Jitter keeps waiters out of step.
            time.sleep(random.uniform(POLL_SECONDS, 2 * POLL_SECONDS))  # noqa: S311  # no secret

    def _can_delete(self) -> bool:
        """Return True if the server respects the condition of a deletion; tested once per process.

        A server that does not would delete the next holder's lease, so leases are then left there.
        """
        with self._asking:
            if self._deletes is None:
                probe = f"probes/{os.urandom(8).hex()}"
                self._blobs.write_once(probe, b"probe")
                self._deletes = not self._blobs.delete(probe, NO_VERSION)
                self._blobs.delete(probe)
        return self._deletes


def renewal_seconds(lease_seconds: float = LEASE_SECONDS) -> float:
    """Return how long a renewal may take, in seconds: a lease is renewed three times within its duration."""
    return lease_seconds / 3


def _read(blobs: Blobs, file: str) -> tuple[_Lease | None, str]:
    """Return the present lease (None if it is unreadable) and its version."""
    data, version = blobs.read(file)
    try:
        return TypeAdapter(_Lease).validate_json(data), version
    except ValidationError:
        return None, version


class _HeldLease:
    """A lease that a thread renews three times within its duration, until it is released or lost."""

    def __init__(self, blobs: Blobs, file: str, told: _Lease, version: str, asked: float) -> None:
        self._blobs, self.file, self._told = blobs, file, told
        self.version, self._renewed, self._taken_over = version, asked, False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"lease {told.name}", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """See `Held`."""
        age = _now() - self._renewed
        if self._taken_over or age > self._told.seconds:
            raise LockLost(
                found=f"{self._told.name}: "
                + ("another process holds it" if self._taken_over else f"not renewed for {age:.0f} s"),
                expected=f"a lease that is renewed within {self._told.seconds:.0f} s",
                fix="check the S3 server and the load of this machine, and run again",
            )

    def release(self) -> bool:
        """Release the lease; return True if that succeeded. If the server does not answer, the lease expires."""
        self._end.set()
        self._thread.join()
        if not self._taken_over:
            with suppress(InfrastructureError):
                return self._write(replace(self._told, released=True))
        return False

    def _keep(self) -> None:
        while not self._end.wait(renewal_seconds(self._told.seconds)):
            asked = _now()
            try:
                self._told = replace(self._told, renewals=self._told.renewals + 1)
                self._taken_over = not self._write(self._told)
            except InfrastructureError as error:
                log.warning("%s: not renewed: %s", self._told.name, error.found)
                continue
            if self._taken_over:
                return
            self._renewed = asked

    def _write(self, told: _Lease) -> bool:
        """Replace the lease; return True if it was still this holder's."""
        version = self._blobs.replace(self.file, told.as_json(), self.version)
        if version is None and (own := self._own_version()):
            version = self._blobs.replace(self.file, told.as_json(), own)
        self.version = version or self.version
        return version is not None

    def _own_version(self) -> str:
        """Return the lease's version if this holder wrote it (the answer to its last write may be lost), else an empty text."""
        try:
            there, version = _read(self._blobs, self.file)
        except ObjectMissing:
            return ""
        return version if there is not None and there.token == self._told.token and not there.released else ""


def open_locks(state: Path, where: str | None) -> Locks:
    """Open the locks of all processes that share the state folder or the address.

    Raises:
        JobError: the address is invalid.
    """
    return FolderLocks(state / "locks") if where is None else Leases(open_blobs(f"{where}/locks", renewal_seconds()))
