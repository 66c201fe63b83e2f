"""How often a race stops the best candidate, and how many full measurements it saves, on simulated candidates.

    python benchmarks/race_errors.py

The decisions are those of a run (`validators/gates/race_rules.py`); only the measurements are drawn: the log speedup
of a launch is normal around the candidate's own. No model runs. Beside each race, all candidates are measured in full. Looks at
drops are simulated apart, on answers that are right or wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from figures import save, share
from numpy.typing import NDArray

from tasks.measure.latency.ratio import ratio_estimate
from tasks.trials.judge_on_samples import DropWatch, JudgedData
from tasks.trials.measure_accuracy import EVALUATION_BATCH_SIZE
from validators.errors import CandidateRefused
from validators.gates.intervals import drop_interval
from validators.gates.race_rules import IN_TURN, PROBES, WORTH, Speeds, run_finals
from validators.job.job_measurement import Measurement
from validators.job.read_job import parse_job
from validators.records.measurements import Accuracy, Estimate

CONFIDENCE = 0.95
CANDIDATES = 12
# Share of candidates that pass the gates on accuracy.
PASSES = 0.7
# Evaluations with looks: the samples, the baseline's accuracy, the share of answers that change for better and for worse.
SAMPLES, RIGHT, FLIPS = 2000, 0.9, 0.02
# True drops against a tolerance of 0.02.
DROPS = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3)
Vector = NDArray[np.float64]
Draw = Callable[[np.random.Generator], Vector]
# Standard deviation between launches of the log speedup, by machine; in the last one, candidates differ in it.
DEVIATIONS: Mapping[str, Draw] = {
    "quiet": lambda _: np.full(CANDIDATES, 0.01),
    "in use": lambda _: np.full(CANDIDATES, 0.03),
    "busy": lambda _: np.full(CANDIDATES, 0.08),
    "uneven": lambda rng: rng.choice([0.01, 0.06], CANDIDATES),
    "slowed": lambda _: np.full(CANDIDATES, 0.01),
}
# Share of launches in which a neighbour slows the variant alone, and by how much.
SLOWED, SLOWER = {"slowed": 0.1}, math.log(1.25)
# True log speedups: spread out, in families of equals, and almost all equal.
FIELDS: Mapping[str, Draw] = {
    "spread": lambda rng: rng.uniform(0, math.log(4), CANDIDATES),
    "families": lambda rng: np.repeat(rng.uniform(0, math.log(4), 4), 3) + rng.normal(0, 0.01, CANDIDATES),
    "equals": lambda rng: math.log(2) + rng.normal(0, 0.02, CANDIDATES),
}


@dataclass(frozen=True)
class Outcome:
    """One race. `lost` and `lost_by_all` are the shares of speed lost against the best, by the race and by full measurement.

    `stopped` is True if the race stopped the best candidate and chose one that is more than 3 % slower.
    """

    stopped: bool
    lost: float
    lost_by_all: float
    evaluated: int
    timed: int
    compared: int


def simulate(speeds: Vector, deviations: Vector, rng: np.random.Generator, slowed: float = 0.0) -> Outcome:
    """Run one race over candidates with these true log speedups and deviations, both shape `(candidates,)`."""
    names = [f"c{index}" for index in range(len(speeds))]
    truth, spread = dict(zip(names, speeds, strict=True)), dict(zip(names, deviations, strict=True))
    passing = [name for name in names if rng.random() < PASSES] or names[:1]
    launches = Measurement().launches

    def draw(name: str, count: int) -> Vector:
        return rng.normal(truth[name], spread[name], count) - SLOWER * (rng.random(count) < slowed)

    full = {name: draw(name, launches) for name in names}
    seen, chosen = Speeds(), ""
    stopped: set[str] = set()
    evaluated = timed = compared = 0

    def stops(name: str) -> bool:
        if chosen and seen.is_behind(name, chosen):
            stopped.add(name)
        return name in stopped

    def evaluate(name: str) -> bool:
        nonlocal evaluated
        evaluated += 1
        return name in passing

    def time(name: str) -> None:
        nonlocal chosen, timed, compared
        wins = False
        if chosen:
            compared += 1
            ratio = beside_chosen(name)
            wins = seen.is_faster(ratio)
            if seen.is_not_worth(ratio):
                stopped.add(name)
                return
        timed += 1
        seen.add(name, ratio_estimate([[math.exp(log)] for log in full[name]], CONFIDENCE), launches, CONFIDENCE)
        if not chosen or wins or rank(name) < rank(chosen):
            chosen = name

    def beside_chosen(name: str) -> float:
        # Two variants differ between launches as a variant and the baseline do.
        logs = draw(name, IN_TURN) - truth[chosen]
        logs += SLOWER * (rng.random(IN_TURN) < slowed)
        return math.exp(float(np.median(logs)))

    def rank(name: str) -> float:
        return -(seen.value(name) or 0.0)

    for name in names:
        for log in draw(name, PROBES):
            # Its bounds are not used.
            seen.add_launch(name, Estimate(math.exp(log), math.exp(log), math.exp(log)))
    run_finals(names, rank=rank, stops=stops, evaluate=evaluate, time=time)
    best = max(passing, key=lambda name: truth[name])
    chosen_by_all = max(passing, key=lambda name: float(full[name].mean()))
    lost, lost_by_all = (1 - math.exp(truth[name] - truth[best]) for name in (chosen, chosen_by_all))
    return Outcome(best in stopped and lost > 1 - 1 / WORTH, lost, lost_by_all, evaluated, timed, compared)


def race_cell(machine: str, field: str, races: int, seed: int) -> dict[str, Any]:
    """Return the shares and means over races of one field on one machine."""
    rng = np.random.default_rng(seed)
    outcomes = [
        simulate(FIELDS[field](rng), DEVIATIONS[machine](rng), rng, SLOWED.get(machine, 0.0)) for _ in range(races)
    ]
    return {
        "machine": machine,
        "field": field,
        "best_stopped": share(sum(outcome.stopped for outcome in outcomes), races),
        "slower_by_3_percent": share(sum(outcome.lost > 0.03 for outcome in outcomes), races),
        "slower_by_3_percent_in_full": share(sum(outcome.lost_by_all > 0.03 for outcome in outcomes), races),
        "evaluated_mean": float(np.mean([outcome.evaluated for outcome in outcomes])),
        "timed_mean": float(np.mean([outcome.timed for outcome in outcomes])),
        "compared_mean": float(np.mean([outcome.compared for outcome in outcomes])),
    }


def drop_cell(order: str, drop: float, draws: int, seed: int) -> dict[str, Any]:
    """Return how often a candidate with this true drop passes, with looks at its drop and without, and what the looks save."""
    rng = np.random.default_rng(seed)
    found = [_look(order, drop, rng) for _ in range(draws)]
    return {
        "order": order,
        "drop": drop,
        "passes": share(sum(passes for passes, _ in found), draws),
        "passes_with_looks": share(sum(passes and seen == SAMPLES for passes, seen in found), draws),
        "stopped": share(sum(seen < SAMPLES for _, seen in found), draws),
        "evaluated_share": float(np.mean([seen for _, seen in found]) / SAMPLES),
    }


def _look(order: str, drop: float, rng: np.random.Generator) -> tuple[bool, int]:
    """Return whether the drop gate passes on all samples, and how many were seen until the evaluation ended."""
    before = (rng.random(SAMPLES) < RIGHT).astype(float)
    # A quarter of the file, such as one class, may have all of the drop.
    places = np.arange(SAMPLES) < SAMPLES / 4 if order == "one class" else np.full(SAMPLES, True)
    lost = rng.random(SAMPLES) < np.where(places, (drop / places.mean() + FLIPS) / RIGHT, FLIPS / RIGHT)
    gained = rng.random(SAMPLES) < FLIPS / (1 - RIGHT)
    after = np.where(before == 1, ~lost, gained).astype(float)
    job = parse_job({"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}, base=Path())
    job = job.model_copy(update={"seed": int(rng.integers(2**31))})
    nowhere = Accuracy("accuracy", 0.0, SAMPLES, Path(), Path())
    judged_data = JudgedData(job, nowhere, 0, np.zeros(SAMPLES, bool), {})
    # Instead of the file of the baseline's scores.
    vars(judged_data)["baseline_rows"] = before[:, None]
    estimate, _ = drop_interval(before - after, CONFIDENCE)
    passes = estimate.high is not None and estimate.high <= job.gates.drop_bound
    watch, seen = DropWatch(judged_data, EVALUATION_BATCH_SIZE), 0
    try:
        for start in range(0, SAMPLES, EVALUATION_BATCH_SIZE):
            batch = watch.samples[start : start + EVALUATION_BATCH_SIZE]
            seen += len(batch)
            watch.look(after[batch, None])
    except CandidateRefused:
        return passes, seen
    return passes, SAMPLES


def main(
    races: Annotated[int, typer.Option(help="simulated races a cell")] = 2000,
    looks: Annotated[int, typer.Option(help="simulated evaluations a drop")] = 500,
    seed: Annotated[int, typer.Option(help="seed of the first cell")] = 1,
) -> None:
    """Simulate all cells, and write the figures to `benchmarks/results/race_errors.json`."""
    places = [(machine, field) for machine in DEVIATIONS for field in FIELDS]
    cells = [race_cell(*place, races, seed + row) for row, place in enumerate(places)]
    kinds = [(order, drop) for order in ("any", "one class") for drop in DROPS]
    drops = [drop_cell(*kind, looks, seed + 100 + row) for row, kind in enumerate(kinds)]
    figures = {"races": races, "candidates": CANDIDATES, "passing": PASSES, "cells": cells, "drops": drops}
    save("race_errors", figures)


if __name__ == "__main__":
    typer.run(main)
