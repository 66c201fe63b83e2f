"""What a page advises after a run: commands that the command line takes, changes that a job takes, bounds that suffice."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer
from report_data import BARE, JOB, NO_VARIANT, REFUSED, RESULT

from flows.cli.app import app
from tasks.reporting.next_steps import NextStep, next_steps, rounded
from validators.gates.catalog import GATES
from validators.gates.verdict_rules import DRAWS
from validators.job.job import Job
from validators.job.job_data import CalibrationBounds
from validators.job.job_measurement import Measurement
from validators.job.read_job import changed
from validators.records.result import ErrorResult, Result
from validators.records.verdicts import Verdict

# What some gates need beside their bound.
NEEDED = {"measurement": Measurement(price_per_hour=1.0), "calibration": CalibrationBounds(draws=5)}
PRICED = JOB.model_copy(update=NEEDED)
RUN = "0123456789abcdef0123456789abcdef"


def lost(*verdicts: Verdict) -> Result:
    candidate = RESULT.candidates[0].model_copy(update={"verdicts": list(verdicts), "outcome": "failed"})
    return NO_VARIANT.model_copy(update={"candidates": [candidate]})


def applied(step: NextStep, job: Job = JOB) -> Job:
    """The job after the change that a step names, read as `--set` reads it."""
    words = shlex.split(step.command)
    change = words[words.index("--set") + 1]
    return Job.model_validate(changed(job.model_dump(exclude_defaults=True), [change]))


def check_command(step: NextStep) -> None:
    """Let the command line read a command, without executing it."""
    program, *words = shlex.split(step.command)
    group: Any = typer.main.get_command(app)
    assert program == "quantgate"
    with group.make_context(program, list(words), resilient_parsing=False) as outer:
        name, command, rest = group.resolve_command(outer, list(words))
        with command.make_context(name, rest, parent=outer):
            pass


@pytest.mark.parametrize(
    "result",
    [
        RESULT,
        RESULT.model_copy(update={"champion": replace(RESULT.champion, previous=None)}) if RESULT.champion else RESULT,
        RESULT.model_copy(update={"outcome": "winner", "champion": None}),
        REFUSED,
        lost(Verdict("drop", "fail", 0.05, 0.02, "at_most", 0.04, 0.06, 0.95, 900)),
    ],
)
def test_every_command_is_one_of_quantgate(result: Result) -> None:
    steps = next_steps(result, JOB, RUN)
    assert steps and any(step.command for step in steps)
    for step in steps:
        if step.command:
            check_command(step)


def test_a_bound_that_is_named_suffices() -> None:
    """For every gate with a key that an interval or a figure is held against."""
    for gate in GATES:
        if not gate.key or gate.unit == "yes or no" or gate.name in ("coverage", "coverage_time"):
            continue
        is_most = gate.key.startswith("max_")
        verdict = Verdict(
            gate.name, "fail", 0.04, 0.02, "at_most" if is_most else "at_least", 0.0301, 0.0467, 0.95, 900
        )
        (step,) = next_steps(lost(verdict), JOB, RUN)
        bound = getattr(applied(step, PRICED).gates, gate.key)
        assert bound >= 0.0467 if is_most else bound <= 0.0301


def test_the_nearest_candidate_is_the_one_that_is_told() -> None:
    first = Verdict("drop", "fail", 0.05, 0.02, "at_most", 0.04, 0.06, 0.95, 900)
    second = Verdict("speedup", "fail", 0.9, 1.05, "at_least", 0.88, 0.93, 0.95, 18)
    far = RESULT.candidates[0].model_copy(update={"name": "far", "verdicts": [first, second]})
    near = RESULT.candidates[0].model_copy(update={"name": "near", "verdicts": [second]})
    (step,) = next_steps(NO_VARIANT.model_copy(update={"candidates": [far, near]}), JOB, RUN)
    assert step.about == "near comes nearest: if you can accept speedup of 0.88x, it passes this gate"
    assert step.command.endswith("--set gates.min_speedup=0.88")


def test_what_would_settle_a_doubt_is_told_with_its_cost() -> None:
    """Launches within the job's bounds as a change; samples in words, since no key makes them."""
    doubt = Verdict("speedup", "inconclusive", 1.1, 1.05, "at_least", 1.0, 1.2, 0.95, 18, samples_needed=41)
    for counted in ("pairs of blocks", "launches"):
        (step,) = next_steps(lost(replace(doubt, counted=counted)), JOB, RUN)
        launches = applied(step).measurement.launches
        assert launches / JOB.measurement.launches >= 41 / 18
        seconds = JOB.measurement.model_copy(update={"launches": launches}).expected_seconds
        assert f"{launches} launches would settle it, about {seconds:.0f} s a candidate" in step.about
    (step,) = next_steps(lost(replace(doubt, counted="launches", samples_needed=4100)), JOB, RUN)
    assert step.command == "" and "about 4,100 launches would settle it, 228 times as many" in step.about
    draws = replace(doubt, gate="draw_spread", direction="at_most", n=5, samples_needed=9, counted=DRAWS)
    (step,) = next_steps(lost(draws), JOB, RUN)
    assert applied(step).calibration.draws == 9
    (step,) = next_steps(lost(replace(doubt, gate="drop", n=900, samples_needed=1801)), JOB, RUN)
    assert step.about.endswith("about 1,900 evaluation samples would settle it, where 900 were used")


def test_an_error_says_its_fix_and_no_bound() -> None:
    busy = Verdict("speedup", "inconclusive", 1.2, 1.05, "at_least", reason="busy", disturbed=True)
    fault = ErrorResult(kind="InfrastructureError", found="busy", expected="quiet", fix="run again")
    result = lost(busy).model_copy(update={"outcome": "error", "error": fault})
    assert next_steps(result, JOB, RUN) == [NextStep("Run again")]


def test_kernels_that_ran_in_float_are_no_matter_of_a_bound() -> None:
    verdict = Verdict("coverage", "fail", 0.0, 0.5, "at_least", reason="float kernels ran")
    (step,) = next_steps(lost(verdict), JOB, RUN)
    assert step.command == "" and step.about.endswith("fails coverage: float kernels ran")
    assert next_steps(BARE, JOB) == [] == next_steps(RESULT, None)


@pytest.mark.parametrize("value", [0.0312, 31.2, 0.000999, 1.0, 250.1])
def test_a_rounded_bound_lies_on_the_passing_side(value: float) -> None:
    assert value <= rounded(value, "at_most") <= value * 1.1
    assert value * 0.9 <= rounded(value, "at_least") <= value
