"""Signals that end a run (Ctrl-C, SIGTERM), kept from libraries that make another error of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

# What handlers have raised since the outermost block began.
_raised: list[BaseException] = []
_depth = 0


@contextmanager
def signals_kept() -> Iterator[Sequence[BaseException]]:
    """Yield what the handlers of SIGINT and SIGTERM have raised so far; an error of the block gives way to it.

    A handler raises wherever the main thread is at that moment, and libraries turn that into an error of their own, or ignore
    it: pydantic makes a SchemaError of whatever is raised while it builds a validator, and Python prints what a destructor
    raises. Whoever could stop looks at what is yielded, also from an outer block. In other threads nothing is kept.
    """
    global _depth  # of the one main thread
    if threading.current_thread() is not threading.main_thread():
        yield ()
        return
    formers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # A signal that ends the process at once, or is ignored, has no function.
        if callable(former := signal.getsignal(number)):
            formers[number] = former
            signal.signal(number, _noted(former))
    _depth += 1
    try:
        yield _raised
    except Exception as error:
        if _raised:
            raise _raised[0] from error
        raise
    finally:
        for number, former in formers.items():
            signal.signal(number, former)
        _depth -= 1
        if not _depth:
            _raised.clear()


def _noted(former: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
    def handle(number: int, frame: Any) -> None:
        try:
            former(number, frame)
        except BaseException as error:
            _raised.append(error)
            raise

    return handle
