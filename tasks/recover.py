"""Step 6, second half: what fails on accuracy alone is made again, with its most sensitive parts in float."""

from __future__ import annotations

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

# Tried in turn until one passes: more than a sixteenth of the parts is not worth a look at each number between.
KEPT_PARTS = (1, 2, 3, 4, 6, 8, 12, 16)


def recover_trials(
    run: Run, given: Given, inventory: Inventory, baseline: Accuracy, trials: tuple[Trial, ...]
) -> tuple[Trial, ...]:
    """Further trials: of the candidate that is worth recovering, with ever more parts in float until its accuracy passes.

    That is the fastest one of INT8 static whose accuracy alone does not pass, if it is faster than all that pass: with parts
    in float it only becomes slower. Each attempt is a candidate with a name of its own, `...-keep4@ort-cpu`.
    """
    chosen = choose_recovered(trials)
    if chosen is None:
        return ()
    candidate = decode(chosen.candidate)
    log.info("recovering %s: its accuracy alone does not pass", candidate.name)
    size = model_bytes(given.source.onnx_path)
    attempts: list[Trial] = []
    for kept in KEPT_PARTS:
        name = replace(candidate, kept_parts=kept).name
        state = make_candidate(run, given, inventory, baseline, name, return_state=True)
        trial = judge_trial(run.job, trial_of(name, state.result(raise_on_failure=False)), baseline, size)
        if trial.outcome == "passed":
            # So far by accuracy: what is fast enough is seen once it is timed.
            (trial,) = measure_saturation(run, given, inventory, (trial,))
            state = measure_latency(run, given, inventory, trial, return_state=True)
            trial = judge_trial(run.job, trial_of(name, state.result(raise_on_failure=False)), baseline, size)
            return (*attempts, trial)
        attempts.append(trial)
        if trial.refusal is not None:
            break
    return tuple(attempts)


def choose_recovered(trials: tuple[Trial, ...]) -> Trial | None:
    """The fastest trial of INT8 static that fails on accuracy alone, unless one that passes is as fast."""
    passed = [trial.latency.speedup.value for trial in trials if trial.outcome == "passed" and trial.latency]
    worth = [
        (trial.latency.speedup.value, trial)
        for trial in trials
        if trial.latency and _fails_on_accuracy_alone(trial) and _is_recoverable(trial.candidate)
    ]
    speedup, fastest = max(worth, key=lambda each: each[0], default=(0.0, None))
    return fastest if speedup > max(passed, default=0.0) else None


def _fails_on_accuracy_alone(trial: Trial) -> bool:
    return {verdict.gate for verdict in trial.verdicts if verdict.outcome != "pass"} == {"drop"}


def _is_recoverable(name: str) -> bool:
    candidate = decode(name)
    return candidate.precision == "int8" and not candidate.dynamic and not candidate.kept_parts
