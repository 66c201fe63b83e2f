"""Output of a command: one document for machines, and the same content as lines and tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from validators.errors import EXIT_OK

Rows = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Table:
    """Rows, headings first."""

    rows: Rows


@dataclass(frozen=True)
class CommandAnswer:
    """Output of a command with `--json` (`document`) and without (`parts`), and the exit code of both.

    `document` holds values that pydantic serializes to JSON: mappings, sequences, dataclasses, models, paths, plain values.
    """

    document: Any
    parts: Sequence[str | Table] = field(default=())
    exit_code: int = EXIT_OK
