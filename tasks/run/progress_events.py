"""Progress events of a run: every step tells the watchers in this process when it begins and when it ends.

Steps on workers in other processes send no events here; the step that waits for them does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

# Names of the steps that every candidate goes through.
MAKE, MEASURE = "make candidate", "measure latency"
# Further steps of a race.
PROBE, EVALUATE = "probe latency", "evaluate candidate"
BASELINE, CONFIRM = "measure baseline", "confirm the winner"
# A pause of a measurement on a busy machine, named by what may follow.
WAIT = "wait"
# Named by an engine of a class of devices, whose candidates the run does not try.
LEAVE_OUT = "leave out"


@dataclass(frozen=True)
class Stage:
    """A step in progress: its kind, and the name of this instance, such as `make fp16@tensorrt`."""

    kind: str
    name: str


class Watcher(Protocol):
    """Callback for the begin and end of stages, called in the thread of the step."""

    def __call__(self, stage: Stage, *, begins: bool) -> None:
        """Handle the begin of a stage, or its end, successful or not."""


_watchers: list[Watcher] = []


@contextmanager
def watch_stages(watcher: Watcher) -> Iterator[None]:
    """Call the watcher for every stage during the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def stage(kind: str, name: Callable[[], str]) -> Iterator[None]:
    """Report the block as a stage to the watchers; `name` is called only if there are any."""
    if not _watchers:
        yield
        return
    now = Stage(kind, name())
    watchers = list(_watchers)
    for watcher in watchers:
        watcher(now, begins=True)
    try:
        yield
    finally:
        for watcher in watchers:
            watcher(now, begins=False)
