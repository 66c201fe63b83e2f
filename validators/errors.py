"""Every error that quantgate raises on purpose.

    QuantgateError                 found, expected, fix; an exit code
    ├── JobError               2   the job file, or what the command line said
    │   └── BudgetExceeded         the run needs more memory or disk than the job allows
    ├── SourceError            2   the model that the job names
    ├── DataError              2   a data file that the job names
    ├── InfrastructureError    1   a registry, a disk, a process: worth another try
    │   ├── ChampionMoved          somebody moved the alias meanwhile: compare with the new champion, then try again
    │   ├── VersionUnsound         a registered version is not what was judged
    │   ├── ServiceDown            a server does not answer: worth waiting for
    │   └── Interrupted      130   Ctrl-C
    └── CandidateRefused       -   one candidate made no variant; recorded as a refusal, the run goes on

A run without a winner (exit code 3) and refused calibration data (4) are no errors: they are outcomes.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

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

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders by pickle, which would call __init__ with positional arguments.
        return _rebuild, (type(self), self.found, self.expected, self.fix)


def _rebuild(kind: type[QuantgateError], found: str, expected: str, fix: str) -> QuantgateError:
    return kind(found=found, expected=expected, fix=fix)


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


class Interrupted(InfrastructureError):
    """Somebody pressed Ctrl-C: nothing is wrong, and the same command takes the work up again."""

    exit_code = EXIT_INTERRUPTED


class CandidateRefused(QuantgateError):
    """A candidate made no variant, or the variant could not be measured; `log` is all that a tool said of it, if one did."""

    def __init__(self, *, kind: RefusalKind, found: str, expected: str, fix: str, log: Path | None = None) -> None:
        super().__init__(found=found, expected=expected, fix=fix)
        self.kind = kind
        self.log = log

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_refusal, (self.kind, self.found, self.expected, self.fix, self.log)


def _rebuild_refusal(kind: RefusalKind, found: str, expected: str, fix: str, log: Path | None) -> CandidateRefused:
    return CandidateRefused(kind=kind, found=found, expected=expected, fix=fix, log=log)
