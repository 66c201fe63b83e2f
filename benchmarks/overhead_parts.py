"""One `quantgate run` with the moments between which no step of quantgate's works: the child process of `overhead.py`.

    python overhead_parts.py STARTED FILE JOB

`STARTED` is the monotonic clock when the process was started. The moments go to `FILE` as JSON: seconds by their names.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

Work = Callable[[Any, str], AbstractContextManager[None]]
MOMENTS = {"started": float(sys.argv[1]), "python runs": time.monotonic()}
WORK: list[tuple[float, float]] = []
FILE, JOB = Path(sys.argv[2]), sys.argv[3]


def main() -> None:
    from flows.cli import run
    from flows.cli.app import main as quantgate
    from tasks.run.clock import Clock

    MOMENTS["command is imported"] = time.monotonic()
    run._quantize = _noting(run._quantize, end="flow is imported")  # type: ignore[assignment]  # to be timed
    run.on_server = _on_server(run.on_server)  # type: ignore[assignment]  # wrapped, to time it
    run.write_files = _noting(run.write_files, call="flow has ended")  # type: ignore[attr-defined]  # to be timed
    Clock.work = _noted(Clock.work)  # type: ignore[method-assign]  # likewise
    leave = os._exit
    # The command leaves by this call, after all exit handlers.
    os._exit = lambda code: (_write(), leave(code))  # type: ignore[assignment,func-returns-value]  # writes first
    sys.argv = ["quantgate", "run", JOB]
    quantgate()


def _noting(function: Callable[..., Any], *, call: str = "", end: str = "") -> Callable[..., Any]:
    """Note the moments when a function is called and when it returns, by their names."""

    def timed(*given: Any, **named: Any) -> Any:
        MOMENTS.update({call: time.monotonic()} if call else {})
        found = function(*given, **named)
        MOMENTS.update({end: time.monotonic()} if end else {})
        return found

    return timed


def _on_server(on_server: Callable[[], AbstractContextManager[None]]) -> Callable[[], AbstractContextManager[None]]:
    @contextmanager
    def timed() -> Iterator[None]:
        with on_server():
            MOMENTS["server answers"] = time.monotonic()
            yield

    return timed


def _noted(work: Work) -> Work:
    @contextmanager
    def noted(self: Any, step: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            with work(self, step):
                yield
        finally:
            WORK.append((start, time.monotonic()))

    return noted


def _write() -> None:
    MOMENTS["exit handlers are done"] = time.monotonic()
    text = json.dumps({"moments": MOMENTS, "work": WORK})
    FILE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
