"""Outcomes of tasks as trials: the run continues when a candidate fails, and copies count once."""

from __future__ import annotations

from dataclasses import replace
from typing import ParamSpec

from tasks.run.context import log
from tasks.run.step import RunStep
from validators.digests import digest_values
from validators.errors import BudgetExceeded, InfrastructureError, RefusalKind, StorageFull
from validators.records.run import Refusal, Trial

Arguments = ParamSpec("Arguments")


def try_step(name: str, step: RunStep[Arguments, Trial], *args: Arguments.args, **kwargs: Arguments.kwargs) -> Trial:
    """Run a step of a candidate; return its trial, which is a refusal if the step failed. Raises as `trial_of` does."""
    return trial_of(name, step.outcome(*args, **kwargs))


def trial_of(name: str, outcome: Trial | BaseException) -> Trial:
    """Return the trial, or the refusal of a candidate whose task failed after its retries.

    Raises:
        StorageFull: the disk is full, so every further candidate would fail the same way.
    """
    if isinstance(outcome, Trial):
        return outcome
    if isinstance(outcome, StorageFull) or not isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, InfrastructureError | BudgetExceeded):
        reason = f"{outcome.found}; expected {outcome.expected}; {outcome.fix}"
    else:
        reason = (
            f"unexpected {type(outcome).__name__}: {str(outcome).splitlines()[0] if str(outcome) else 'no message'}"
        )
        log.error("%s: %s", name, reason, exc_info=outcome)
    # A retry would exceed the budget again.
    kind: RefusalKind = "unsupported" if isinstance(outcome, BudgetExceeded) else "infrastructure"
    return Trial(name, outcome="refused", refusal=Refusal(kind, reason))


def merge_copies(trials: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Return the trials with each variant once: the first candidate keeps it and lists the others, which refer to the first.

    Measuring one artifact twice would give it two verdicts, and two chances to pass.
    """
    first: dict[str, str] = {}
    copies: dict[str, tuple[str, ...]] = {}
    for trial in trials:
        if trial.variant is None:
            continue
        name = first.setdefault(digest_values(trial.variant.measured_as), trial.candidate)
        if name != trial.candidate:
            copies[name] = (*copies.get(name, ()), trial.candidate)
            log.info("%s: the same artifact as %s, which is judged for both", trial.candidate, name)
    same_as = {copy: name for name, others in copies.items() for copy in others}
    return tuple(
        _copy_of(trial, same_as[trial.candidate])
        if trial.candidate in same_as
        else replace(trial, copies=(*trial.copies, *copies.get(trial.candidate, ())))
        for trial in trials
    )


def _copy_of(trial: Trial, name: str) -> Trial:
    refusal = Refusal("copy", f"the same artifact as {name}, which is judged for both")
    return Trial(
        trial.candidate,
        outcome="refused",
        refusal=refusal,
        mlflow_run_id=trial.mlflow_run_id,
        cached=trial.cached,
        seconds=trial.seconds,
    )
