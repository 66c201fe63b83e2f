"""The approval that promotion requires: one artifact passed every gate on one device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from validators.records.run import Trial, Variant
from validators.records.verdicts import SignOff, Verdict


class NotApproved(ValueError):
    """A trial lacks the verdicts or the sign-off that its promotion requires."""


@dataclass(frozen=True)
class Approval:
    """A passed trial, with the device and runtimes for which its verdicts hold.

    `required` names every verdict that promotion demands (`catalog.required_gates`). `sign_off` is a person's decision, if the
    job asks for one. `evidence` is the sealed bundle that is promoted with it.

    Raises:
        NotApproved: the trial has no variant, the variant was not measured, a required verdict is missing, or a gate did not
            pass; or a person rejected the variant or approved another one.
    """

    trial: Trial
    device_key: str
    required: frozenset[str]
    sign_off: SignOff | None = None
    evidence: Path | None = None

    def __post_init__(self) -> None:
        missing = self.required - {verdict.gate for verdict in self.verdicts}
        against = [verdict.gate for verdict in self.verdicts if verdict.outcome != "pass"]
        never_ran = self.trial.variant is not None and self.trial.variant.proof != "measured"
        if self.trial.variant is None or never_ran or self.trial.outcome != "passed" or missing or against:
            raise NotApproved(
                f"{self.trial.candidate} is {self.trial.outcome}; not passed: {against}; not judged: {sorted(missing)}"
            )
        if self.sign_off and (self.sign_off.decision, self.sign_off.identity) != ("approved", self.variant.identity):
            raise NotApproved(f"{self.trial.candidate}, variant {self.variant.identity}: {self.sign_off}")

    @property
    def variant(self) -> Variant:
        """The approved artifact."""
        assert self.trial.variant is not None  # held by __post_init__
        return self.trial.variant

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts on the trial, each a pass."""
        return self.trial.verdicts
