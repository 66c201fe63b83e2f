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
    """A part of the model, and what the output loses when it alone is quantized, for a decoder as predicted from its weights.

    `noise` is the power of the output's error over that of the output, null where the output was not finite. Outlier ratios
    say how far the largest channel lies above the others, null for a part without weights or where that is not known.
    `form` is the one that the part has in the recovered candidate, such as `float` or `int8-g128`, empty where it is the
    candidate's own; `kept` parts are in float. `cost_us` are the microseconds a request that the kernels of the part take more
    in float, by the runtime's profile: indicative, estimated from its multiply-accumulates where kernels cannot be told apart,
    and null where none were timed.
    """

    name: str
    nodes: tuple[str, ...]
    noise: float | None
    weight_outlier_ratio: float | None
    activation_outlier_ratio: float | None
    kept: bool = False
    cost_us: float | None = None
    form: str = ""


@dataclass(frozen=True)
class FrontierPoint:
    """The cheapest forms of all parts with a predicted ratio of signal to noise of at least `level_db`.

    `noise` is the predicted power of the output's error over that of the output. `cost` is what the forms cost more than the
    candidate's own. `candidate` is the one that was made of them, or empty, and `outcome` whether its accuracy passed.
    """

    level_db: int
    noise: float
    cost: float
    candidate: str = ""
    outcome: str = ""


@dataclass(frozen=True)
class Recovery:
    """Search of the cheapest forms of a candidate's parts with which its accuracy passes.

    The candidate failed on accuracy alone or, with `passes`, is the best that passes; `frontier` are its cheaper forms then.
    `parts` are all that the candidate quantizes, the noisiest first; `attempts` of at most `allowed` variants were made;
    `recovered` is the cheapest candidate whose accuracy passes, or null. `frontier` are the forms that it was searched in,
    cheapest first, with costs in `cost_unit`: microseconds or bytes. `other_us` is null in results of this version.
    """

    candidate: str
    parts: tuple[RankedPart, ...]
    attempts: int
    allowed: int
    recovered: str | None = None
    other_us: float | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    cost_unit: str = ""
    passes: bool = False
