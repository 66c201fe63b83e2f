"""Whether anything else computed while a measurement ran: processor time of others, from the kernel's own accounts."""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


class OtherLoad:
    """Cores that processes other than one kept busy since this was made, on the processors that this process may use.

    A shared virtual machine's stolen time counts as others' too.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._cpus = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._start = self._read()

    def cores(self) -> float:
        """The mean number of cores over the time since then; at least 0."""
        elapsed, busy, own = (now - before for now, before in zip(self._read(), self._start, strict=True))
        return max(0.0, (busy - own) / elapsed)

    def _read(self) -> tuple[float, float, float]:
        """Seconds on the clock, seconds of all processors busy, seconds of the process."""
        return time.monotonic(), self._busy_seconds(), process_seconds(self._pid)

    def _busy_seconds(self) -> float:
        busy = 0
        for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
            name, *fields = line.split()
            if name in self._cpus:
                # user nice system idle iowait irq softirq steal; guest time is part of user.
                user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
                busy += user + nice + system + irq + softirq + steal
        return busy * _TICK_SECONDS


def process_seconds(pid: int) -> float:
    """Processor time of a process and its threads so far, in seconds."""
    # The name, in parentheses, may hold spaces; user and system time are the 14th and 15th fields.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS
