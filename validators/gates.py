"""Gates: what a variant must satisfy, as tests with a stated confidence. A gate gives pass, fail or inconclusive."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from scipy import stats

from validators.errors import JobError
from validators.job_gates import Gates
from validators.measurements import Coverage, Estimate, Latency
from validators.recipe import decode
from validators.records import Variant
from validators.verdicts import Outcome, Verdict


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
    return _bounded("drop", drop, gates.max_drop, "at_most", gates.confidence, n, method, lambda value: f"{value:+.4f}")


def judge_speedup(latency: Latency, gates: Gates) -> Verdict | None:
    """The speed gate on the ratio of p50 latencies at the first batch size."""
    if gates.min_speedup is None:
        return None
    return _bounded(
        "speedup",
        latency.speedup,
        gates.min_speedup,
        "at_least",
        gates.confidence,
        latency.pairs,
        "paired blocks, Student interval of log ratios",
        lambda value: f"{value:.3f}x",
    )


def judge_coverage(candidate: str, coverage: Coverage, gates: Gates) -> Verdict | None:
    """The coverage gate: an INT8 file that runs float kernels fails it. Float candidates have nothing to cover.

    What ran in kernels of unknown precision may have been either: where that decides, the outcome is inconclusive.
    """
    if gates.min_coverage is None or decode(candidate).precision in ("fp32", "fp16"):
        return None
    floats = ", ".join(coverage.float_nodes[:5]) + (" ..." if len(coverage.float_nodes) > 5 else "")
    share, most = coverage.share, coverage.share + coverage.unknown
    outcome: Outcome = (
        "pass" if share >= gates.min_coverage else "inconclusive" if most >= gates.min_coverage else "fail"
    )
    hidden = f"; {coverage.unknown:.0%} in kernels that the provider does not name" if coverage.unknown else ""
    where = f"; in float: {floats}" if floats or not hidden else ""
    return Verdict(
        gate="coverage",
        outcome=outcome,
        value=share,
        bound=gates.min_coverage,
        direction="at_least",
        low=share if coverage.unknown else None,
        high=most if coverage.unknown else None,
        method="multiply-accumulates by kernel, from the runtime's profile",
        reason="" if outcome == "pass" else f"{share:.0%} of multiply-accumulates ran in low precision{hidden}{where}",
    )


def judge_size(variant: Variant, baseline_bytes: int, gates: Gates) -> Verdict | None:
    """The size gate on bytes on disk."""
    if gates.max_size_ratio is None:
        return None
    ratio = variant.size_bytes / baseline_bytes
    passed = ratio <= gates.max_size_ratio
    return Verdict(
        gate="size_ratio",
        outcome="pass" if passed else "fail",
        value=ratio,
        bound=gates.max_size_ratio,
        direction="at_most",
        reason="" if passed else f"{ratio:.2f} of the baseline's bytes",
    )


def judge_finite(bad_samples: int, n: int) -> Verdict:
    """The sanity gate: no sample whose outputs are NaN or Inf where the baseline's are finite."""
    return Verdict(
        gate="finite",
        outcome="fail" if bad_samples else "pass",
        value=float(bad_samples),
        bound=0.0,
        direction="at_most",
        n=n,
        reason=f"NaN or Inf on {bad_samples} samples where the baseline is finite" if bad_samples else "",
    )


def judge_simulation(variant: Variant) -> Verdict | None:
    """A simulated precision is never promoted: its speed here says nothing, and no kernel here runs it."""
    if not variant.is_simulated:
        return None
    return Verdict(
        gate="real_kernels",
        outcome="fail",
        value=0.0,
        bound=1.0,
        direction="at_least",
        reason="simulated: the target has no kernels for this precision",
    )


def overall(verdicts: tuple[Verdict, ...]) -> Literal["passed", "failed", "inconclusive"]:
    """What all gates together say: any failure fails; else anything inconclusive is inconclusive.

    >>> overall(())
    'passed'
    """
    outcomes = {verdict.outcome for verdict in verdicts}
    return "failed" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "passed"


def _bounded(
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


def judge_against_champion(
    *,
    same_source: bool,
    drop: Estimate,
    speedup: Estimate,
    size_ratio: float,
    objective: Literal["latency", "size"],
    gates: Gates,
    n: int,
) -> Verdict:
    """The gate beside the present champion. `drop` and `speedup` compare the new variant with it, not with the baseline.

    Of the same source, the new one must be better by the objective, beyond doubt: a change for noise is no gain. A champion of
    another source version gives way to a new one that is not clearly worse than it: that new version was registered to be used.
    """
    if not same_source:
        verdict = _bounded(
            "beats_champion",
            drop,
            gates.max_drop,
            "at_most",
            gates.confidence,
            n,
            "drop against the champion",
            "{:+.4f}".format,
        )
        return verdict if verdict.outcome == "fail" else replace(verdict, outcome="pass", reason="")
    if objective == "size":
        smaller = size_ratio < 1
        return Verdict(
            "beats_champion",
            "pass" if smaller else "fail",
            size_ratio,
            1.0,
            "at_most",
            method="bytes beside the champion's",
            reason="" if smaller else f"{size_ratio:.2f} of the champion's bytes: the champion stays",
        )
    return _bounded(
        "beats_champion",
        speedup,
        1.0,
        "at_least",
        gates.confidence,
        n,
        "p50 beside the champion, in turn",
        "{:.3f}x".format,
    )
