"""Where secrets are kept from what Prefect and log files get: every log record, and every error that nobody foresaw."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from validators.errors import QuantgateError
from validators.plain_text import plain
from validators.redact import redact

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")


class Redacted(Exception):
    """An error that nobody foresaw, whose text held a secret: its class by name, and its text without."""


def shielded(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """The function, of whose errors none has a secret in its text: Prefect keeps the text as the message of a state.

    Errors of quantgate's own have none from the start.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        try:
            return function(*args, **kwargs)
        except QuantgateError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if redact(told) == told and redact(repr(error)) == repr(error):
                raise
            raise Redacted(redact(told)).with_traceback(error.__traceback__) from None

    return call


def redact_logs() -> None:
    """Take secrets out of every log record of this process, its traceback too, whoever logs it and wherever it goes.

    At the records' birth, since filters of a logger do not see what its children log, and handlers come and go: Prefect makes
    its own for each run.
    """
    former = logging.getLogRecordFactory()
    if getattr(former, "redacts", False):
        return

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return _without_secrets(former(*args, **kwargs))

    record.redacts = True  # type: ignore[attr-defined]  # how it knows itself
    logging.setLogRecordFactory(record)


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    try:
        message = record.getMessage()
    except Exception:  # arguments that do not fit, which logging itself would print on standard error as they are
        message = f"{record.msg} {record.args}"
        record.msg, record.args = message, ()
    if (clean := redact(plain(message))) != message:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1]))
        if (clean := redact(trace)) != trace:
            # Handlers print the text where there is one; some read `exc_info` and would print the secret.
            record.exc_info, record.exc_text = None, clean.rstrip()
    return record
