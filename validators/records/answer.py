"""What a command has to say: one document for machines, and the same as lines and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from validators.errors import EXIT_OK

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Table:
    """Rows, headings first; where the terminal is narrow the columns with these headings fold, the last one by default."""

    rows: Rows
    folded: frozenset[str] = frozenset()


@dataclass(frozen=True)
class CommandAnswer:
    """What `--json` prints, what is printed without it, and the exit code of both.

    `document` holds what pydantic makes JSON of: mappings, sequences, dataclasses, models, paths, plain values.
    """

    document: Any
    parts: Sequence[str | Table] = field(default=())
    exit_code: int = EXIT_OK
