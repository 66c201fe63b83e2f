"""A generator whose process dies, importable by the process that runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator


def count_and_die(count: int) -> Iterator[int]:
    """Yield the first numbers, then end the process with exit code 7."""
    yield from range(count)
    os._exit(7)
