"""Step 5, first half: one candidate from recipe to artifact, with its coverage and accuracy."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from tasks.engines.catalog import find_target
from tasks.engines.variants import why_unmeasured
from tasks.measure.inventory import usable_providers
from tasks.measure.metrics.reduction import ReductionSize
from tasks.ptq.graph.edits import model_bytes
from tasks.run.context import CANDIDATES_SHARE, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.progress_events import EVALUATE, MAKE
from tasks.run.step import step
from tasks.trials.build_engine import with_engine
from tasks.trials.gather import trial_of
from tasks.trials.inspect_variant import agreement_with_baseline, coverage_of, sanity_of
from tasks.trials.judge_on_samples import DropWatch, JudgedData
from tasks.trials.materials import as_refusal, variant_from_store
from tasks.trials.measure_accuracy import Reference, measure_accuracy, on_selection
from tasks.trials.measure_baseline import baseline_variant
from validators.errors import BudgetExceeded, CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.plain_text import figure
from validators.records.measurements import Accuracy
from validators.records.run import Refusal, Trial


@step(MAKE, run_name="make {name}")
def make_candidate(run: LoadedRun, baseline: Accuracy, name: str, *, evaluates: bool = True) -> Trial:
    """Return the candidate's trial: its variant, coverage, sanity and, if it `evaluates`, accuracy; or its refusal."""
    started = time.monotonic()
    if run.clock.spent_seconds > CANDIDATES_SHARE * run.job.budgets.seconds:
        reason = (
            f"{CANDIDATES_SHARE:.0%} of the budget of {run.job.budgets.seconds:.0f} s, the candidates' share, was spent "
            "before this candidate was started"
        )
        return Trial(name, outcome="refused", refusal=Refusal("infrastructure", reason))
    with run.clock.work("make candidates"), run.time_for_candidates():
        try:
            # A variant takes at most about as much disk as its source; shared intermediate files are made once.
            run.footprint.check(f"{name}: its file", ReductionSize(0, model_bytes(run.source.onnx_path)))
            trial = _try(run, decode(name))
            if evaluates and trial.variant:
                trial = _evaluated(run, baseline, trial)
        except CandidateRefused as error:
            trial = refused(name, error)
        except BudgetExceeded as error:
            trial = trial_of(name, error)
    log.info("made %s: %s", name, _summary(trial))
    return replace(trial, seconds=time.monotonic() - started)


def make_candidates(
    run: LoadedRun, baseline: Accuracy, names: Sequence[str], *, evaluates: bool = True
) -> tuple[Trial, ...]:
    """Return the trials of candidates in the order of `names`, made as many at a time as the flow's task runner has threads."""
    # Simulations take longest: started last, they would leave the other core idle.
    by_length = sorted(names, key=lambda name: not decode(name).is_simulated)
    outcomes = {name: make_candidate.submit(run, baseline, name, evaluates=evaluates) for name in by_length}
    return tuple(trial_of(name, outcomes[name]()) for name in names)


@step(EVALUATE, run_name="evaluate {trial.candidate}")
def evaluate_candidate(
    run: LoadedRun, baseline: Accuracy, trial: Trial, judged_data: JudgedData | None = None, *, alone: bool = False
) -> Trial:
    """Return the trial of a made candidate with its accuracy, or its refusal.

    With `judged_data`, it is stopped once it cannot pass the drop gate on them; with `alone`, it takes all threads.
    """
    started = time.monotonic()
    with run.clock.work("evaluate candidates"), run.time_for_candidates():
        try:
            trial = _evaluated(run, baseline, trial, judged_data, alone=alone)
        except CandidateRefused as error:
            stopped = replace(trial, outcome="refused", refusal=Refusal("stopped", error.found))
            trial = stopped if error.kind == "stopped" else refused(trial.candidate, error)
        except BudgetExceeded as error:
            trial = trial_of(trial.candidate, error)
    log.info("evaluated %s: %s", trial.candidate, _summary(trial))
    return replace(trial, seconds=trial.seconds + time.monotonic() - started)


def refused(name: str, error: CandidateRefused) -> Trial:
    """Return the trial of a candidate that ended in a refusal."""
    return Trial(name, outcome="refused", refusal=as_refusal(error))


def _try(run: LoadedRun, candidate: Candidate) -> Trial:
    target = find_target(candidate.target)
    target.check_device()  # fail before making a variant that nothing here can run
    made, had_variant = variant_from_store(run, candidate)
    if made.variant is None:
        return Trial(candidate.name, outcome="refused", refusal=made.refusal, cached=had_variant)
    variant = with_engine(run, made.variant)
    unmeasured = why_unmeasured(variant, usable_providers(run.inventory))
    if unmeasured is not None:
        return replace(refused(candidate.name, unmeasured), cached=had_variant)
    coverage, had_coverage = coverage_of(run, variant)
    sanity, had_sanity = sanity_of(run, variant)
    cached = had_variant and had_coverage and had_sanity
    return Trial(candidate.name, variant=variant, coverage=coverage, sanity=sanity, cached=cached)


def _evaluated(
    run: LoadedRun, baseline: Accuracy, trial: Trial, judged_data: JudgedData | None = None, *, alone: bool = False
) -> Trial:
    assert trial.variant
    reference = Reference(baseline, baseline_variant(run))
    # Batches say nothing about samples of one group, which lie in several of them.
    has_groups = run.evidence.evaluation.clusters is not None
    watch_of = partial(DropWatch, judged_data) if judged_data and not has_groups else None
    selection = ~run.evidence.confirmation
    accuracy, had_accuracy = measure_accuracy(run, trial.variant, reference, selection, alone=alone, watch_of=watch_of)
    accuracy = on_selection(run.job, run.evidence, accuracy)
    agreement, had_agreement = agreement_with_baseline(run, trial.variant)
    cached = trial.cached and had_accuracy and had_agreement
    return replace(trial, accuracy=accuracy, agreement=agreement, cached=cached)


def _summary(trial: Trial) -> str:
    if trial.refusal:
        return f"refused ({trial.refusal.kind})"
    assert trial.coverage
    text = f"coverage {trial.coverage.share:.0%}"
    if trial.accuracy:
        text = f"{trial.accuracy.metric} {figure(trial.accuracy.value)} on {trial.accuracy.n} samples, {text}"
    return text + (" (from the store)" if trial.cached else "")
