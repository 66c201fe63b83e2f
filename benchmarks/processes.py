"""Processes of a benchmark: their memory, watched from outside, a hard limit on it, and programs that only compute."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil

GROUPS = Path("/sys/fs/cgroup")

SAMPLE_SECONDS = 0.05


def status_mb(key: str) -> float:
    """Return memory of this process by the kernel's count, in MB (1e6 bytes): `VmHWM` its peak, `VmRSS` the present.

    Not `getrusage`: on Linux its `ru_maxrss` outlives exec, so that a child begins with its parent's peak.

    Raises:
        StopIteration: the field is missing, as on other systems than Linux.
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) * 1024 / 1e6


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


def answer_of(command: Sequence[str]) -> Any:
    """Run a command, and return what the last line of its output says, as JSON."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run_step(script: str, name: str, root: Path, limit: int | None) -> dict[str, Any]:
    """Run `script step NAME ROOT` in a process of its own, within a limit; return its peaks and seconds, and what it tells.

    What it tells is a dictionary, the last line that it prints, as JSON.
    """
    with (root / "said").open("w+") as said, _limited(limit) as join:
        words = [sys.executable, script, "step", name, str(root)]
        process = subprocess.Popen(words, stdout=said, stderr=subprocess.STDOUT, preexec_fn=join)
        peaks = peaks_of(process)
        said.seek(0)
        text = said.read().strip()
    if process.returncode:
        raise SystemExit(f"{name} ended with {process.returncode}: {text[-3000:]}")
    last = text.rpartition("\n")[2]
    return peaks | (json.loads(last) if last.startswith("{") else {})


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Compute on so many cores during the block."""
    # In sessions of their own, as programs of other users and terminals are.
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@contextmanager
def _limited(megabytes: int | None) -> Iterator[Callable[[], None] | None]:
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
