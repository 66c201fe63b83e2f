"""Step 6, second half: search the cheapest forms of a candidate's parts with which its accuracy passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from tasks.engines.catalog import find_target
from tasks.ptq.build_variant import ranked_form
from tasks.ptq.search import FLOAT, Assigned, Part, find_frontier, point_of
from tasks.ptq.sensitivity import Sensitivity
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.trials.gather import merge_copies, try_step
from tasks.trials.inspect_variant import measure_saturation
from tasks.trials.judge import judge_trial, judged_data_of
from tasks.trials.judge_on_samples import JudgedData, with_confidence
from tasks.trials.make_candidate import make_candidate
from tasks.trials.materials import cost_unit, materials_of
from tasks.trials.measure_latency import measure_latency
from validators.errors import CandidateRefused
from validators.gates.catalog import GATES
from validators.gates.verdict_rules import confidence_of_each
from validators.job.candidate_name import Candidate, decode
from validators.records.measurements import Accuracy
from validators.records.run import Trial
from validators.records.verdicts import FrontierPoint, RankedPart, Recovery

# Speedups within this ratio count as equal: the candidate that loses less is recovered, and none if one already passes.
NEARLY_AS_FAST = 0.9
# Gates on losses from quantization, which shrink with more precise forms.
LOSSES = frozenset(gate.name for gate in GATES if gate.is_loss)


@dataclass(frozen=True)
class Recovered:
    """Further trials, and a record of the recovery; None if there was nothing to recover, or no attempt was allowed."""

    trials: tuple[Trial, ...] = ()
    recovery: Recovery | None = None


def recover_trials(run: LoadedRun, baseline: Accuracy, trials: tuple[Trial, ...]) -> Recovered:
    """Find the cheapest forms of the parts of the most promising candidate with which its accuracy passes.

    That candidate fails on accuracy alone, or it is the best that passes: of INT4 by the objective `size`, smaller forms of its
    weights are tried, and others have none. Each attempt is a candidate with its own name, `...-40db@ort-cpu`. The result holds
    the attempts that fail, and the cheapest that passes. Only that one is timed, since a lower noise only costs more, and the
    next one that passes, which may be confirmed where the cheapest is not.
    """
    chosen = choose_recovered(trials, run.job.objective)
    if chosen is None or not run.job.budgets.recovery:
        return Recovered()
    candidate = decode(chosen.candidate)
    passes = chosen.outcome == "passed"
    if not is_worth_a_search(chosen, run.job.objective):
        return Recovered((), Recovery(chosen.candidate, (), 0, run.job.budgets.recovery, passes=True))
    log.info("%s %s", "searching smaller forms of" if passes else "recovering", candidate.name)
    try:
        parts = materials_of(run).parts(ranked_form(candidate))
    except CandidateRefused as error:
        log.info("nothing was recovered: %s; expected %s", error.found, error.expected)
        return Recovered((), Recovery(chosen.candidate, (), 0, run.job.budgets.recovery, passes=passes))
    own = point_of(parts, (0,) * len(parts), 0)
    frontier = [one for one in find_frontier(parts) if (one.cost < own.cost if passes else one.noise < own.noise)]
    names = [replace(candidate, sqnr_db=point.level_db).name for point in frontier]
    judged_data = with_stricter_confidence(judged_data_of(run, baseline))
    attempts: dict[str, Trial] = {}

    def attempt(index: int) -> bool | None:
        name = names[index]
        trial = judge_trial(judged_data, try_step(name, make_candidate, run, baseline, name))
        attempts[name] = trial
        return None if trial.refusal else loses_little(trial)

    cheapest = find_cheapest(attempt, len(frontier), run.job.budgets.recovery, first_guess(chosen, own, frontier))
    # Attempts that made the same artifact count as one evaluation of the samples.
    count = sum(not trial.is_copy for trial in merge_copies(tuple(attempts.values())))
    drawn = tuple(_as_record(own, point, attempts.get(name)) for point, name in zip(frontier, names, strict=True))
    recovery = Recovery(
        chosen.candidate,
        _as_parts(run, candidate, parts, None if cheapest is None else frontier[cheapest]),
        count,
        run.job.budgets.recovery,
        frontier=drawn,
        cost_unit=cost_unit(run, candidate),
        passes=passes,
    )
    wanted = () if cheapest is None else to_time(names[cheapest:], attempts, confirmed=run.job.confirmation.share > 0)
    failed = tuple(
        attempts[name]
        for name in names
        if name in attempts and attempts[name].outcome != "passed" and name not in wanted
    )
    if cheapest is None:
        log.info("nothing was recovered in %d attempts", len(attempts))
        return Recovered(failed, recovery)
    log.info("%s passes in accuracy, found in %d attempts", names[cheapest], len(attempts))
    # So far it passes on accuracy; whether it is fast enough is known once it is timed.
    confidence = judged_data.job.gates.confidence
    timed = tuple(
        judge_trial(judged_data, try_step(trial.candidate, measure_latency, run, trial, confidence))
        for trial in measure_saturation(run, tuple(attempts[name] for name in wanted))
    )
    return Recovered((*failed, *timed), replace(recovery, recovered=names[cheapest]))


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


def find_cheapest(attempt: Callable[[int], bool | None], count: int, budget: int, guess: int = 0) -> int | None:
    """Return the first of `count` points for which `attempt` returns True, assuming that later ones succeed too.

    It tries the guess first, then bisects what is left. When the `budget` of attempts is spent, or an attempt returns None, it
    returns the first that succeeded so far; None if none did.

    >>> find_cheapest(lambda point: point >= 5, 32, budget=6)
    5
    >>> find_cheapest(lambda point: point >= 5, 32, budget=2)  # 0 and 16
    16
    """
    fails, holds = -1, count
    for _ in range(budget):
        if holds - fails <= 1:
            break
        told = attempt(guess)
        if told is None:
            break
        fails, holds = (fails, guess) if told else (guess, holds)
        guess = (fails + holds) // 2
    return holds if holds < count else None


def to_time(passing: Sequence[str], attempts: Container[str], *, confirmed: bool) -> Sequence[str]:
    """Return the cheapest point that passes and, if the winner is `confirmed` on other samples, the next one that was tried.

    >>> to_time(["-24db", "-25db", "-26db", "-28db"], {"-24db", "-26db", "-28db"}, confirmed=True)
    ['-24db', '-26db']
    """
    return [name for name in passing if name in attempts][: 2 if confirmed else 1]


def first_guess(trial: Trial, own: Assigned, frontier: Sequence[Assigned]) -> int:
    """Return the first point whose noise is to the candidate's own as the bound of its losses is to their values."""
    shares = [
        (verdict.value if verdict.high is None else verdict.high) / verdict.bound
        for verdict in trial.verdicts
        if verdict.gate in LOSSES and verdict.value is not None and verdict.direction == "at_most" and verdict.bound > 0
    ]
    share = max(shares, default=1.0)
    if not math.isfinite(share) or share <= 0:
        return len(frontier) // 2
    most = own.noise / share
    return next((index for index, point in enumerate(frontier) if point.noise <= most), max(0, len(frontier) - 1))


def choose_recovered(trials: tuple[Trial, ...], objective: str = "latency") -> Trial | None:
    """Return the measured trial to recover, by `choose_promising`; None if there is none.

    Smaller files are better by the objective `size`, so that a candidate there counts with the inverse of its bytes. If none is
    to be recovered, it is the best that passes, if its parts can have other forms.
    """

    def worth_of(trial: Trial) -> float | None:
        if objective == "size":
            return 1 / trial.variant.size_bytes if trial.variant else None
        return trial.latency.speedup.value if trial.latency else None

    passed = {
        trial.candidate: value
        for trial in trials
        if trial.outcome == "passed" and (value := worth_of(trial)) is not None
    }
    worth = {
        trial.candidate: (value, drop_of(trial))
        for trial in trials
        if fails_on_accuracy_alone(trial) and is_recoverable(trial.candidate) and (value := worth_of(trial)) is not None
    }
    chosen = choose_promising(worth, max(passed.values(), default=0.0))
    if chosen is None and passed:
        best = max(passed, key=passed.__getitem__)
        chosen = best if is_recoverable(best) else None
    return next((trial for trial in trials if trial.candidate == chosen), None)


def is_worth_a_search(chosen: Trial, objective: str) -> bool:
    """Return False if other forms of the parts of this candidate are only slower or larger, and it passes."""
    return chosen.outcome != "passed" or (objective == "size" and decode(chosen.candidate).precision == "int4")


def choose_promising(worth: Mapping[str, tuple[float, float]], passed: float) -> str | None:
    """Return the fastest of the candidates, or one nearly as fast that loses less, given their speedups and drops.

    Return None if a candidate nearly as fast passes, where `passed` is the best speedup that does: other forms of its parts
    only make a candidate slower, or larger.

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


def loses_little(trial: Trial) -> bool:
    """Return True if no gate on losses is against the trial; others, such as coverage, get worse with more precise forms."""
    return LOSSES.isdisjoint(verdict.gate for verdict in trial.against)


def fails_on_accuracy_alone(trial: Trial) -> bool:
    """Return True if only gates on losses from quantization are against the trial."""
    against = {verdict.gate for verdict in trial.against}
    return bool(against) and against <= LOSSES


def is_recoverable(name: str) -> bool:
    """Return True if recovery can make a candidate of this name again with other forms of its parts."""
    candidate = decode(name)
    is_plain = not (candidate.given or candidate.sqnr_db)
    is_searched = candidate.precision in find_target(candidate.target).searches
    return is_plain and is_searched and candidate.rounding.keeps_kernels


def _as_record(own: Assigned, point: Assigned, trial: Trial | None) -> FrontierPoint:
    """Return a point as a record; its cost is what it costs more than the candidate's own forms."""
    made = ("", "") if trial is None else (trial.candidate, trial.outcome or "")
    if trial and trial.verdicts and loses_little(trial):
        made = (trial.candidate, "passed")
    return FrontierPoint(point.level_db, point.noise, point.cost - own.cost, *made)


def _as_parts(
    run: LoadedRun, candidate: Candidate, parts: Sequence[Part], chosen: Assigned | None
) -> tuple[RankedPart, ...]:
    """Return the parts as records, the noisiest first, with their forms at the chosen point."""
    in_int8 = candidate.precision == "int8"
    ratios = {one.part: one for one in materials_of(run).ranking(ranked_form(candidate))} if in_int8 else {}
    forms = chosen.assignment if chosen else (0,) * len(parts)
    found = []
    for part, form in zip(parts, forms, strict=True):
        (record,) = ranked_parts([ratios.get(part.nodes) or Sensitivity(part.nodes, part.forms[0].noise)])
        taken = part.forms[form].name if form else ""
        cost = part.forms[-1].cost if cost_unit(run, candidate) == "µs" else None
        found.append(replace(record, kept=taken == FLOAT, form=taken, cost_us=cost))
    return tuple(sorted(found, key=lambda part: -math.inf if part.noise is None else -part.noise))


def ranked_parts(ranking: Sequence[Sensitivity]) -> tuple[RankedPart, ...]:
    """Return the parts of a ranking as records."""
    return tuple(
        RankedPart(
            one.part.name,
            one.part.nodes,
            one.noise if math.isfinite(one.noise) else None,
            one.weight_outlier_ratio,
            one.activation_outlier_ratio,
        )
        for one in ranking
    )
