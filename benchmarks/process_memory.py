"""Memory of a process and its children, watched from outside."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress

import psutil

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
