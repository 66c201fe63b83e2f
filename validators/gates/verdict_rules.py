"""Rules that turn an estimate into a verdict: a test with a stated confidence that passes, fails or is inconclusive."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Literal

from scipy.special import ndtri

from validators.records.measurements import Estimate
from validators.records.verdicts import Outcome, Verdict

POWER = 0.8


def overall(verdicts: tuple[Verdict, ...]) -> Literal["passed", "failed", "inconclusive"]:
    """Combine verdicts: any failure fails; otherwise any inconclusive one makes the result inconclusive.

    >>> overall(())
    'passed'
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    return "failed" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "passed"


# Units that a verdict counts, and the job key that provides more of them if it is not the evaluation data.
EVALUATION, BLOCKS, LAUNCHES, PROMPTS = "evaluation samples", "pairs of blocks", "launches", "prompts"
DRAWS = "draws of the calibration samples"
REQUESTS = "requests in each launch"
_KEYS = {
    BLOCKS: ": raise `measurement.launches`, or `measurement.blocks`, the pairs of each",
    LAUNCHES: ": raise `measurement.launches`",
    REQUESTS: ": raise `measurement.block_count`",
    PROMPTS: ": raise `measurement.prompts`",
    DRAWS: ": raise `calibration.draws`",
}


def judge_exact(
    gate: str, value: float, bound: float, fault: str, *, method: str = "exact", n: int | None = None
) -> Verdict:
    """Judge a figure without an interval, which must be at most `bound`; `fault` is the reason if it is more."""
    passed = value <= bound
    outcome: Outcome = "pass" if passed else "fail"
    return Verdict(gate, outcome, value, bound, "at_most", n=n, method=method, reason="" if passed else fault)


def bounded(
    gate: str,
    estimate: Estimate,
    bound: float,
    direction: Literal["at_most", "at_least"],
    confidence: float,
    n: int,
    method: str,
    show: Callable[[float], str],
    *,
    counted: str = EVALUATION,
    settle: Callable[[], int | None] | None = None,
) -> Verdict:
    """Judge an estimate: pass if its whole interval is on the right side of the bound, fail if none of it is.

    Otherwise the verdict is inconclusive, with the number of `counted` units that would settle it: that of `settle`, for an
    estimate that is no mean. A missing end of the interval counts as infinite; NaN never passes.
    """
    low = -math.inf if estimate.low is None else estimate.low
    high = math.inf if estimate.high is None else estimate.high
    near, far = (low, high) if direction == "at_most" else (high, low)
    within = operator.le if direction == "at_most" else operator.ge
    outcome: Outcome = "pass" if within(far, bound) else "inconclusive" if within(near, bound) else "fail"
    settle = settle or (lambda: samples_to_settle(estimate, bound, direction, confidence, n))
    needed = settle() if outcome == "inconclusive" else None
    words = {"pass": "", "fail": "beyond the bound", "inconclusive": _doubt(estimate, method, needed, counted)}
    ends = "" if estimate.low is None or estimate.high is None else f" [{show(estimate.low)}, {show(estimate.high)}]"
    reason = words[outcome] and f"{show(estimate.value)}{ends} against {show(bound)}: {words[outcome]}"
    return Verdict(
        gate=gate,
        outcome=outcome,
        value=estimate.value,
        bound=bound,
        direction=direction,
        low=estimate.low,
        high=estimate.high,
        confidence=confidence,
        n=n,
        method=method,
        reason=reason,
        samples_needed=needed,
        counted=counted,
    )


def _doubt(estimate: Estimate, method: str, needed: int | None, counted: str) -> str:
    if estimate.low is None or estimate.high is None:
        return f"no interval ({method.removeprefix('none: ')}): more {would_tell(counted)}"
    if needed is None:
        return f"the value equals the bound, or nearly: no sensible number of {counted} would settle it"
    return f"the interval contains the bound: about {two_digits(needed):,} {would_tell(counted)}"


def would_tell(counted: str) -> str:
    """Return the advice to add samples or measurements, with the job key that requests them.

    >>> would_tell("launches")
    'launches would settle it: raise `measurement.launches`'
    """
    return f"{counted} would settle it{_KEYS.get(counted, '')}"


def two_digits(count: int) -> int:
    """Round up to two digits: more would overstate the precision.

    >>> two_digits(1801), two_digits(9), two_digits(100)
    (1900, 9, 100)
    """
    unit = int(10 ** max(len(str(count)) - 2, 0))
    return -(-count // unit) * unit


def samples_to_settle(
    estimate: Estimate, bound: float, direction: Literal["at_most", "at_least"], confidence: float, n: int
) -> int | None:
    """Return the sample count that would settle an inconclusive verdict with 80 % probability, if the truth is the estimate.

    With that count the verdict passes if the estimate is on the right side of the bound, and fails otherwise. None for an
    estimate on the bound, or without an interval.

    One end of the interval has to move across the bound. It lies `z(confidence)` standard errors from the value, and the
    standard error shrinks with the square root of the count. At a distance of `z(confidence) + z(0.8)` standard errors between
    value and bound it moves across in 80 % of draws (S. Julious, "Sample sizes for clinical trials with normal data",
    Statistics in Medicine 23, 2004, section on non-inferiority).

    >>> samples_to_settle(Estimate(0.0, -0.03, 0.03), 0.02, "at_most", 0.95, 1000)
    5142
    """
    gap = bound - estimate.value if direction == "at_most" else estimate.value - bound
    moves_up = (gap > 0) == (direction == "at_most")
    end = estimate.high if moves_up else estimate.low
    if end is None or not math.isfinite(end) or gap == 0:
        return None
    z = float(ndtri(confidence))
    factor = (1 + float(ndtri(POWER)) / z) * (end - estimate.value) / gap
    count = n * factor**2
    return max(math.ceil(count), n + 1) if math.isfinite(count) else None


def confidence_of_each(confidence: float, tests: int) -> float:
    """Return the confidence each of several tests needs so that all hold jointly with `confidence` (Bonferroni).

    >>> round(confidence_of_each(0.95, 5), 4)
    0.99
    """
    return 1 - (1 - confidence) / tests
