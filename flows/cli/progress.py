"""Progress of a run on standard error: one line per finished step and, on a terminal, the running stages below them.

    |  12.4 s  made int8-dynamic-pc@ort-cpu: accuracy 0.8412 on 911 samples, coverage 98%
    ⠋ 00:14  1 of 3 made, 0 of 3 measured, about 01:10 left
      make int4-g32-rtn@ort-cpu  00:09

The time left is that of the whole run, from the moment when the baseline is measured.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.text import Text

from tasks.run.progress_events import (
    BASELINE,
    CONFIRM,
    EVALUATE,
    LEAVE_OUT,
    MAKE,
    MEASURE,
    PROBE,
    WAIT,
    Stage,
    watch_stages,
)
from validators.job.candidate_name import decode

if TYPE_CHECKING:
    from validators.job.job import Job

# Stages of each candidate, each with its past participle; those of a race.
_CANDIDATE_STAGES = {MAKE: "made", MEASURE: "measured"}
_RACE_STAGES = {MAKE: "made", PROBE: "short timings"}
# Full comparisons of a race, its finalists, and the share that all short ones of a candidate take of the time of a full one.
_FINALISTS, _SHORT = 2, 0.3
# A step that ends this fast was a cache hit, and does not predict the duration of the others.
_FROM_STORE_SECONDS = 0.5
# Judging, promotion and the report.
_CLOSING_SECONDS = 3.0


class Progress:
    """Progress of a run, as it looks at any moment.

    `candidates` has their number by engine, `timing_seconds` the expected time to measure the latency of one in full. In a race
    they are those with different kernels: all of these are timed shortly, and only the finalists in full.
    """

    def __init__(self, candidates: Mapping[str, int], timing_seconds: float = 0.0, *, is_race: bool = False) -> None:
        self._candidates = dict(candidates)
        self._timing_seconds = timing_seconds
        self._is_race = is_race
        self._stages = _RACE_STAGES if is_race else _CANDIDATE_STAGES
        self._started = time.monotonic()
        self._going_on: dict[Stage, float] = {}
        self._done: dict[str, dict[str, float]] = {kind: {} for kind in self._stages}
        self._worked = dict.fromkeys(self._stages, 0)
        self._first: dict[str, float] = {}
        self._took: dict[str, float] = {}
        self._waiting = ""
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
            if stage.kind == LEAVE_OUT:
                self._candidates.pop(stage.name, None)
                return
            if stage.kind == WAIT:
                self._waiting = stage.name
                return
            if begins:
                self._going_on[stage] = now
                self._first.setdefault(stage.kind, now)
                # A stage that is retried was not done.
                self._done.get(stage.kind, {}).pop(stage.name, None)
                return
            self._waiting = ""
            since = self._going_on.pop(stage, now)
            self._took[stage.kind] = now - since
            if stage.kind in self._done:
                self._done[stage.kind][stage.name] = now
                self._worked[stage.kind] += now - since >= _FROM_STORE_SECONDS

    def _count_of(self, kind: str) -> int:
        from validators.gates.race_rules import PROBES

        return sum(self._candidates.values()) * (PROBES if kind == PROBE else 1)

    def seconds_left(self) -> float | None:
        """Return the estimated time to the end of the run in seconds; None until the baseline is measured.

        Candidates take as long as those before them, by the pace at which they finish: several run at a time. Before the first
        one, making is expected to take as long as measuring the baseline, most of which is its accuracy on the same samples.
        """
        from validators.gates.race_rules import PROBES

        if BASELINE not in self._took or not self._candidates:
            return None
        stages = self._left(MAKE, self._took[BASELINE])
        if self._is_race:
            stages += self._left(PROBE, _SHORT * self._timing_seconds / PROBES) + self._finals_left()
        else:
            stages += self._left(MEASURE, self._timing_seconds)
        confirming = self._timing_seconds - (self.elapsed_seconds - self._first.get(CONFIRM, self.elapsed_seconds))
        return stages + _CLOSING_SECONDS + (0.0 if CONFIRM in self._took else max(0.0, confirming))

    def _finals_left(self) -> float:
        """Return the time for the finalists of a race: their accuracy takes as long as the baseline's."""
        if CONFIRM in self._first:
            return 0.0
        finals = _FINALISTS * (self._timing_seconds + self._took[BASELINE])
        since = self.elapsed_seconds - self._first.get(EVALUATE, self.elapsed_seconds)
        return max(0.0, finals - since)

    def _left(self, kind: str, expected_seconds: float) -> float:
        done = self._done[kind]
        left = self._count_of(kind) - len(done)
        since = self.elapsed_seconds - max(done.values(), default=self._first.get(kind, self.elapsed_seconds))
        if left <= 0 or CONFIRM in self._first:
            return 0.0
        pace = expected_seconds
        if self._worked[kind]:
            pace = (max(done.values()) - self._first[kind]) / self._worked[kind]
        # Part of the candidate in progress is done.
        return max(0.0, pace * left - since)

    def lines(self) -> tuple[str, list[str]]:
        """Return the line beside the spinner, and one line per running stage."""
        with self._lock:
            told = [clock(self.elapsed_seconds), self._counts()]
            below = [f"{stage.name}  {clock(self.elapsed_seconds - since)}" for stage, since in self._going_on.items()]
        return "  ".join(part for part in told if part), below

    def _counts(self) -> str:
        parts = [
            # The finals of a race make a few more.
            f"{len(self._done[kind])} of {max(self._count_of(kind), len(self._done[kind]))} {past}"
            for kind, past in self._stages.items()
            if self._candidates and kind in self._first
        ]
        if (left := self.seconds_left()) is not None:
            parts.append(f"about {clock(left)} left" + (f" and {self._waiting}" if self._waiting else ""))
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
    progress = Progress({})
    if job:
        is_race = job.search == "race"
        candidates = [decode(name) for name in job.candidate_names]
        # One of each kind of kernels.
        kinds = {one.kernels: one for one in candidates if not one.is_simulated}.values() if is_race else candidates
        progress = Progress(Counter(one.target for one in kinds), job.measurement.expected_seconds, is_race=is_race)
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
