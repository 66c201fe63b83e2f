"""The frozen record of what a gate said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one gate with its evidence.

    `direction` says on which side of `bound` the value must lie; `low` and `high` are one-sided bounds at `confidence`,
    absent where the value is exact.
    """

    gate: str
    outcome: Outcome
    value: float | None
    bound: float
    direction: Literal["at_most", "at_least"]
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    n: int | None = None
    method: str = "exact"
    reason: str = ""
