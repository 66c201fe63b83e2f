"""Gates on what a variant answers: what it loses, where it is not finite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from validators.errors import JobError
from validators.gates import bounded, confidence_of_each
from validators.intervals import MIN_SAMPLES
from validators.job import Confirmation
from validators.job_gates import Gates
from validators.measurements import Estimate
from validators.slices import groups_of
from validators.verdicts import Verdict


@dataclass(frozen=True)
class _Demand:
    """A gate on some samples: `n` of `whose`, with which a drop of at most `bound` is to be shown at `confidence`."""

    key: str
    bound: float
    whose: str
    n: int
    confidence: float

    def needed(self, *, is_right_or_wrong: bool) -> float:
        """The fewest samples with which any variant can pass; Inf where no number is enough.

        A variant that never differs has Tango's bound without discordant pairs, z^2 / (n + z^2).
        """
        if not is_right_or_wrong:
            return MIN_SAMPLES
        if self.bound == 0:
            return math.inf
        z2 = float(ndtri(self.confidence)) ** 2
        return max(math.ceil(z2 * (1 - self.bound) / self.bound), 1)


def check_gates_can_be_met(
    gates: Gates,
    confirmation: Confirmation,
    kept: NDArray[np.bool_],
    slices: Mapping[str, NDArray[Any]],
    *,
    is_right_or_wrong: bool,
) -> None:
    """Refuse a job whose gates on accuracy no variant could pass, however good, with the samples that it has.

    `kept` (shape `(n,)`) says which evaluation samples are for confirmation, `slices` (arrays of shape `(n,)`) their groups.
    Even a variant that agrees with the baseline everywhere has an upper bound above zero; where that is beyond the tolerance,
    more samples are needed.

    Raises:
        JobError: a gate cannot be met by definition.
    """
    for demand in _demands(gates, confirmation, kept, slices):
        needed = demand.needed(is_right_or_wrong=is_right_or_wrong)
        if demand.n < needed:
            raise _unmeetable(demand, needed, len(kept), by_split=bool(confirmation.share))


def _demands(
    gates: Gates, confirmation: Confirmation, kept: NDArray[np.bool_], slices: Mapping[str, NDArray[Any]]
) -> Iterator[_Demand]:
    """What the gates ask of the samples that choose and of those that confirm, all before their slices."""
    parts = [("", ~kept, gates.confidence)]
    if confirmation.share:
        confidence = confidence_of_each(gates.confidence, confirmation.candidates)
        parts = [(" that choose", ~kept, gates.confidence), (" that confirm", kept, confidence)]
    groups = groups_of(slices)
    for words, part, confidence in parts:
        yield _Demand("max_drop", gates.max_drop, f"evaluation samples{words}", int(part.sum()), confidence)
        if gates.max_slice_drop is None or not groups:
            continue
        column, group, mask = min(groups, key=lambda found: int((found[2] & part).sum()))
        yield _Demand(
            "max_slice_drop",
            gates.max_slice_drop,
            f"evaluation samples{words} in the group {group} of the slice {column!r}",
            int((mask & part).sum()),
            confidence_of_each(confidence, len(groups)),
        )


def _unmeetable(demand: _Demand, needed: float, total: int, *, by_split: bool) -> JobError:
    many = "infinitely many" if math.isinf(needed) else f"at least {needed}"
    fixes = ["add evaluation samples" if demand.key == "max_drop" else "add samples of that group"]
    fixes.append(
        "allow a larger drop" if demand.key == "max_drop" else "allow a larger drop, or none: `max_slice_drop: null`"
    )
    if by_split:
        fixes.append("set another `confirmation.share`")
    return JobError(
        found=f"`gates.{demand.key}: {demand.bound}` at confidence {demand.confidence:.6g} with {demand.n} "
        f"{demand.whose}, of {total} in all",
        expected=f"{many} samples there: with fewer, even a variant that never differs cannot pass",
        fix="; or ".join(fixes),
    )


def judge_drop(drop: Estimate, gates: Gates, *, n: int, method: str) -> Verdict:
    """The accuracy gate, a non-inferiority test: pass if the upper bound of the drop is within the tolerance, fail if the
    lower bound is beyond it, else inconclusive."""
    return bounded("drop", drop, gates.max_drop, "at_most", gates.confidence, n, method, lambda value: f"{value:+.4f}")


def judge_sqnr(sqnr: Estimate | None, gates: Gates, *, n: int, method: str) -> Verdict | None:
    """The noise gate: the signal-to-quantization-noise ratio of the outputs in dB; None where the job has no such gate.

    One that is infinite (not a bit differs) passes, and one that is NaN (outputs that are not finite) fails.
    """
    if gates.min_sqnr_db is None:
        return None
    assert sqnr is not None  # load_data refuses the gate where outputs have no noise
    return bounded("sqnr", sqnr, gates.min_sqnr_db, "at_least", gates.confidence, n, method, "{:.1f} dB".format)
