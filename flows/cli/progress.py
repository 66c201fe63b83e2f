"""Progress of a run on standard error: one line per finished step and, on a terminal, the running stages below them.

    |  12.4 s  made int8-dynamic-pc@ort-cpu: accuracy 0.8412 on 911 samples, coverage 98%
    ⠋ 00:14  1 of 3 made, 0 of 3 measured, about 12 s of making left
      make int4-g32-rtn@ort-cpu  00:09

The time left covers only the present stage, and appears once a candidate of this run has finished that stage: the duration of
later stages is unknown.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from tasks.run.progress_events import MAKE, MEASURE, Stage, watch_stages
from validators.job.job import Job

# Stages of each candidate, each with its past participle and its gerund.
_CANDIDATE_STAGES = {MAKE: ("made", "making"), MEASURE: ("measured", "measuring")}
# A step that ends this fast was a cache hit, and does not predict the duration of the others.
_FROM_STORE_SECONDS = 0.5


class Progress:
    """Live view of a run with a given number of candidates: the running stages, and counts of the finished ones."""

    def __init__(self, candidates: int) -> None:
        self._candidates = candidates
        self._started = time.monotonic()
        self._going_on: dict[Stage, float] = {}
        self._done: dict[str, dict[str, float]] = {kind: {} for kind in _CANDIDATE_STAGES}
        self._worked = dict.fromkeys(_CANDIDATE_STAGES, 0)
        self._first: dict[str, float] = {}
        self._lock = threading.Lock()
        self._spinner = Spinner("dots")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def changed(self, stage: Stage, *, begins: bool) -> None:
        """Record that a stage begins or ends; called from the thread that runs it."""
        now = self.elapsed_seconds
        with self._lock:
            if begins:
                self._going_on[stage] = now
                self._first.setdefault(stage.kind, now)
                # A stage that is retried was not done.
                self._done.get(stage.kind, {}).pop(stage.name, None)
                return
            since = self._going_on.pop(stage, now)
            if stage.kind in self._done:
                self._done[stage.kind][stage.name] = now
                self._worked[stage.kind] += now - since >= _FROM_STORE_SECONDS

    def seconds_left(self, kind: str) -> float | None:
        """Return the seconds that a stage still needs for all candidates, at the pace so far; None before one has finished it.

        The pace, unlike the mean duration, accounts for candidates that run in parallel.
        """
        done = self._done[kind]
        left = self._candidates - len(done)
        if not self._worked[kind] or left <= 0:
            return None
        pace = (max(done.values()) - self._first[kind]) / self._worked[kind]
        # Subtract the time since the last one finished: the running candidates have already used it.
        return max(0.0, pace * left - (self.elapsed_seconds - max(done.values())))

    def lines(self) -> tuple[str, list[str]]:
        """Return the line beside the spinner, and one line per running stage."""
        with self._lock:
            told = [clock(self.elapsed_seconds), self._counts()]
            below = [f"{stage.name}  {clock(self.elapsed_seconds - since)}" for stage, since in self._going_on.items()]
        return "  ".join(part for part in told if part), below

    def _counts(self) -> str:
        parts = []
        for kind, (past, present) in _CANDIDATE_STAGES.items():
            if self._candidates and kind in self._first:
                parts.append(f"{len(self._done[kind])} of {self._candidates} {past}")
                if (left := self.seconds_left(kind)) is not None:
                    parts.append(f"about {clock(left)} of {present} left")
        return ", ".join(parts)

    def __rich__(self) -> RenderableType:
        first, below = self.lines()
        self._spinner.update(text=Text("\n  ".join([first, *below])))
        return self._spinner


def clock(seconds: float) -> str:
    """Format seconds as minutes and seconds, with hours from one hour on.

    >>> clock(9.7), clock(75), clock(3661)
    ('00:09', '01:15', '1:01:01')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


class _Lines(logging.Handler):
    """Log handler that prints each record with the seconds since the start."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        colour = {logging.WARNING: "yellow", logging.ERROR: "red"}.get(record.levelno, "default")
        text = escape(record.getMessage())
        self._console.print(
            f"[dim]{self._progress.elapsed_seconds:7.1f} s[/dim]  [{colour}]{text}[/{colour}]",
            highlight=False,
            soft_wrap=True,
        )


@contextmanager
def show_progress(console: Console, job: Job | None = None) -> Iterator[None]:
    """Print the project's log records during the block; on a terminal, also the running stages."""
    # ONNX Runtime's tools log through the root logger. If that had no handler, the first such call would make Python print
    # every library's records.
    logging.getLogger().addHandler(logging.NullHandler())
    logger = logging.getLogger("quantgate")
    progress = Progress(len(job.candidate_names) if job else 0)
    handler = _Lines(console, progress)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        if console.is_terminal:
            shown = Live(progress, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
            with watch_stages(progress.changed), shown:
                yield
        else:
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
