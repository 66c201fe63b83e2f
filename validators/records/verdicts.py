"""Frozen record of a gate's verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one gate with its evidence.

    `direction` says on which side of `bound` the value must lie; `low` and `high` are one-sided bounds at `confidence`,
    absent where the value is exact. `samples_needed` is how many samples would settle an inconclusive one at 80 % power, if
    the value stays what it is; None where no number would, or none was reckoned. `n` and `samples_needed` count what `counted`
    says: samples, clusters of samples, pairs of blocks. `evidence` names the artifact of the
    candidate's run in MLflow that it rests on, where there is one.
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
    samples_needed: int | None = None
    evidence: str = ""
    counted: str = "evaluation samples"
