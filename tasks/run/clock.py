"""Wall-clock time of a run: work by step, and the rest as overhead."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from validators.deadline import work_until

if TYPE_CHECKING:
    from validators.records.result import SecondsResult

Interval = tuple[float, float]


class Clock:
    """Collector of the intervals in which work was done; safe to use from several threads."""

    def __init__(self) -> None:
        self._started = self._budget_from = time.monotonic()
        self._intervals: dict[str, list[Interval]] = defaultdict(list)
        self._lock = threading.Lock()

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._started

    def begin_budget(self) -> None:
        """Start the budget now, so that waiting for another run of the same model spends none of it."""
        self._budget_from = time.monotonic()

    @property
    def spent_seconds(self) -> float:
        """Seconds of the budget spent so far."""
        return time.monotonic() - self._budget_from

    def within(self, seconds: float) -> AbstractContextManager[None]:
        """Return a context in which model passes are refused once `seconds` of the budget are spent."""
        return work_until(self._budget_from + seconds)

    @contextmanager
    def work(self, step: str) -> Iterator[None]:
        """Count the time of the block as work of `step`."""
        start = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                self._intervals[step].append((start, time.monotonic()))

    def seconds(self) -> SecondsResult:
        """Return total, overhead and seconds by step; work that overlaps counts once."""
        from validators.records.result import SecondsResult

        total = self.elapsed_seconds
        with self._lock:
            by_step = {step: round(union_seconds(spans), 3) for step, spans in self._intervals.items()}
            work = union_seconds([span for spans in self._intervals.values() for span in spans])
        return SecondsResult(total=round(total, 3), overhead=round(total - work, 3), by_step=by_step)


def union_seconds(intervals: list[Interval]) -> float:
    """Return the length of the union of intervals, in seconds.

    >>> union_seconds([(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
