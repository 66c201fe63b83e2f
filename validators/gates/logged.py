"""Gates on metrics that the job's own step logged."""

from __future__ import annotations

import math
from collections.abc import Mapping

from validators.job.job_gates import Gates, LoggedGate
from validators.records.verdicts import Outcome, Verdict


def judge_logged(logged: Mapping[str, float], gates: Gates, *, problem: str = "") -> tuple[Verdict, ...]:
    """Judge each bound on a logged metric. `logged` holds the last value of each key, `problem` says why the step failed.

    A missing metric, or NaN, is inconclusive.
    """
    return tuple(_judge(gate, logged.get(gate.metric), problem) for gate in gates.logged)


def _judge(gate: LoggedGate, value: float | None, problem: str) -> Verdict:
    bound = gate.at_most if gate.at_most is not None else gate.at_least
    assert bound is not None  # `LoggedGate` requires one of the two
    known = value is not None and not math.isnan(value)
    outcome: Outcome = "inconclusive"
    reason = problem or f"the step logged no metric {gate.metric!r}"
    if value is not None and known:
        within = value <= bound if gate.at_most is not None else value >= bound
        outcome = "pass" if within else "fail"
        reason = "" if within else f"{value:.6g} against {bound:.6g}"
    elif value is not None:
        reason = f"the step logged NaN as {gate.metric!r}"
    return Verdict(
        gate=f"logged.{gate.metric}",
        outcome=outcome,
        value=value,
        bound=bound,
        direction="at_most" if gate.at_most is not None else "at_least",
        method="logged by the job's own step",
        reason=reason,
        evidence=f"metric {gate.metric}",
    )
