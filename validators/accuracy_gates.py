"""Gates on what a variant answers: what it loses, where it is not finite."""

from __future__ import annotations

import math

from scipy import stats

from validators.errors import JobError
from validators.gates import bounded
from validators.job_gates import Gates
from validators.measurements import Estimate
from validators.verdicts import Verdict


def check_gates_can_be_met(gates: Gates, samples: int, *, is_right_or_wrong: bool) -> None:
    """Refuse a job whose accuracy gate no variant could pass, however good.

    Even a variant that agrees with the baseline on all `samples` has an upper bound above zero; where that bound is beyond
    the tolerance, more samples are needed. (Tango's bound without discordant pairs is z^2 / (n + z^2).)

    Raises:
        JobError: the gate cannot be met by definition.
    """
    if not is_right_or_wrong:
        return
    z2 = float(stats.norm.ppf(gates.confidence)) ** 2
    if z2 / (samples + z2) > gates.max_drop:
        needed = (
            f"at least {math.ceil(z2 * (1 - gates.max_drop) / gates.max_drop)}" if gates.max_drop else "infinitely many"
        )
        raise JobError(
            found=f"`gates.max_drop: {gates.max_drop}` at confidence {gates.confidence} with {samples} evaluation samples",
            expected=f"{needed} samples: with fewer, even a variant that never differs cannot pass",
            fix="add evaluation samples, or allow a larger drop",
        )


def judge_drop(drop: Estimate, gates: Gates, *, n: int, method: str) -> Verdict:
    """The accuracy gate, a non-inferiority test: pass if the upper bound of the drop is within the tolerance, fail if the
    lower bound is beyond it, else inconclusive."""
    return bounded("drop", drop, gates.max_drop, "at_most", gates.confidence, n, method, lambda value: f"{value:+.4f}")


def judge_sqnr(sqnr: Estimate | None, gates: Gates, *, n: int) -> Verdict | None:
    """The noise gate: the signal-to-quantization-noise ratio of the outputs in dB; None where the job has no such gate.

    One that is infinite (not a bit differs) passes, and one that is NaN (outputs that are not finite) fails.
    """
    if gates.min_sqnr_db is None:
        return None
    assert sqnr is not None  # load_data refuses the gate where outputs have no noise
    return bounded(
        "sqnr",
        sqnr,
        gates.min_sqnr_db,
        "at_least",
        gates.confidence,
        n,
        "paired bootstrap of the noise's share",
        "{:.1f} dB".format,
    )
