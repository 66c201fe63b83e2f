"""Gates: what a variant must satisfy, as tests with a stated confidence. A gate gives pass, fail or inconclusive."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Literal

from validators.measurements import Estimate
from validators.verdicts import Outcome, Verdict


def overall(verdicts: tuple[Verdict, ...]) -> Literal["passed", "failed", "inconclusive"]:
    """What all gates together say: any failure fails; else anything inconclusive is inconclusive.

    >>> overall(())
    'passed'
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    return "failed" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "passed"


def bounded(
    gate: str,
    estimate: Estimate,
    bound: float,
    direction: Literal["at_most", "at_least"],
    confidence: float,
    n: int,
    method: str,
    show: Callable[[float], str],
) -> Verdict:
    assert estimate.low is not None and estimate.high is not None
    near, far = (estimate.low, estimate.high) if direction == "at_most" else (estimate.high, estimate.low)
    within = operator.le if direction == "at_most" else operator.ge
    outcome: Outcome = "pass" if within(far, bound) else "inconclusive" if within(near, bound) else "fail"
    words = {
        "pass": "",
        "fail": "beyond the bound",
        "inconclusive": "the interval holds the bound: more samples would tell",
    }
    reason = words[outcome] and (
        f"{show(estimate.value)} [{show(estimate.low)}, {show(estimate.high)}] against {show(bound)}: {words[outcome]}"
    )
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
    )
