"""One model at one shape: what a run chooses, and the rivals, judged and measured alike. See `variants_cpu.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from prefect import flow
from rivals import RIVALS, Rival, Source, make
from variants_models import Case

from flows.quantize import gather_inputs, tried
from tasks.measure.inventory import usable_cores
from tasks.ptq.graph.edits import model_bytes
from tasks.run.context import log, start_run
from tasks.run.loaded_run import LoadedRun
from tasks.trials.judge import judge_trials, rank_passing
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant, measure_baseline
from tasks.trials.measure_latency import latency_of
from tasks.trials.recover import recover_trials
from validators.digests import digest_model
from validators.errors import CandidateRefused
from validators.job.job import Job
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy, Coverage, Estimate
from validators.records.run import Refusal, SessionSettings, Trial, Variant

# Rivals that pass are timed in few launches first; only the fastest can be the best one, and take turns with the choice.
FIRST_LAUNCHES, FINALISTS = 2, 3
FLOAT = "fp32-fused@ort-cpu"


@dataclass(frozen=True)
class Bench:
    """A loaded run, and the accuracy of its baseline."""

    run: LoadedRun
    baseline: Accuracy

    @property
    def source(self) -> Variant:
        """The source, in the baseline's engine."""
        return baseline_variant(self.run)

    def in_turn(self, first: Variant, second: Variant, launches: int | None = None, point: int = 0) -> Latency:
        """Time both in turn at one of the job's operating points; `speedup` is how many times as fast the second is."""
        measurement = self.run.job.measurement
        latency, _ = latency_of(
            self.run,
            first,
            second,
            measurement.points[point],
            measurement=measurement.model_copy(update={"launches": launches}) if launches else None,
        )
        return latency


@flow(name="variants on a CPU")
def compare(case: Case, folder: Path) -> dict[str, Any]:
    """Return the figures of candidates and rivals of one model at one shape.

    `against` has how many times as fast the choice is as each finalist; the result is the rival that it leads by least.
    """
    bench = open_bench(case.job)
    choice, rows = choose(bench)
    made = tuple(rival_trial(bench, case, name, one, folder) for name, one in RIVALS.items())
    rivals = tuple(timed_shortly(bench, trial) for trial in judge_rivals(bench, made))
    against: dict[str, Estimate] = {}
    before = None
    if choice is not None and choice.variant is not None:
        against["fp32"] = bench.in_turn(bench.source, choice.variant).speedup
        for one in finalists(rivals):
            assert one.variant
            against[one.candidate] = bench.in_turn(one.variant, choice.variant).speedup
        before = beside_earlier(bench, case.job_before, choice.variant) if case.job_before else None
    best = min(against, key=lambda name: against[name].value, default=None)
    return {
        "choice": choice.candidate if choice else None,
        "best_rival": best,
        "against_best_rival": interval(against[best]) if best else None,
        "against": {name: interval(ratio) for name, ratio in against.items()},
        "choice_before": before and {"choice": before[0], "ratio": interval(before[1])},
        "rows": [*map(row, rivals), *rows],
    }


def open_bench(job: Job) -> Bench:
    """Load the source and the samples of a job, and judge the baseline."""
    run = gather_inputs(start_run(job))
    return Bench(run, measure_baseline(run))


def choose(bench: Bench) -> tuple[Trial | None, list[dict[str, Any]]]:
    """Return the trial that a run would choose, if any passes, and a line of the table for each trial."""
    raced = tried(bench.run, bench.baseline)
    trials = judge_trials(bench.run, bench.baseline, raced.trials)
    trials += recover_trials(bench.run, bench.baseline, trials).trials
    # Of those that the race stopped there are short measurements.
    rows = [row(trial) | {"short_speedup": raced.speeds.short_value(trial.candidate)} for trial in trials]
    return next(iter(rank_passing(bench.run.job, trials)), None), rows


def rival_trial(bench: Bench, case: Case, name: str, rival: Rival, folder: Path) -> Trial:
    """Return a rival's trial up to its accuracy; its file is made once for all shapes."""
    source = bench.run.source
    calibration = bench.run.job.data.calibration
    assert isinstance(calibration, Path)
    order = Source(source.onnx_path, case.kind, calibration, case.torch_weights)
    path = make(rival, order, folder)
    if isinstance(path, str):
        log.info("%s cannot be made: %s", name, path)
        return Trial(name, outcome="refused", refusal=Refusal("unsupported", path))
    session = SessionSettings(rival.provider, usable_cores(), provider_options=dict(rival.options))
    return accuracy_trial(bench, Variant(name, path, digest_model(path), model_bytes(path), session))


def accuracy_trial(bench: Bench, variant: Variant) -> Trial:
    """Return the trial of a rival's file up to its accuracy."""
    name, reference = variant.candidate, Reference(bench.baseline, bench.source)
    try:
        accuracy, _ = measure_accuracy(bench.run, variant, reference, alone=True)
    except CandidateRefused as error:
        log.info("%s does not run: %s", name, error.found)
        return Trial(name, outcome="refused", refusal=Refusal(error.kind, error.found))
    # Nothing is asked of a rival's kernels, so none are read.
    return Trial(name, variant=variant, coverage=Coverage({}, (), (), (variant.session.provider,)), accuracy=accuracy)


def judge_rivals(bench: Bench, rivals: tuple[Trial, ...]) -> tuple[Trial, ...]:
    """Judge accuracy alone: a rival need be no smaller, and nothing is asked of its kernels; it has to be right, and fast."""
    gates = bench.run.job.gates.model_copy(update={"min_speedup": None, "min_coverage": None, "max_size_ratio": None})
    eased = replace(bench.run, job=bench.run.job.model_copy(update={"gates": gates}))
    # Gates read the precision from the name; those of float candidates ask for no kernels.
    named = tuple(replace(trial, candidate=FLOAT) for trial in rivals)
    judged = judge_trials(eased, bench.baseline, named)
    return tuple(replace(one, candidate=trial.candidate) for one, trial in zip(judged, rivals, strict=True))


def timed_shortly(bench: Bench, trial: Trial) -> Trial:
    """Return a rival with its latency in few launches, if it runs."""
    if trial.variant is None:
        return trial
    return replace(trial, latencies=(bench.in_turn(bench.source, trial.variant, FIRST_LAUNCHES),))


def finalists(rivals: tuple[Trial, ...]) -> list[Trial]:
    """Return the fastest rivals of those that pass."""
    timed = [one for one in rivals if one.latency and one.outcome == "passed"]
    return sorted(timed, key=lambda one: -one.latency.speedup.value if one.latency else 0.0)[:FINALISTS]


def beside_earlier(bench: Bench, job_before: Job, choice: Variant) -> tuple[str, Estimate] | None:
    """Return what a run of another job chooses, and how many times as fast the choice is."""
    before, _ = choose(open_bench(job_before))
    if before is None or before.variant is None:
        return None
    return before.candidate, bench.in_turn(before.variant, choice).speedup


def row(trial: Trial) -> dict[str, Any]:
    if trial.refusal or trial.variant is None or trial.accuracy is None:
        return {"name": trial.candidate, "refused": trial.refusal.reason if trial.refusal else "not made"}
    return {
        "name": trial.candidate,
        "metric": trial.accuracy.value,
        "drop": interval(trial.drop),
        "sqnr_db": sqnr_db(trial.accuracy),
        "size_mb": trial.variant.size_bytes / 1e6,
        "low_precision_macs": trial.coverage.share if trial.coverage and trial.coverage.macs_by_kernel else None,
        "speedup": interval(trial.latency.speedup) if trial.latency else None,
        "p50_ms": trial.latency.p50_ms if trial.latency else None,
        "disturbance": trial.latency.disturbance if trial.latency else None,
        "outcome": trial.outcome,
        "failed": [verdict.gate for verdict in trial.verdicts if verdict.outcome != "pass"],
    }


def sqnr_db(variant: Accuracy) -> float | None:
    """Signal to noise of the outputs on the evaluation samples, in dB; None where only losses are kept of them."""
    if variant.noise_path is None:
        return None
    signal, noise = np.load(variant.noise_path).sum(axis=0)
    return float(10 * np.log10(signal / noise)) if noise else None


def interval(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}
