"""Step 6, second half: what fails on accuracy alone is made again, with its most sensitive parts in float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tasks.context import Given, Run, log
from tasks.gather import trial_of
from tasks.judge import judge_trial
from tasks.make_candidate import make_candidate
from tasks.measure_latency import measure_latency
from tasks.measure_saturation import measure_saturation
from tasks.ptq.graph import model_bytes
from validators.recipe import decode
from validators.records import Accuracy, Inventory, Trial

# Of two candidates that are nearly as fast, the one with less to mend is recovered.
NEARLY_AS_FAST = 0.9


def recover_trials(
    run: Run, given: Given, inventory: Inventory, baseline: Accuracy, trials: tuple[Trial, ...]
) -> tuple[Trial, ...]:
    """Further trials: of the candidate that is worth recovering, with as few parts in float as its accuracy passes with.

    Each is a candidate with a name of its own, `...-keep4@ort-cpu`. Given back are those that fail, and the one that passes
    with the fewest parts, which alone is timed: with more it is only slower.
    """
    chosen = choose_recovered(trials)
    if chosen is None:
        return ()
    candidate = decode(chosen.candidate)
    log.info("recovering %s: its accuracy alone does not pass", candidate.name)
    size = model_bytes(given.source.onnx_path)
    attempts: dict[int, Trial] = {}

    def attempt(kept: int) -> bool | None:
        name = replace(candidate, kept_parts=kept).name
        state = make_candidate(run, given, inventory, baseline, name, return_state=True)
        trial = judge_trial(run.job, trial_of(name, state.result(raise_on_failure=False)), baseline, size)
        attempts[kept] = trial
        return None if trial.refusal else trial.outcome == "passed"

    fewest = fewest_parts(attempt, run.job.budgets.recovery)
    failed = tuple(trial for _, trial in sorted(attempts.items()) if trial.outcome != "passed")
    if fewest is None:
        log.info("nothing was recovered in %d attempts", len(attempts))
        return failed
    log.info("%s passes with %d parts in float, found in %d attempts", candidate.name, fewest, len(attempts))
    # So far by accuracy: what is fast enough is seen once it is timed.
    (trial,) = measure_saturation(run, given, inventory, (attempts[fewest],))
    state = measure_latency(run, given, inventory, trial, return_state=True)
    return *failed, judge_trial(
        run.job, trial_of(trial.candidate, state.result(raise_on_failure=False)), baseline, size
    )


def fewest_parts(attempt: Callable[[int], bool | None], budget: int) -> int | None:
    """The least number for which `attempt` holds, in twice the logarithm of it, where it holds for all above one that it does.

    It doubles until it holds, then halves the gap between the last that failed and the first that held. When the `budget` of
    attempts is spent, or one says None, it is the least that was found to hold, or None.

    >>> fewest_parts(lambda kept: kept >= 5, 12)
    5
    >>> fewest_parts(lambda kept: kept >= 5, 4)  # 1, 2, 4 and 8
    8
    """
    fails, holds, left = 0, None, budget
    while left and holds is None:
        left -= 1
        kept = max(1, 2 * fails)
        told = attempt(kept)
        if told is None:
            return None
        fails, holds = (fails, kept) if told else (kept, None)
    while left and holds is not None and holds - fails > 1:
        left -= 1
        kept = (fails + holds) // 2
        if attempt(kept):
            holds = kept
        else:
            fails = kept
    return holds


def choose_recovered(trials: tuple[Trial, ...]) -> Trial | None:
    """The fastest trial of INT8 that fails on accuracy alone, or one nearly as fast that loses less; None where one passes
    that is as fast: with parts in float a candidate only becomes slower."""
    passed = [trial.latency.speedup.value for trial in trials if trial.outcome == "passed" and trial.latency]
    worth = [
        (trial.latency.speedup.value, trial)
        for trial in trials
        if trial.latency and _fails_on_accuracy_alone(trial) and _is_recoverable(trial.candidate)
    ]
    fastest = max((speedup for speedup, _ in worth), default=0.0)
    if fastest <= max(passed, default=0.0):
        return None
    near = [
        (trial.drop.value if trial.drop else 0.0, -speedup, trial)
        for speedup, trial in worth
        if speedup >= NEARLY_AS_FAST * fastest
    ]
    return min(near, key=lambda each: each[:2])[2]


def _fails_on_accuracy_alone(trial: Trial) -> bool:
    return {verdict.gate for verdict in trial.verdicts if verdict.outcome != "pass"} == {"drop"}


def _is_recoverable(name: str) -> bool:
    candidate = decode(name)
    return candidate.precision == "int8" and candidate.target == "ort-cpu" and not candidate.kept_parts
