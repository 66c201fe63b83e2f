"""Memory and disk of a run, measured while it runs and compared with the budgets of its job."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tasks.measure.metrics.reduction import ReductionSize
from tasks.storage.files import existing
from tasks.storage.store import Store
from validators.errors import BudgetExceeded
from validators.job.job import Budgets
from validators.records.result import FootprintResult

# Children are sampled; the kernel records the peak of the run's own process.
SAMPLE_SECONDS = 0.5
RESET_PEAK = "5"  # proc_pid_clear_refs(5): reset the peak resident size to the present size
# Memory limits of a container, cgroup v2 and v1.
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class Footprint:
    """Memory and disk of one run."""

    def __init__(self, budgets: Budgets, store: Store) -> None:
        self._budgets, self._store = budgets, store
        if budgets.disk_mb:
            store.admit = self._admit
        self._peak_memory = self._peak_disk = 0
        self._lock = threading.Lock()

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the memory of this process and its children until the end of the block."""
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text(RESET_PEAK, encoding="ascii")
        ended = threading.Event()

        def sample() -> None:
            while not ended.wait(SAMPLE_SECONDS):
                self._note_memory()

        thread = threading.Thread(target=sample, name="quantgate-footprint", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def read(self) -> FootprintResult:
        """Return the peak memory and disk so far."""
        self._note_memory()
        disk = self._note_disk(0)
        return FootprintResult(peak_memory_mb=round(self._peak_memory / 1e6, 1), disk_mb=round(disk / 1e6, 1))

    def check(self, what: str, needed: ReductionSize | None = None) -> None:
        """Raise if the run has exceeded `budgets.memory_mb`, or would exceed a budget with the resources `needed` for `what`.

        Without `needed`, the check is cheap enough for every batch.

        Raises:
            BudgetExceeded: the run exceeds the job's budget, or without one, what the machine has.
        """
        budget = self._budgets.memory_mb
        present = self._note_memory() if needed else _own_peak()
        taken = max(self._peak_memory, present)
        if budget and taken > budget * 1e6:
            raise _exceeded("memory", f"{taken / 1e6:,.0f} MB of memory used ({what})", budget * 1e6, True)
        if needed is None:
            return
        memory = budget * 1e6 if budget else _machine_memory()
        if present + needed.memory_bytes > memory:
            found = f"{needed.memory_bytes / 1e6:,.0f} MB of memory needed on top of {present / 1e6:,.0f} MB in use ({what})"
            raise _exceeded("memory", found, memory, bool(budget))
        written, left = self._store.written_bytes, self.disk_left()
        if needed.disk_bytes > left:
            found = (
                f"{needed.disk_bytes / 1e6:,.0f} MB of disk needed on top of {written / 1e6:,.0f} MB written ({what})"
            )
            raise _exceeded("disk", found, written + left, bool(self._budgets.disk_mb))
        self._note_disk(needed.disk_bytes)

    def disk_left(self) -> float:
        """Return the bytes that the run may still write: what `budgets.disk_mb` leaves, or what the disk has free."""
        allowed = self._budgets.disk_mb
        return (
            allowed * 1e6 - self._store.written_bytes if allowed else shutil.disk_usage(existing(self._store.root)).free
        )

    def _admit(self, kind: str, size: int) -> None:
        assert self._budgets.disk_mb is not None
        written, limit = self._store.written_bytes, self._budgets.disk_mb * 1e6
        if written + size > limit:
            found = f"{size / 1e6:,.0f} MB for an entry {kind!r} on top of {written / 1e6:,.0f} MB written"
            raise _exceeded("disk", found, limit, True)

    def room_mb(self, most: float) -> float:
        """Return the memory that a pass may take, in MB: `most`, or what `budgets.memory_mb` leaves if that is less."""
        budget = self._budgets.memory_mb
        return min(most, max(budget - self._note_memory() / 1e6, 1.0)) if budget else most

    def _note_memory(self) -> int:
        """Update the peak; return the bytes resident now."""
        own = psutil.Process()
        present = own.memory_info().rss
        for child in own.children(recursive=True):
            with suppress(psutil.Error):  # the child has ended
                present += child.memory_info().rss
        with self._lock:
            self._peak_memory = max(self._peak_memory, present, _own_peak())
        return present

    def _note_disk(self, beside: int) -> int:
        with self._lock:
            self._peak_disk = max(self._peak_disk, self._store.written_bytes + beside)
            return self._peak_disk


def _exceeded(kind: str, found: str, limit: float, is_budget: bool) -> BudgetExceeded:
    where = f"`budgets.{kind}_mb`" if is_budget else "what this machine has"
    return BudgetExceeded(
        found=found,
        expected=f"at most {limit / 1e6:,.0f} MB, {where}",
        fix=f"raise `budgets.{kind}_mb`"
        if is_budget
        else "use fewer samples, a metric that gives one score per sample, or a larger machine",
    )


def _own_peak() -> int:
    """Return the peak resident bytes of this process since the last reset; 0 if the system does not report it."""
    with suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return 0


def _machine_memory() -> int:
    limits = [int(psutil.virtual_memory().total)]
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # "max" is no limit
            limits.append(int(path.read_text(encoding="ascii")))
    return min(limits)
