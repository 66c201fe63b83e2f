"""Signals that end a run (Ctrl-C, SIGTERM), kept from libraries that make another error of them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def signals_kept() -> Iterator[list[BaseException]]:
    """Yield what the handlers of SIGINT and SIGTERM raise during the block; an error of the block gives way to it.

    A handler raises wherever the main thread is at that moment, and libraries turn that into an error of their own: pydantic
    makes a SchemaError of whatever is raised while it builds a validator. In other threads the block is left as it is.
    """
    raised: list[BaseException] = []

    def noted(former: Callable[[int, Any], Any]) -> Callable[[int, Any], None]:
        def handle(number: int, frame: Any) -> None:
            try:
                former(number, frame)
            except BaseException as error:
                raised.append(error)
                raise

        return handle

    formers = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            # A signal that ends the process at once, or is ignored, has no function.
            if callable(former := signal.getsignal(number)):
                formers[number] = former
                signal.signal(number, noted(former))
    try:
        yield raised
    except Exception as error:
        if raised:
            raise raised[0] from error
        raise
    finally:
        for number, former in formers.items():
            signal.signal(number, former)
