"""One run at a time of a source's model for a target: the second waits, and then finds the first one's work in the store."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tasks.run.context import Run, log
from validators.errors import LockTaken

_VERSION = re.compile(r"(/\d+|@[^/@]+)$")


@contextmanager
def turn_of(run: Run) -> Iterator[None]:
    """Hold the turn of the job's model and target for the length of the block.

    Versions of one model take turns as well: they would be promoted to the same alias.

    Raises:
        LockTaken: the other run takes longer than `budgets.seconds` twice.
    """
    name = turn_name(run.job.source, run.job.target)
    with ExitStack() as held:
        try:
            held.enter_context(run.locks.hold(name, wait_seconds=0))
        except LockTaken as taken:
            log.info("%s: waiting for it to end", taken.found)
            with run.clock.work("wait for another run"):
                held.enter_context(run.locks.hold(name, wait_seconds=2 * run.job.budgets.seconds))
        yield


def turn_name(source: str, target: str) -> str:
    """What runs of the same turn have in common.

    >>> turn_name("models:/sentiment/7", "ort-cpu"), turn_name("models:/sentiment@live", "ort-cpu")
    ('run of models:/sentiment for ort-cpu', 'run of models:/sentiment for ort-cpu')
    """
    model = _VERSION.sub("", source) if source.startswith("models:/") else source
    return f"run of {model} for {target}"
