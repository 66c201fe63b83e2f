"""Frozen record of a person's decision on a winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["approved", "rejected"]


@dataclass(frozen=True)
class SignOff:
    """A decision on one artifact as successor of one champion.

    `digest` is the variant's. `replaces` is the version of the champion that it follows, or None. `at` is the time when the
    server received the answer (ISO 8601, UTC). `by` is the name that the person entered: the open-source Prefect server has no
    user accounts.
    """

    decision: Decision
    by: str
    comment: str
    at: str
    digest: str
    replaces: str | None

    def __str__(self) -> str:
        """Return the decision as text, such as `approved by Ada on 2026-11-22T10:00:00Z: as agreed`."""
        return f"{self.decision} by {self.by} on {self.at}" + (f": {self.comment}" if self.comment else "")
