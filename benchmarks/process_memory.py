"""Memory of a process and its children, watched from outside, and a hard limit on it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")

SAMPLE_SECONDS = 0.05


def peaks_of(process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Wait for a process; return the peaks of its tree in MB, own memory (that no file backs) and resident, and its seconds."""
    own = resident = 0
    start, tree = time.perf_counter(), psutil.Process(process.pid)
    while process.poll() is None:
        with suppress(psutil.Error):
            told = [one.memory_info() for one in (tree, *tree.children(recursive=True))]
            own = max(own, sum(one.rss - one.shared for one in told))
            resident = max(resident, sum(one.rss for one in told))
        time.sleep(SAMPLE_SECONDS)
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 1), "own_mb": round(own / 1e6, 1), "resident_mb": round(resident / 1e6, 1)}


@contextmanager
def limited(megabytes: int | None) -> Iterator[Callable[[], None] | None]:
    """Yield what a child process calls first so that it and its children end by the kernel's hand beyond this memory.

    The limit covers cached pages of files too, which the kernel takes back first. It is a control group, which root can make.
    Pages that are cached already would count for nobody: they are dropped.
    """
    if megabytes is None:
        yield None
        return
    old = (GROUPS / "memory").is_dir()
    group = GROUPS / "memory" / "quantgate" if old else GROUPS / "quantgate"
    group.mkdir(exist_ok=True)
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    (group / ("memory.limit_in_bytes" if old else "memory.max")).write_text(str(megabytes * 1_000_000))
    try:
        yield partial(_join, group)
    finally:
        group.rmdir()


def _join(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
