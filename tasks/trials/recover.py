"""Step 6, second half: remake a candidate that fails on accuracy alone, with its most sensitive parts in float."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from tasks.engines.catalog import find_target
from tasks.measure.coverage import KernelCosts, make_kernel_costs
from tasks.ptq.build_variant import ranked_form
from tasks.ptq.sensitivity import Sensitivity
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.storage.product import Product
from tasks.trials.gather import merge_copies, try_step
from tasks.trials.inspect_variant import measure_saturation
from tasks.trials.judge import judge_trial, judged_data_of
from tasks.trials.judge_on_samples import JudgedData, with_confidence
from tasks.trials.make_candidate import make_candidate
from tasks.trials.materials import materials_of
from tasks.trials.measure_latency import measure_latency
from validators.errors import CandidateRefused
from validators.gates.catalog import GATES
from validators.gates.verdict_rules import confidence_of_each
from validators.job.candidate_name import decode
from validators.records.measurements import Accuracy
from validators.records.run import Trial, Variant
from validators.records.verdicts import RankedPart, Recovery

# Speedups within this ratio count as equal: the candidate that loses less is recovered, and none if one already passes.
NEARLY_AS_FAST = 0.9
# Gates on losses from quantization, which shrink with more of the model in float.
LOSSES = frozenset(gate.name for gate in GATES if gate.is_loss)


@dataclass(frozen=True)
class Recovered:
    """Further trials, and a record of the recovery; None if there was nothing to recover, or no attempt was allowed."""

    trials: tuple[Trial, ...] = ()
    recovery: Recovery | None = None


def recover_trials(run: LoadedRun, baseline: Accuracy, trials: tuple[Trial, ...]) -> Recovered:
    """Recover the most promising failed candidate, with the fewest parts in float with which its accuracy passes.

    Each attempt is a candidate with its own name, `...-keep4@ort-cpu`. The result holds the attempts that fail, and the one
    that passes with the fewest parts. Only that one is timed, since more parts in float only make it slower.
    """
    chosen = choose_recovered(trials)
    if chosen is None or not run.job.budgets.recovery:
        return Recovered()
    candidate = decode(chosen.candidate)
    log.info("recovering %s: its accuracy alone does not pass", candidate.name)
    judged_data = with_stricter_confidence(judged_data_of(run, baseline))
    attempts: dict[int, Trial] = {}

    def attempt(kept: int) -> bool | None:
        name = replace(candidate, kept_parts=kept).name
        trial = judge_trial(judged_data, try_step(name, make_candidate, run, baseline, name))
        attempts[kept] = trial
        return None if trial.refusal else trial.outcome == "passed"

    fewest = fewest_parts(attempt, run.job.budgets.recovery)
    ranking = _ranking(run, chosen, tuple(attempts.values()))
    # Attempts that made the same artifact count as one evaluation of the samples.
    count = sum(not trial.is_copy for trial in merge_copies(tuple(attempts.values())))
    recovery = Recovery(chosen.candidate, ranked_parts(ranking, fewest or 0), count, run.job.budgets.recovery)
    failed = tuple(trial for _, trial in sorted(attempts.items()) if trial.outcome != "passed")
    if fewest is None:
        log.info("nothing was recovered in %d attempts", len(attempts))
        return Recovered(failed, recovery)
    log.info("%s passes with %d parts in float, found in %d attempts", candidate.name, fewest, len(attempts))
    # So far it passes on accuracy; whether it is fast enough is known once it is timed.
    (trial,) = measure_saturation(run, (attempts[fewest],))
    confidence = judged_data.job.gates.confidence
    timed = judge_trial(judged_data, try_step(trial.candidate, measure_latency, run, trial, confidence))
    recovery = _with_costs(run, chosen.variant, trial.variant, recovery)
    return Recovered((*failed, timed), replace(recovery, recovered=timed.candidate))


def with_stricter_confidence(judged_data: JudgedData) -> JudgedData:
    """Return the data to judge attempts on, with a stricter confidence if nothing is confirmed afterwards.

    Each attempt on the same samples is another chance to pass by luck. Confirmation samples correct for that. Without them
    (`confirmation.share: 0`), attempts share the error that `gates.confidence` allows (Bonferroni).
    """
    job = judged_data.job
    if job.confirmation.share or not job.budgets.recovery:
        return judged_data
    confidence = confidence_of_each(job.gates.confidence, job.budgets.recovery)
    return replace(judged_data, job=with_confidence(job, confidence))


def fewest_parts(attempt: Callable[[int], bool | None], budget: int) -> int | None:
    """Return the smallest number of parts for which `attempt` returns True, assuming that larger numbers succeed too.

    The search takes about twice the logarithm of the result: it doubles the number until an attempt succeeds, then bisects.
    When the `budget` of attempts is spent, it returns the smallest number that succeeded, or None. It also returns None if
    an attempt returns None before one succeeded.

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
    """Return the timed trial to recover, by `choose_promising`; None if there is none."""
    passed = [trial.latency.speedup.value for trial in trials if trial.outcome == "passed" and trial.latency]
    worth = {
        trial.candidate: (trial.latency.speedup.value, drop_of(trial))
        for trial in trials
        if trial.latency and fails_on_accuracy_alone(trial) and is_recoverable(trial.candidate)
    }
    chosen = choose_promising(worth, max(passed, default=0.0))
    return next((trial for trial in trials if trial.candidate == chosen), None)


def choose_promising(worth: Mapping[str, tuple[float, float]], passed: float) -> str | None:
    """Return the fastest of the candidates, or one nearly as fast that loses less, given their speedups and drops.

    Return None if a candidate nearly as fast passes, where `passed` is the best speedup that does: parts in float only make a
    candidate slower.

    >>> worth = {"a": (3.0, 0.09), "b": (2.8, 0.03), "c": (2.0, 0.01)}
    >>> choose_promising(worth, passed=1.5), choose_promising(worth, passed=2.9)
    ('b', None)
    """
    fastest = max((speedup for speedup, _ in worth.values()), default=0.0)
    if passed >= NEARLY_AS_FAST * fastest:
        return None
    near = {name: (drop, -speedup) for name, (speedup, drop) in worth.items() if speedup >= NEARLY_AS_FAST * fastest}
    return min(near, key=near.__getitem__)


def drop_of(trial: Trial) -> float:
    """Return the drop to compare by. NaN counts as Inf, since the result of `min` would depend on its position."""
    if trial.drop is None:
        return 0.0
    return math.inf if math.isnan(trial.drop.value) else trial.drop.value


def fails_on_accuracy_alone(trial: Trial) -> bool:
    """Return True if only gates on losses from quantization are against the trial."""
    against = {verdict.gate for verdict in trial.against}
    return bool(against) and against <= LOSSES


def is_recoverable(name: str) -> bool:
    """Return True if recovery can make a candidate of this name again with parts in float."""
    candidate = decode(name)
    is_ours = candidate.precision == "int8" and not candidate.given and not candidate.kept_parts
    return is_ours and find_target(candidate.target).recovers_parts


def _ranking(run: LoadedRun, chosen: Trial, attempts: tuple[Trial, ...]) -> tuple[Sensitivity, ...]:
    """Return the ranking that the attempts used, from the store; empty if no attempt got that far."""
    if all(trial.refusal and trial.refusal.kind == "infrastructure" for trial in attempts):
        return ()
    try:
        return materials_of(run).ranking(ranked_form(decode(chosen.candidate)))
    except CandidateRefused:  # the attempts were refused for the same reason
        return ()


def ranked_parts(ranking: tuple[Sensitivity, ...], kept: int) -> tuple[RankedPart, ...]:
    """Return the parts of a ranking as records, of which the first `kept` are left in float."""
    return tuple(
        RankedPart(
            one.part.name,
            one.part.nodes,
            one.noise if math.isfinite(one.noise) else None,
            one.weight_outlier_ratio,
            one.activation_outlier_ratio,
            kept=rank < kept,
        )
        for rank, one in enumerate(ranking)
    )


def _with_costs(run: LoadedRun, quantized: Variant | None, recovered: Variant | None, recovery: Recovery) -> Recovery:
    """Return the recovery with the cost of its kept parts, if both variants can be profiled."""
    if quantized is None or recovered is None:
        return recovery
    try:
        before, after = (_kernel_costs(run, variant) for variant in (quantized, recovered))
    except CandidateRefused as error:
        log.info("kept parts were not profiled: %s", error.found)
        return recovery
    parts = tuple(
        replace(part, cost_us=part_cost(part.nodes, before.by_node, after.by_node)) if part.kept else part
        for part in recovery.parts
    )
    other = after.total - before.total - sum(part.cost_us for part in parts if part.cost_us is not None)
    return replace(recovery, parts=parts, other_us=other)


def part_cost(nodes: tuple[str, ...], quantized: Mapping[str, float], in_float: Mapping[str, float]) -> float | None:
    """Return the additional time of the nodes in float over INT8, given both times by node; None if any is unknown.

    >>> part_cost(("a", "b"), {"a": 3.0, "b": 4.0}, {"a": 9.0, "b": 5.0}), part_cost(("a",), {"a": 3.0}, {})
    (7.0, None)
    """
    if any(node not in times for node in nodes for times in (quantized, in_float)):
        return None
    return sum(in_float[node] - quantized[node] for node in nodes)


def _kernel_costs(run: LoadedRun, variant: Variant) -> KernelCosts:
    """Return the kernel times of a variant at the job's first operating point."""
    point = run.job.measurement.points[0]
    inputs = (variant.measured_as, run.evidence.evaluation.file.digest, asdict(point), run.inventory.device_key)
    make = partial(make_kernel_costs, variant, run.evidence, point)
    with run.clock.work("profile kept parts"):
        return run.store.make(Product("kernel-times", inputs, KernelCosts, make))[0]
