"""Import of Great Expectations without its side effects on the process."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_import() -> Iterator[None]:
    """Silence the warnings of the first import of Great Expectations 1.24, and keep later warnings of others visible."""
    show_warning = warnings.showwarning
    with warnings.catch_warnings():
        # Great Expectations imports sre_constants and sre_parse, deprecated since Python 3.11, for one annotation.
        warnings.filterwarnings("ignore", r"module 'sre_\w+' is deprecated", DeprecationWarning)
        try:
            yield
        finally:
            # The import also redirects every later warning of the process to logging, where nobody would see it.
            if warnings.showwarning is not show_warning:
                logging.captureWarnings(False)
