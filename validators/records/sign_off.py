"""The frozen record of what a person said of a winner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["approved", "rejected"]


@dataclass(frozen=True)
class SignOff:
    """An answer on one artifact in one place.

    `digest` is the variant's, `replaces` the version of the champion that it follows, None where there is none. `at` is when
    the server took the answer, in UTC, as ISO 8601. `by` is what the person called themselves: the open-source Prefect server
    knows no users.
    """

    decision: Decision
    by: str
    comment: str
    at: str
    digest: str
    replaces: str | None

    def __str__(self) -> str:
        """The answer in words, such as `approved by Ada on 2026-11-22T10:00:00Z: as agreed`."""
        return f"{self.decision} by {self.by} on {self.at}" + (f": {self.comment}" if self.comment else "")
