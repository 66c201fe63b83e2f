"""The frozen records of what gates and a person said of a candidate, and of a recovery of one that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["pass", "fail", "inconclusive"]
Decision = Literal["approved", "rejected"]


@dataclass(frozen=True)
class Verdict:
    """The outcome of one gate with its evidence.

    `direction` says on which side of `bound` the value must lie; `low` and `high` are one-sided bounds at `confidence`,
    absent where the value is exact. `samples_needed` is how many samples would settle an inconclusive one at 80 % power, if
    the value stays what it is; None where no number would, or none was reckoned. `n` and `samples_needed` count what `counted`
    says: samples, clusters of samples, pairs of blocks. `evidence` names the artifact of the
    candidate's run in MLflow that it rests on, where there is one. `disturbed`: the verdict is inconclusive because the machine
    was too busy to measure.
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
    disturbed: bool = False


@dataclass(frozen=True)
class SignOffResult:
    """A person's decision on the winner; `by` is the name they gave, `at` is UTC."""

    decision: Decision
    by: str
    comment: str
    at: str


@dataclass(frozen=True)
class SignOff(SignOffResult):
    """A decision on one variant as successor of one champion.

    `digest` is that of the variant's artifact, `identity` the variant's. `replaces` is the version of the champion that it
    follows, or None. `at` is the time when the server received the answer (ISO 8601, UTC). `by` is the name that the person
    entered: the open-source Prefect server has no user accounts.
    """

    digest: str
    replaces: str | None
    identity: str = ""

    def __str__(self) -> str:
        """Return the decision as text, such as `approved by Ada on 2026-11-22T10:00:00Z: as agreed`."""
        return f"{self.decision} by {self.by} on {self.at}" + (f": {self.comment}" if self.comment else "")


@dataclass(frozen=True)
class RankedPart:
    """A part of the model, and what the output loses when it alone is quantized.

    `noise` is the power of the output's error over that of the output, null where the output was not finite. Outlier ratios
    say how far the largest channel lies above the others, null for a part without weights or where that is not known.
    `kept` parts are in float in the recovered candidate; `cost_us` are the microseconds a request that this costs, by the
    runtime's profile: indicative, and null for others and where the runtime's kernels cannot be told apart.
    """

    name: str
    nodes: tuple[str, ...]
    noise: float | None
    weight_outlier_ratio: float | None
    activation_outlier_ratio: float | None
    kept: bool = False
    cost_us: float | None = None


@dataclass(frozen=True)
class Recovery:
    """Recovery of a candidate that failed on accuracy alone: made again with its noisiest parts in float.

    `parts` are all that the candidate quantizes, the noisiest first; `attempts` of at most `allowed` variants were made;
    `recovered` is the candidate whose accuracy passes with the fewest parts in float, or null. `other_us` are the microseconds
    a request that its remaining nodes take more than those of `candidate`, conversions between the two forms among them.
    """

    candidate: str
    parts: tuple[RankedPart, ...]
    attempts: int
    allowed: int
    recovered: str | None = None
    other_us: float | None = None
