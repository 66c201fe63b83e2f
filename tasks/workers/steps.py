"""The steps that must run on the target, and their execution by a worker."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tasks.champion.compare_champion import compare_with_champion
from tasks.champion.promote import promote
from tasks.evidence.load_data import load_data
from tasks.evidence.resolve_source import resolve_source
from tasks.evidence.target_inventory import take_target_inventory
from tasks.run.context import Run, log, start_run
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.run.settings import state_folder, store_place
from tasks.storage.blobs import is_address
from tasks.storage.store import open_store
from tasks.trials.confirm import ConfirmedTrials, confirm_winner
from tasks.trials.gather import try_step
from tasks.trials.judge import rank_passing
from tasks.trials.make_candidate import make_candidate
from tasks.trials.measure_baseline import measure_baseline
from tasks.trials.measure_latency import halves_of, measure_beside_fp16, measure_latency
from tasks.trials.recover import Recovered, choose_recovered, is_worth_a_search, recover_trials
from tasks.trials.user_step import run_own_step
from tasks.workers.device_limits import device_phase, timing_phase
from tasks.workers.orders import Order, code_version, keep_answer, place_marker, place_of, read_arguments
from validators.errors import InfrastructureError, QuantgateError
from validators.gates.approval import Approval
from validators.job.job import Job
from validators.records.measurements import Accuracy
from validators.records.run import Champion, Trial

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Step(Generic[Outcome]):
    """A step `call(run, *records)`, with the types of its records and of its result.

    `times` is True if the whole step measures latency and must be alone on a host; a step that measures only at its end holds
    the limit itself. `needed(run, *records)` is False if the step has nothing to do, so that no worker is needed.
    """

    name: str
    call: Callable[..., Outcome]
    takes: tuple[Any, ...]
    gives: Any
    times: bool = False
    needed: Callable[..., bool] = lambda *_: True


def try_candidate(run: LoadedRun, baseline: Accuracy, name: str) -> Trial:
    """Make one candidate, check its kernels and accuracy, and then time it."""
    trial = try_step(name, make_candidate, run, baseline, name)
    if trial.variant is None:
        return trial
    with timing_phase(run.inventory):
        return try_step(name, measure_latency, run, trial)


def _may_recover(run: Run, _: Accuracy, trials: tuple[Trial, ...]) -> bool:
    chosen = choose_recovered(trials, run.job.objective) if run.job.budgets.recovery else None
    return chosen is not None and is_worth_a_search(chosen, run.job.objective)


def _has_own_step(run: Run, _record: str, trials: tuple[Trial, ...]) -> bool:
    return run.job.step is not None and any(trial.outcome == "passed" for trial in trials)


def _may_confirm(run: Run, _: Accuracy, trials: tuple[Trial, ...]) -> bool:
    return (run.job.confirmation.share > 0 or run.job.calibration.draws > 0) and bool(rank_passing(run.job, trials))


def _may_challenge(_run: Run, _: Accuracy, best: Trial, champion: Champion | None) -> bool:
    assert best.variant is not None
    return champion is not None and champion.identity != best.variant.identity


_TRIALS = tuple[Trial, ...]
BASELINE = Step("baseline", measure_baseline, (), Accuracy)
CANDIDATE = Step("candidate", try_candidate, (Accuracy, str), Trial)
BESIDE_FP16 = Step(
    "fp16",
    measure_beside_fp16,
    (_TRIALS,),
    _TRIALS,
    times=True,
    needed=lambda _, trials: bool(halves_of(trials)),
)
RECOVERY = Step("recovery", recover_trials, (Accuracy, _TRIALS), Recovered, times=True, needed=_may_recover)
CONFIRMATION = Step(
    "confirmation", confirm_winner, (Accuracy, _TRIALS), ConfirmedTrials, times=True, needed=_may_confirm
)
CHAMPION = Step(
    "champion", compare_with_champion, (Accuracy, Trial, Champion | None), Trial, times=True, needed=_may_challenge
)
OWN_STEP = Step("own step", run_own_step, (str, _TRIALS), _TRIALS, needed=_has_own_step)
# Promotion runs where the variant was judged: it queries the registered version, and an engine runs nowhere else.
PROMOTION = Step("promotion", promote, (Approval, Champion | None, str), Champion)
STEPS: dict[str, Step[Any]] = {
    step.name: step
    for step in (BASELINE, CANDIDATE, BESIDE_FP16, RECOVERY, OWN_STEP, CONFIRMATION, CHAMPION, PROMOTION)
}


def fulfil(job: Job, order: Order) -> None:
    """Do an order's step and store its answer: a record, or an error of quantgate.

    Raises:
        InfrastructureError: this worker's state folder, code or device differs from what the run expects.
    """
    _check_place(order)
    # Each candidate is an order of its own, and the confirmation is another.
    run = start_run(job, processes=len(job.candidate_names) + 1)
    inventory = take_target_inventory(run)
    if inventory.device_key != order.device:
        raise InfrastructureError(
            found=f"a worker on {inventory.device_key}",
            expected=f"the device that the run was planned for, {order.device}",
            fix="use one kind of device per target; workers on another kind need their own Prefect server",
        )
    step = STEPS[order.step]
    outcome: Any
    try:
        source = resolve_source(run)
        loaded = with_inputs(run, source, load_data(run, source), inventory)
        records = read_arguments(run.store, order.arguments, step.takes)
        with device_phase(inventory), timing_phase(inventory) if step.times else nullcontext():
            outcome = step.call(loaded, *records)
    except QuantgateError as error:
        log.warning("%s: %s; expected %s; %s", order.label, error.found, error.expected, error.fix)
        outcome = error
    keep_answer(run.store, order, outcome, step.gives)


def _check_place(order: Order) -> None:
    """Check that this worker and the run use the same files and the same code."""
    state = state_folder()
    store = open_store(state, store_place())
    place = place_of(state, store)
    if place != order.place or place_marker(state, store) != order.marker:
        is_shared = is_address(order.place)
        what, setting = ("store", "QUANTGATE_STORE") if is_shared else ("state folder", "QUANTGATE_STATE")
        raise InfrastructureError(
            found=f"a worker with another {what}: {place}",
            expected=f"the {what} of the run, {order.place}, {'' if is_shared else 'on a disk '}that both share",
            fix=f"start the worker with {setting}={order.place}, where this is the {what} of the run",
        )
    if code_version() != order.code:
        raise InfrastructureError(
            found="a worker with another version of quantgate",
            expected="the version of the run: another one makes other variants under the same names",
            fix="install the same version for the run and the worker, and restart the worker",
        )
