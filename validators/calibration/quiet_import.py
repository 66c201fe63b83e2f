"""Imports Great Expectations without what its import does to the rest of the process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """Around the first import of Great Expectations 1.24: no warning of its own gets out, and later ones of others do."""
    show_warning = warnings.showwarning
    with warnings.catch_warnings():
        # It imports sre_constants and sre_parse, which Python 3.11 deprecates, for one annotation.
        warnings.filterwarnings("ignore", r"module 'sre_\w+' is deprecated", DeprecationWarning)
        try:
            yield
        finally:
            # It also sends every later warning of the process to logging, where nobody would see it.
            if warnings.showwarning is not show_warning:
                logging.captureWarnings(False)
