"""Redaction of secrets in log records and in the texts of unexpected errors, before Prefect and log files get them."""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from tasks.run.signals import signals_kept
from validators.errors import QuantgateError
from validators.plain_text import plain
from validators.redact import redact

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")


class Redacted(Exception):
    """Replacement of an unexpected error whose text held a secret: the name of its class, and its redacted text."""


def shielded(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Return the function with secrets redacted from its errors, and with signals as what they are.

    Prefect stores an error's text as the message of a state. The texts of quantgate's own errors are redacted when they are
    created.
    """

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        try:
            with signals_kept() as raised:
                _stop_if(raised)
                outcome = function(*args, **kwargs)
                _stop_if(raised)
        except QuantgateError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if redact(told) == told and redact(repr(error)) == repr(error):
                raise
            raise Redacted(redact(told)).with_traceback(error.__traceback__) from None
        return outcome

    return call


def _stop_if(raised: Sequence[BaseException]) -> None:
    """Raise a signal again that a library hid, after which the run went on as if nothing had happened."""
    if raised:
        raise raised[0]


def redact_logs() -> None:
    """Redact secrets in every log record of this process and in its traceback, for every logger and handler.

    This is done when a record is created. Filters of a logger do not see the records of its children, and Prefect makes
    its own handlers for each run.
    """
    former = logging.getLogRecordFactory()
    if getattr(former, "redacts", False):
        return

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        return _without_secrets(former(*args, **kwargs))

    record.redacts = True  # type: ignore[attr-defined]  # marks the factory, so that it is installed once
    logging.setLogRecordFactory(record)


def _without_secrets(record: logging.LogRecord) -> logging.LogRecord:
    try:
        message = record.getMessage()
    except Exception:  # arguments do not fit the format; logging itself would print them unredacted on standard error
        message = f"{record.msg} {record.args}"
        record.msg, record.args = message, ()
    if (clean := redact(plain(message))) != message:
        record.msg, record.args = clean, ()
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1]))
        if (clean := redact(trace)) != trace:
            # Handlers print `exc_text` if it is set; some read `exc_info` and would print the secret.
            record.exc_info, record.exc_text = None, clean.rstrip()
    return record
