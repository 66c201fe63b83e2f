"""Dispatch of the steps that must run on the target: to its workers, or in this process."""

from __future__ import annotations

import os
from typing import Any, TypeVar

from tasks.evidence.target_inventory import take_target_inventory
from tasks.run.context import Run, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.settings import hands_to_workers, worker_wait_seconds
from tasks.workers.order_tracking import hand_over, published_inventory, wait_for
from tasks.workers.orders import Order, code_version, keep_arguments, place_marker, place_of, read_answer
from tasks.workers.steps import CANDIDATE, Step
from validators.errors import CandidateRefused, InfrastructureError, QuantgateError, StorageFull, WorkLost
from validators.job.candidate_name import decode
from validators.records.measurements import Accuracy
from validators.records.run import Inventory, Refusal, Trial

Outcome = TypeVar("Outcome")


def inventory_of_target(run: Run) -> Inventory:
    """Return the inventory of the device that candidates are measured on: this machine's, or the target's workers'.

    Raises:
        InfrastructureError: the target has no worker, or workers on several kinds of devices.
    """
    if not hands_to_workers():
        return take_target_inventory(run)
    with run.clock.work("workers"):
        inventory = published_inventory(run.job.target, worker_wait_seconds())
    log.info("inventory of the workers of %s: %s", run.job.target, inventory.device_key)
    return inventory


def at_target(step: Step[Outcome], run: LoadedRun, *records: Any) -> Outcome:
    """Return the result of a step that runs here or, if it is needed, on a worker of the job's target.

    Raises:
        QuantgateError: the step raised it.
        InfrastructureError: no worker finished the step.
    """
    if not hands_to_workers() or not step.needed(run, *records):
        return step.call(run, *records)
    order = _order(run, step, step.name, records)
    (answer,) = _gathered(run, step, [order])
    if isinstance(answer, QuantgateError):
        raise answer
    found: Outcome = answer
    return found


def try_candidates(run: LoadedRun, baseline: Accuracy) -> tuple[Trial, ...]:
    """Make and time every candidate of the job on a worker of its target; return the trials in the job's order.

    A candidate whose target has no worker, or whose worker died, is refused as `infrastructure`.

    Raises:
        StorageFull: every further candidate would fail the same way.
    """
    names = run.job.candidates_without(run.inventory.absent)
    # Simulations take longest: started last, they would leave the other workers idle.
    by_length = sorted(names, key=lambda name: not decode(name).is_simulated)
    orders = [_order(run, CANDIDATE, name, (baseline, name)) for name in by_length]
    answers = dict(zip(by_length, _gathered(run, CANDIDATE, orders), strict=True))
    return tuple(_trial(name, answers[name]) for name in names)


def _order(run: LoadedRun, step: Step[Any], label: str, records: tuple[Any, ...]) -> Order:
    return Order(
        step=step.name,
        label=label,
        place=place_of(run.state, run.store),
        marker=place_marker(run.state, run.store),
        code=code_version(),
        device=run.inventory.device_key,
        arguments=keep_arguments(run.store, records, step.takes),
        # Unique per call: a refusal may succeed next time, and the store keeps variants under their own keys.
        answer=os.urandom(16).hex(),
    )


def _gathered(run: Run, step: Step[Any], orders: list[Order]) -> list[Any]:
    """Return the answer or the error of each order; an order that was lost with its worker is retried once."""
    with run.clock.work("workers"):
        ended = wait_for(run, hand_over(run.job, orders), worker_wait_seconds())
        lost = [order for order in orders if isinstance(ended[order.answer], WorkLost)]
        if lost:
            again = wait_for(run, hand_over(run.job, lost), worker_wait_seconds())
            ended |= {answer: _after(ended[answer], failure) for answer, failure in again.items()}
    answers: list[Any] = []
    for order in orders:
        failure = ended[order.answer]
        try:
            answers.append(failure or read_answer(run.store, order, step.gives))
        except QuantgateError as error:
            answers.append(error)
    return answers


def _after(first: InfrastructureError | None, second: InfrastructureError | None) -> InfrastructureError | None:
    """Return the second failure, with the first one in its text."""
    if first is None or second is None:
        return second
    return InfrastructureError(
        found=f"{first.found}; retried: {second.found}", expected=second.expected, fix=second.fix
    )


def _trial(name: str, answer: Any) -> Trial:
    if isinstance(answer, Trial):
        log.info("%s: its worker has answered", name)
        return answer
    assert isinstance(answer, QuantgateError)
    if isinstance(answer, StorageFull):
        raise answer
    kind = answer.kind if isinstance(answer, CandidateRefused) else "infrastructure"
    reason = f"{answer.found}; expected {answer.expected}; {answer.fix}"
    log.warning("%s: %s", name, reason)
    return Trial(name, outcome="refused", refusal=Refusal(kind, reason))
