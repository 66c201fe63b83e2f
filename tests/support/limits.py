"""Limits of one call on a hostile input, measured by the process that makes it: processor time and resident memory."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator
from pathlib import Path

# Processor time, also of finished children, since other work on the machine does not count in it.
MOST_SECONDS = 10
# Resident memory beyond what the process had before the call.
MOST_MB = 1024


@contextlib.contextmanager
def measured() -> Iterator[list[str]]:
    """Yield a list; after the block it has a sentence for each limit that the block exceeded."""
    exceeded: list[str] = []
    # Linux counts the peak anew after this write; elsewhere it is that of the whole process, which is no less.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before, seconds = _resident_mb("VmRSS"), _processor_seconds()
    try:
        yield exceeded
    finally:
        used, more = _processor_seconds() - seconds, _resident_mb("VmHWM") - before
        if used > MOST_SECONDS:
            exceeded.append(f"{used:.1f} s of processor time; expected at most {MOST_SECONDS}")
        if more > MOST_MB:
            exceeded.append(f"{more:.0f} MB more resident memory; expected at most {MOST_MB}")


def _processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _resident_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024
