"""What promotion takes: that one artifact passed every gate on one device, and no other does."""

from __future__ import annotations

from dataclasses import dataclass

from validators.records.run import Trial, Variant
from validators.records.sign_off import SignOff
from validators.records.verdicts import Verdict


class NotApproved(ValueError):
    """A trial was to be promoted that has not passed every gate that it must."""


@dataclass(frozen=True)
class Approval:
    """A trial that passed, and the device and runtimes that its verdicts hold for.

    `required` names every verdict that must be there (`catalog.required_gates`). `sign_off` is what a person said, where the
    job has one asked.

    Raises:
        NotApproved: it has no variant, a gate that must be there is missing, or one did not pass; somebody rejected it, or
            approved another artifact.
    """

    trial: Trial
    device_key: str
    required: frozenset[str]
    sign_off: SignOff | None = None

    def __post_init__(self) -> None:
        missing = self.required - {verdict.gate for verdict in self.verdicts}
        against = [verdict.gate for verdict in self.verdicts if verdict.outcome != "pass"]
        never_ran = self.trial.variant is not None and self.trial.variant.proof != "measured"
        if self.trial.variant is None or never_ran or self.trial.outcome != "passed" or missing or against:
            raise NotApproved(
                f"{self.trial.candidate} is {self.trial.outcome}; not passed: {against}; not judged: {sorted(missing)}"
            )
        if self.sign_off and (self.sign_off.decision, self.sign_off.digest) != ("approved", self.variant.digest):
            raise NotApproved(f"{self.trial.candidate}, sha256 {self.variant.digest}: {self.sign_off}")

    @property
    def variant(self) -> Variant:
        """The artifact that is approved."""
        assert self.trial.variant is not None  # held by __post_init__
        return self.trial.variant

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """All verdicts on it, each a pass."""
        return self.trial.verdicts
