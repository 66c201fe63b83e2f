"""One model at one shape: what a run chooses, and the rivals, judged and measured alike. See `variants_cpu.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from prefect import flow
from rivals import RIVALS, make
from variants_models import Case

from flows.quantize import gather_inputs, made, measured
from tasks.measure.request import request_batch
from tasks.ptq.graph.edits import model_bytes
from tasks.run.context import Run, start_run
from tasks.runtimes.coverage import measure_coverage
from tasks.trials.judge import judge_trials, rank_passing
from tasks.trials.measure_accuracy import Reference, measure_accuracy
from tasks.trials.measure_baseline import baseline_variant, measure_baseline
from tasks.trials.measure_latency import latency_of
from tasks.trials.recover import recover_trials
from validators.digests import digest_model
from validators.errors import CandidateRefused
from validators.records.measurements import Accuracy, Estimate
from validators.records.run import Inventory, Refusal, Trial, Variant
from validators.samples.run_inputs import RunInputs


@dataclass(frozen=True)
class Shape:
    """What was found of one model at one shape: the choice, its ratio to each rival that passes, and the table."""

    choice: Trial | None
    against: dict[str, Estimate]
    rows: list[dict[str, Any]]


@flow(name="variants on a CPU")
def compare(case: Case, folder: Path) -> Shape:
    """Candidates and rivals of one model at one shape."""
    run = start_run(case.job)
    run_inputs, inventory = gather_inputs(run)
    baseline = measure_baseline(run, run_inputs, inventory)
    trials = judge_trials(
        run, run_inputs, baseline, measured(run, run_inputs, inventory, made(run, run_inputs, inventory, baseline))
    )
    recovered = recover_trials(run, run_inputs, inventory, baseline, trials)
    trials += recovered.trials
    choice = next(iter(rank_passing(run.job, trials)), None)

    # A rival need be no smaller, and nothing is asked of its kernels: it only has to be right, and fast.
    gates = run.job.gates.model_copy(update={"min_speedup": None, "min_coverage": None, "max_size_ratio": None})
    eased = replace(run, job=run.job.model_copy(update={"gates": gates}))
    rivals = tuple(
        rival(eased, run_inputs, inventory, baseline, name, folder, case.calibration_batch) for name in RIVALS
    )
    rivals = judge_trials(eased, run_inputs, baseline, measured(eased, run_inputs, inventory, rivals))
    against = {}
    if choice is not None and choice.variant is not None:
        against["fp32"] = versus(run, run_inputs, inventory, baseline_variant(run, run_inputs), choice.variant)
        for one in rivals:
            if one.outcome == "passed" and one.variant:
                against[one.candidate] = versus(run, run_inputs, inventory, one.variant, choice.variant)
    rows = [row(trial) for trial in (*rivals, *trials)]
    return Shape(choice, against, rows)


def rival(
    run: Run,
    run_inputs: RunInputs,
    inventory: Inventory,
    baseline: Accuracy,
    name: str,
    folder: Path,
    calibration_batch: int,
) -> Trial:
    """A rival's trial up to its accuracy; its file is made once for all shapes."""
    place = folder / name.replace(" ", "-").replace(",", "")
    path = place / "model.onnx"
    if not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        reason = make(name, run_inputs.source.onnx_path, run.job.data.calibration, calibration_batch, path)
        if reason:
            return Trial(name, outcome="refused", refusal=Refusal("unsupported", reason))
    session = baseline_variant(run, run_inputs, inventory).session
    variant = Variant(name, path, digest_model(path), model_bytes(path), session)
    batch = request_batch(run_inputs.evidence, run.job.measurement.points[0])
    try:
        coverage = measure_coverage(path, session, batch)
        accuracy, _ = measure_accuracy(
            run,
            run_inputs.evidence,
            inventory,
            variant,
            Reference(baseline, baseline_variant(run, run_inputs, inventory)),
        )
    except CandidateRefused as error:
        return Trial(name, outcome="refused", refusal=Refusal(error.kind, error.found))
    return Trial(name, variant=variant, coverage=coverage, accuracy=accuracy)


def versus(run: Run, run_inputs: RunInputs, inventory: Inventory, rival: Variant, choice: Variant) -> Estimate:
    """How many times faster the choice is, the two in turn."""
    latency, _ = latency_of(run, run_inputs, inventory, rival, choice, run.job.measurement.points[0])
    return latency.speedup


def row(trial: Trial) -> dict[str, Any]:
    """One line of the table."""
    if trial.refusal or trial.variant is None or trial.accuracy is None:
        return {"name": trial.candidate, "refused": trial.refusal.reason if trial.refusal else "not made"}
    return {
        "name": trial.candidate,
        "metric": trial.accuracy.value,
        "drop": _interval(trial.drop),
        "sqnr_db": sqnr_db(trial.accuracy),
        "size_mb": trial.variant.size_bytes / 1e6,
        "low_precision_macs": trial.coverage.share if trial.coverage else None,
        "speedup": _interval(trial.latency.speedup) if trial.latency else None,
        "p50_ms": trial.latency.p50_ms if trial.latency else None,
        "outcome": trial.outcome,
        "failed": [verdict.gate for verdict in trial.verdicts if verdict.outcome != "pass"],
    }


def describe(shape: Shape) -> dict[str, Any]:
    """The figures of one model at one shape. The result is the ratio to the rival that the choice leads by least."""
    best = min(shape.against, key=lambda name: shape.against[name].value, default=None)
    return {
        "choice": shape.choice.candidate if shape.choice else None,
        "best_rival": best,
        "against_best_rival": _interval(shape.against[best]) if best else None,
        "against": {name: _interval(ratio) for name, ratio in shape.against.items()},
        "rows": shape.rows,
    }


def sqnr_db(variant: Accuracy) -> float | None:
    """Signal to noise of the outputs on the evaluation samples, in dB; None where only losses are kept of them."""
    if variant.noise_path is None:
        return None
    signal, noise = np.load(variant.noise_path).sum(axis=0)
    return float(10 * np.log10(signal / noise)) if noise else None


def _interval(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else {"value": estimate.value, "low": estimate.low, "high": estimate.high}
