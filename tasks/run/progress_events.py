"""What a run is doing at the moment: every step says when it begins and when it ends to whoever watches in this process.

Steps that workers do elsewhere are not seen; the step that waits for them is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

# The steps that every candidate goes through.
MAKE, MEASURE = "make candidate", "measure latency"
BASELINE, CONFIRM = "measure baseline", "confirm the winner"


@dataclass(frozen=True)
class Stage:
    """A step that goes on: its name, and what this one is called, such as `make fp16@tensorrt`."""

    kind: str
    name: str


class Watcher(Protocol):
    """Is told, in the thread of the step."""

    def __call__(self, stage: Stage, *, begins: bool) -> None:
        """The stage begins, or ends, well or badly."""


_watchers: list[Watcher] = []


@contextmanager
def watch_stages(watcher: Watcher) -> Iterator[None]:
    """Have the watcher told of every stage during the block."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def stage(kind: str, name: Callable[[], str]) -> Iterator[None]:
    """The block is a stage; what it is called is asked only if somebody watches."""
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
