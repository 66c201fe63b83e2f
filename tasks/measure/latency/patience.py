"""Time that a run spends waiting for a machine that other processes use."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_PROC = Path("/proc")
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# Pauses before another try, the last one again and again: many disturbances are short.
PAUSES_SECONDS = (0.2, 0.5, 1.0, 2.0)
# A message is repeated after this time.
TELL_SECONDS = 15.0
# Processes below this use are not named.
LEAST_CORES = 0.1
# Name and processor time in seconds, by process id and start time.
Processes = dict[str, tuple[str, float]]


class RunPatience:
    """The seconds that a run may still wait, shared by all its measurements.

    `tell` gets a line for people when a wait begins, and every `TELL_SECONDS` while it lasts.
    """

    def __init__(
        self,
        seconds: float,
        tell: Callable[[str], None] = lambda _text: None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.left_seconds = seconds
        self.waited_seconds = 0.0
        # Who computed during the last wait, with the cores used; "" before the first one.
        self.busy = ""
        self._tell, self._pause = tell, pause
        self._told_at = -TELL_SECONDS

    def wait(self, tries: int, reason: str, lost_seconds: float) -> bool:
        """Pause before another try; return False if a try took the last of the patience.

        `tries` counts the disturbed tries in a row so far, `lost_seconds` is the time of the last one.
        """
        self._spend(lost_seconds)
        if self.left_seconds <= 0:
            return False
        before = processor_use()
        seconds = min(PAUSES_SECONDS[min(tries, len(PAUSES_SECONDS)) - 1], self.left_seconds)
        self._pause(seconds)
        self.busy = busiest(before, processor_use(), seconds)
        if self.waited_seconds - self._told_at >= TELL_SECONDS:
            self._told_at = self.waited_seconds
            self._tell(f"machine busy: {self.busy or reason}; waiting, {self.left} left")
        self._spend(seconds)
        return True

    @property
    def left(self) -> str:
        """The seconds that may still be waited, as minutes and seconds."""
        minutes, rest = divmod(round(max(0.0, self.left_seconds)), 60)
        return f"{minutes}:{rest:02}"

    def _spend(self, seconds: float) -> None:
        self.waited_seconds += seconds
        self.left_seconds -= seconds


def busiest(before: Processes, after: Processes, seconds: float) -> str:
    """Return the names of the processes that used most processor time in between, with their use; "" if none used much.

    >>> busiest({"1": ("chromium", 3.0), "2": ("sh", 0.1)}, {"1": ("chromium", 4.0), "2": ("sh", 0.1)}, 2.0)
    'chromium 0.5 cores'
    """
    used: dict[str, float] = {}
    for process, (name, now) in after.items():
        _, then = before.get(process, ("", 0.0))
        used[name] = used.get(name, 0.0) + (now - then) / seconds
    most = sorted(((cores, name) for name, cores in used.items() if cores >= LEAST_CORES), reverse=True)[:2]
    return ", ".join(f"{name} {cores:.1f} cores" for cores, name in most)


def processor_use(root: Path = _PROC) -> Processes:
    """Return the name and processor time of each visible process other than this one and those that it started."""
    found, parents = {}, {}
    for folder in root.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            head, _, rest = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")
        except OSError:  # it has ended
            continue
        fields = rest.split()
        parents[folder.name] = fields[1]
        found[folder.name] = fields[19], head.partition("(")[2], (int(fields[11]) + int(fields[12])) * _TICK_SECONDS

    def is_own(process: str) -> bool:
        while process in parents:
            if process == str(os.getpid()):
                return True
            process = parents[process]
        return False

    # The kernel uses ids again, and threads of its own change their names.
    return {
        f"{process} of {started}": (name, seconds)
        for process, (started, name, seconds) in found.items()
        if not is_own(process)
    }
