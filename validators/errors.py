"""Every error that quantgate raises on purpose.

    QuantgateError                 found, expected, fix; an exit code
    ├── JobError               2   the job file, or what the command line said
    │   └── BudgetExceeded         the run needs more memory or disk than the job allows
    ├── SourceError            2   the model that the job names
    ├── DataError              2   a data file that the job names
    ├── InfrastructureError    1   a registry, a disk, a process: worth another try
    │   ├── ChampionMoved          somebody moved the alias meanwhile: compare with the new champion, then try again
    │   ├── VersionUnsound         a registered version is not what was judged
    │   ├── WorkLost               a worker died over its work: another worker may finish it
    │   ├── ServiceDown            a server does not answer: worth waiting for
    │   ├── StorageFull            the disk is full: ends the run
    │   ├── StorageRefused         the storage server refuses, and will again
    │   │   └── ObjectMissing      there is no such object
    │   ├── WrongBytes             bytes that arrived differ from those that were sent
    │   ├── LockTaken              another process holds the lock for too long
    │   ├── LockLost               the lock may be another process's by now
    │   └── Interrupted      130   Ctrl-C
    └── CandidateRefused       -   one candidate made no variant; recorded as a refusal, the run goes on

A run without a winner (exit code 3) and refused calibration data (4) are no errors: they are outcomes.

Errors cross processes as the name of their class and the arguments of its `__init__`, each of which is an attribute too.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from validators.plain_text import plain
from validators.redact import redact

RefusalKind = Literal["unsupported", "invalid", "infrastructure", "copy"]

EXIT_OK = 0
EXIT_INFRASTRUCTURE = 1
EXIT_BAD_INPUT = 2
EXIT_NO_VARIANT = 3
EXIT_REFUSED = 4
# 128 and the number of SIGINT, as shells have it.
EXIT_INTERRUPTED = 130


class QuantgateError(Exception):
    """Something went wrong in a way that its reader can act on.

    `found` is what was there, `expected` what should have been, `fix` what to do about it; secrets in them are taken out, since
    all of it is printed, logged, and kept in records.
    """

    exit_code: ClassVar[int] = EXIT_INFRASTRUCTURE

    def __init__(self, *, found: str, expected: str, fix: str) -> None:
        self.found, self.expected, self.fix = (redact(plain(text)) for text in (found, expected, fix))
        super().__init__(f"found: {self.found}\nexpected: {self.expected}\nfix: {self.fix}")

    @property
    def fields(self) -> dict[str, Any]:
        """The keyword arguments that make this error again."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def __reduce__(self) -> tuple[object, ...]:
        # Pickle would call __init__ with positional arguments.
        return _rebuild, (type(self), self.fields)


def _rebuild(kind: type[QuantgateError], fields: dict[str, Any]) -> QuantgateError:
    return kind(**fields)


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
    """The job cannot be read, or asks for what cannot be."""

    exit_code = EXIT_BAD_INPUT


class BudgetExceeded(JobError):
    """The run needs more memory or disk than `budgets` allows or the machine has; another try would need as much."""


class SourceError(QuantgateError):
    """The source is not there, not ready, or not a model that quantgate can start from."""

    exit_code = EXIT_BAD_INPUT


class DataError(QuantgateError):
    """A data file is unreadable or does not fit the model."""

    exit_code = EXIT_BAD_INPUT


class InfrastructureError(QuantgateError):
    """Something outside the job failed: a registry, a disk, a process. Tasks retry on this error alone."""

    exit_code = EXIT_INFRASTRUCTURE


class ChampionMoved(InfrastructureError):
    """The champion is another one than the variant was judged against: the verdict beside it says nothing of the new one.

    The step that meets it is not tried again, since it would meet it again; the comparison is.
    """


class VersionUnsound(InfrastructureError):
    """A registered version is not the artifact that was judged, does not load, or does not answer as that did."""


class WorkLost(InfrastructureError):
    """A worker took work and died over it, or its process did: another one may bring it to its end."""


class ServiceDown(InfrastructureError):
    """A server does not answer, or fails: a registry, an artifact store. Tasks wait for it as long as a restart may take."""


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
    """Somebody pressed Ctrl-C: nothing is wrong, and the same command takes the work up again."""

    exit_code = EXIT_INTERRUPTED


class CandidateRefused(QuantgateError):
    """A candidate made no variant, or the variant could not be measured; `log` is all that a tool said of it, if one did."""

    def __init__(self, *, kind: RefusalKind, found: str, expected: str, fix: str, log: Path | None = None) -> None:
        super().__init__(found=found, expected=expected, fix=fix)
        self.kind = kind
        self.log = log
