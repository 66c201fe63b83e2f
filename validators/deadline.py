"""Deadline of the current work: passes over models check it between batches, layers and blocks of requests.

A context variable holds it; as a parameter, every pass would have to hand it on to the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from validators.errors import CandidateRefused

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


@contextmanager
def work_until(deadline: float) -> Iterator[None]:
    """Make `check_deadline` raise in the block, in this thread, once `time.monotonic()` passes `deadline` (seconds)."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    """Raise if the deadline of the block has passed.

    Raises:
        CandidateRefused: the deadline has passed (kind `infrastructure`).
    """
    deadline = _deadline.get()
    if deadline is not None and time.monotonic() > deadline:
        raise CandidateRefused(
            kind="infrastructure",
            found="the time that `budgets.seconds` allows for this step ran out before it finished",
            expected="a step that finishes within the budget of the run",
            fix="raise `budgets.seconds`, or name fewer candidates; run again: finished work is kept",
        )
