"""One run at a time per model and target: a second run waits, and then finds the work of the first in the store."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from validators.errors import LockTaken

if TYPE_CHECKING:
    # `quantgate status` needs the name of the lock alone, and the context imports all that a run needs.
    from tasks.run.context import Run

log = logging.getLogger("quantgate")
_VERSION = re.compile(r"(/\d+|@[^/@]+)$")


@contextmanager
def turn_of(run: Run) -> Iterator[None]:
    """Hold the lock of the job's model and target during the block.

    Versions of one model share the lock, since they would be promoted to the same alias.

    Raises:
        LockTaken: the other run holds the lock for longer than twice `budgets.seconds`.
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
    """Return the name of the lock: the model without its version, and the target.

    >>> turn_name("models:/sentiment/7", "ort-cpu"), turn_name("models:/sentiment@live", "ort-cpu")
    ('run of models:/sentiment for ort-cpu', 'run of models:/sentiment for ort-cpu')
    """
    model = _VERSION.sub("", source) if source.startswith("models:/") else source
    return f"run of {model} for {target}"
