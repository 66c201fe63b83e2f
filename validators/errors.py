"""Exceptions that quantgate raises, with their exit codes.

    QuantgateError                 found, expected, fix; an exit code
    ├── JobError               2   the job file or the command line
    │   └── BudgetExceeded         the run needs more memory or disk than the job allows
    ├── SourceError            2   the model that the job names
    ├── DataError              2   a data file that the job names
    ├── InfrastructureError    1   a registry, a disk, a process: retry
    │   ├── ChampionMoved          the alias moved during the run: compare with the new champion, then retry
    │   ├── VersionUnsound         a registered version is not the artifact that was judged
    │   ├── WorkLost               a worker died over its work: another worker may finish it
    │   ├── ServiceDown            a server does not answer: wait and retry
    │   ├── StorageFull            the disk is full: end the run
    │   ├── StorageRefused         the storage server refuses, and will again
    │   │   └── ObjectMissing      the object does not exist
    │   ├── WrongBytes             bytes that arrived differ from those that were sent
    │   ├── LockTaken              another process held the lock for as long as this one waited
    │   ├── LockLost               another process may hold the lock by now
    │   └── Interrupted      130   Ctrl-C
    └── CandidateRefused       -   one candidate made no variant; recorded as a refusal, the run goes on
        └── LibraryUnnamed         the champion needs a library of operators that the job does not name

A run without a winner (exit code 3) and refused calibration data (4) are outcomes, not errors.

Errors cross processes as the name of their class and the arguments of its `__init__`, each of which is an attribute too.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from validators.plain_text import plain, shortened
from validators.redact import redact

RefusalKind = Literal["unsupported", "invalid", "infrastructure", "copy", "stopped"]

EXIT_OK = 0
EXIT_INFRASTRUCTURE = 1
EXIT_BAD_INPUT = 2
EXIT_NO_VARIANT = 3
EXIT_REFUSED = 4
# Characters of a message. Tools and files can name values of any length, and messages are logged, printed and recorded.
LONGEST_MESSAGE = 2000
# 128 plus the number of SIGINT, the convention of shells.
EXIT_INTERRUPTED = 130


class QuantgateError(Exception):
    """Base of all errors that tell the reader what to do.

    `found` is the actual state, `expected` the required one, `fix` the remedy. Secrets in them are redacted, since all of them
    are printed, logged, and kept in records. The longest of them are cut so that the message has at most 2,000 characters.
    """

    exit_code: ClassVar[int] = EXIT_INFRASTRUCTURE

    def __init__(self, *, found: str, expected: str, fix: str) -> None:
        self.found, self.expected, self.fix = _fitted(
            [_indented(redact(plain(text))) for text in (found, expected, fix)]
        )
        super().__init__(_FORM.format(self.found, self.expected, self.fix))

    @property
    def fields(self) -> dict[str, Any]:
        """The keyword arguments that make this error again."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle would call __init__ with positional arguments.
        return partial(type(self), **self.fields), ()


_FORM = "found: {}\nexpected: {}\nfix: {}"


def _indented(text: str) -> str:
    """Indent the second and later lines: a name with a line break would otherwise forge another part of the message."""
    return re.sub(r"\n(?!  )", "\n  ", text)


def _fitted(texts: list[str]) -> list[str]:
    """Return the texts with a length that fits into a message together, each with at least a third of it."""
    left = LONGEST_MESSAGE - len(_FORM.format(*[""] * len(texts)))
    fitted = dict.fromkeys(range(len(texts)), "")
    # From the shortest on: what one text does not need is for the longer ones.
    for rank, index in enumerate(sorted(fitted, key=lambda index: len(texts[index]))):
        fitted[index] = shortened(texts[index], left // (len(texts) - rank))
        left -= len(fitted[index])
    return list(fitted.values())


@dataclass(frozen=True)
class Missing:
    """Why an engine cannot be used on this machine, which may be no error, and the fix."""

    found: str
    expected: str
    fix: str

    def refused(self, fix: str = "") -> CandidateRefused:
        """Return the refusal of a candidate that needs the engine, with another fix if it is given."""
        return CandidateRefused(kind="unsupported", found=self.found, expected=self.expected, fix=fix or self.fix)


def class_names(error: QuantgateError) -> tuple[str, ...]:
    """Return the names of the error's class and of its bases up to `QuantgateError`, nearest first."""
    return tuple(base.__name__ for base in type(error).__mro__ if issubclass(base, QuantgateError))


def find_class(names: Iterable[str]) -> type[QuantgateError]:
    """Return the first named class that this process knows; `InfrastructureError` if it knows none."""
    known: dict[str, type[QuantgateError]] = {}
    queue: list[type[QuantgateError]] = [QuantgateError]
    while queue:
        kind = queue.pop()
        known[kind.__name__] = kind
        queue += kind.__subclasses__()
    return next((known[name] for name in names if name in known), InfrastructureError)


class JobError(QuantgateError):
    """The job cannot be read, or asks for something impossible."""

    exit_code = EXIT_BAD_INPUT


class BudgetExceeded(JobError):
    """The run needs more memory or disk than `budgets` allows or the machine has; a retry would need as much."""


class SourceError(QuantgateError):
    """The source is missing, not ready, or not a model that quantgate supports."""

    exit_code = EXIT_BAD_INPUT


class DataError(QuantgateError):
    """A data file is unreadable or does not fit the model."""

    exit_code = EXIT_BAD_INPUT


class InfrastructureError(QuantgateError):
    """Something outside the job failed: a registry, a disk, a process. Tasks retry on this error alone."""


class ChampionMoved(InfrastructureError):
    """The champion changed after the variant was judged against it, so that verdict does not hold for the new champion.

    The failing step is not retried, since it would fail again; the comparison is repeated.
    """


class VersionUnsound(InfrastructureError):
    """A registered version is not the artifact that was judged, does not load, or gives other answers."""


class WorkLost(InfrastructureError):
    """A worker, or its process, died over its work; another worker may finish it."""


class ServiceDown(InfrastructureError):
    """A server (registry, artifact store) does not answer, or fails. Tasks wait for it as long as a restart may take."""


class StorageFull(InfrastructureError):
    """The disk of the state folder is full: every further step would fail the same way."""


class StorageRefused(InfrastructureError):
    """The storage server refuses, and will again: rights, bucket, credentials."""


class ObjectMissing(StorageRefused):
    """There is no such object."""


class WrongBytes(InfrastructureError):
    """The bytes that arrived are not those that were sent."""


class LockTaken(InfrastructureError):
    """Another process holds the lock, and held it for as long as this one would wait."""


class LockLost(InfrastructureError):
    """The lock was held and is not any more: another process may use what it guards."""


class Interrupted(InfrastructureError):
    """The user pressed Ctrl-C; the same command resumes the work."""

    exit_code = EXIT_INTERRUPTED


class CandidateRefused(QuantgateError):
    """A candidate made no variant, or the variant could not be measured; `log` is the complete log of a tool, if any."""

    def __init__(self, *, kind: RefusalKind, found: str, expected: str, fix: str, log: Path | None = None) -> None:
        super().__init__(found=found, expected=expected, fix=fix)
        self.kind = kind
        self.log = log


class LibraryUnnamed(CandidateRefused):
    """The champion needs a library of custom operators that the job does not name, so it is not loaded."""
