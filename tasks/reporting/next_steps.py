"""Advice for after a run: commands for the winner, or the change of the job with which the nearest candidate would pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from shlex import join

from tasks.reporting import formats
from tasks.reporting.rows import failing, metric_of
from validators.gates.catalog import gate_of
from validators.gates.verdict_rules import DRAWS, two_digits
from validators.job.job import Job
from validators.records.result import CandidateResult, Result
from validators.records.verdicts import Verdict

# Units of a verdict that more launches or blocks supply; the others are samples, or clusters of them.
_MEASURED = ("launches", "pairs of blocks")
MOST_LAUNCHES = 20
# Low precision that does not run as such is no matter of a bound.
_NOT_LOOSER = ("coverage", "coverage_time")
# Part of a run's id that `quantgate` accepts for it.
_SHORT = 8


@dataclass(frozen=True)
class NextStep:
    """A step in words, and its command if there is one."""

    about: str
    command: str = ""


def next_steps(result: Result, job: Job | None, run: str = "") -> list[NextStep]:
    """Return what may follow a run, which MLflow knows as `run`: first what its outcome asks for."""
    if job is None or result.outcome in ("accepted", "awaiting_approval"):
        return []
    if result.outcome == "refused":
        pick = join(["quantgate", "suggest-calibration", "job.yaml", "--from", "POOL", "--size", "256"])
        return [NextStep("Correct what the checks name, or pick other samples from a pool", pick)]
    if result.outcome == "promoted" and result.champion:
        champion = result.champion
        at = [champion.name, "--target", result.target or job.target]
        back = f"version {champion.previous}" if champion.previous else "no champion"
        return [
            NextStep(
                "Write it for a server or another program", join(["quantgate", "export", *at, "--out", "champion"])
            ),
            NextStep(
                f"Go back to {back}",
                join(["quantgate", "rollback", *at, *([] if champion.previous else ["--to", "0"]), "--reason", "WHY"]),
            ),
            NextStep("Look for drift in its traffic; the job needs the key watch", "quantgate watch"),
        ]
    if result.outcome == "winner" and job.source_is_file:
        return [
            NextStep(
                "Files are not promoted: register the model in MLflow, and run a job with its address, models:/NAME/VERSION"
            )
        ]
    if result.outcome == "winner":
        return [NextStep("Promote it; finished work is kept", join(["quantgate", "promote", run[:_SHORT]]))]
    if result.outcome not in ("no_variant", "error"):
        return []
    first = [NextStep(result.error.fix[:1].upper() + result.error.fix[1:])] if result.error else []
    nearest = min((one for one in result.candidates if failing(one.verdicts)), key=_distance, default=None)
    if nearest is None:
        return first
    steps = [_step(one, nearest, job, metric_of(result)) for one in failing(nearest.verdicts) if not one.disturbed]
    return first + steps


def _distance(candidate: CandidateResult) -> tuple[int, int]:
    """Return how far a candidate is from passing: gates that fail, then those that cannot tell."""
    outcomes = [verdict.outcome for verdict in failing(candidate.verdicts)]
    return outcomes.count("fail"), len(outcomes)


def _step(verdict: Verdict, candidate: CandidateResult, job: Job, metric: str) -> NextStep:
    gate = verdict.gate.replace("_", " ")
    if verdict.outcome == "inconclusive":
        return _more(verdict, f"{candidate.name} cannot be judged on {gate} yet", job)
    far = verdict.high if verdict.direction == "at_most" else verdict.low
    reached = verdict.value if far is None else far
    facts = gate_of(verdict.gate)
    is_fixed = facts is None or not facts.key or facts.unit == "yes or no" or verdict.gate in _NOT_LOOSER
    if is_fixed or reached is None or not math.isfinite(reached):
        return NextStep(f"{candidate.name} comes nearest, and fails {gate}: {verdict.reason}")
    assert facts is not None
    bound = rounded(reached, verdict.direction)
    told = formats.gate_value(verdict, bound, metric)
    return NextStep(
        f"{candidate.name} comes nearest: if you can accept {gate} of {told}, it passes this gate",
        join(["quantgate", "run", "job.yaml", "--set", f"gates.{facts.key}={bound:.12g}"]),
    )


def _more(verdict: Verdict, doubt: str, job: Job) -> NextStep:
    """Return what would settle an inconclusive verdict, with its cost."""
    if not verdict.samples_needed or not verdict.n:
        return NextStep(f"{doubt}: {verdict.reason}")
    needed = two_digits(verdict.samples_needed)
    if verdict.counted == DRAWS:
        change = join(["quantgate", "run", "job.yaml", "--set", f"calibration.draws={needed}"])
        return NextStep(f"{doubt}: about {needed} {DRAWS} would settle it, where {verdict.n} were made", change)
    if verdict.counted not in _MEASURED:
        return NextStep(f"{doubt}: about {needed:,} {verdict.counted} would settle it, where {verdict.n:,} were used")
    times = needed / verdict.n
    launches = math.ceil(job.measurement.launches * times)
    if launches > MOST_LAUNCHES:
        return NextStep(f"{doubt}: about {needed:,} {verdict.counted} would settle it, {times:.0f} times as many")
    seconds = job.measurement.expected_seconds * launches / job.measurement.launches
    return NextStep(
        f"{doubt}: {launches} launches would settle it, about {seconds:.0f} s a candidate",
        join(["quantgate", "run", "job.yaml", "--set", f"measurement.launches={launches}"]),
    )


def rounded(value: float, direction: str) -> float:
    """Round a bound to two digits, to the side on which the value passes.

    >>> rounded(0.0312, "at_most"), rounded(0.948, "at_least"), rounded(-0.0312, "at_most"), rounded(0.0, "at_most")
    (0.032, 0.94, -0.031, 0.0)
    """
    if value == 0:
        return 0.0
    scale = 10.0 ** (1 - math.floor(math.log10(abs(value))))
    towards = math.ceil if direction == "at_most" else math.floor
    return float(f"{towards(value * scale) / scale:.2g}")
