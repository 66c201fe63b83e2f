"""What a run says while it runs: one line for each thing done, on standard error."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class _Lines(logging.Handler):
    """Prints each record of the project's logger with the seconds since the start."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.INFO)
        self._console = console
        self._started = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        elapsed = time.monotonic() - self._started
        colour = {logging.WARNING: "yellow", logging.ERROR: "red"}.get(record.levelno, "default")
        text = escape(record.getMessage())
        self._console.print(
            f"[dim]{elapsed:7.1f} s[/dim]  [{colour}]{text}[/{colour}]", highlight=False, soft_wrap=True
        )


@contextmanager
def show_progress(console: Console) -> Iterator[None]:
    """Print the project's log records during the block; on a terminal, a spinner shows that the run lives."""
    # ONNX Runtime's tools log through the root logger, and the first such call would make Python print every library's
    # records: not where the root logger has a handler.
    logging.getLogger().addHandler(logging.NullHandler())
    logger = logging.getLogger("quantgate")
    handler = _Lines(console)
    level = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        if console.is_terminal:
            with console.status("running"):
                yield
        else:
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
