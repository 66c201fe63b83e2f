"""From what a candidate's task came to, to a trial: the run goes on when one candidate fails."""

from __future__ import annotations

from tasks.context import log
from tasks.storage.space import StorageFull
from validators.errors import BudgetExceeded, InfrastructureError, RefusalKind
from validators.records import Refusal, Trial


def trial_of(name: str, outcome: Trial | BaseException) -> Trial:
    """The trial, or the refusal of a candidate whose task failed after its retries.

    Raises:
        StorageFull: every further candidate would fail the same way.
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
    # A budget would be exceeded again: another try is worth nothing.
    kind: RefusalKind = "unsupported" if isinstance(outcome, BudgetExceeded) else "infrastructure"
    return Trial(name, outcome="refused", refusal=Refusal(kind, reason))
