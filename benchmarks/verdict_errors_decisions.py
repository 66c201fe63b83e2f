"""How often the whole decision on candidates at a gate's bound is wrong: choice among thirty, then confirmation.

All figures are drawn, and judged by the rows of the catalogue as a run does. In truth each candidate lies exactly at the
bound of every gate. Samples are correlated: copies of each other for the metric, windows of one document for the prompts of
a decoder. Candidates of a run share samples, and half of what happens to these. Slow requests come in bursts, or for a whole
block.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from figures import share
from numpy.typing import NDArray

from tasks.measure.continuations import prompt_rows
from tasks.measure.latency.disturbance import BlockConditions
from tasks.measure.latency.pairs import Launch, Pair, WarmUp, measure_launch
from tasks.measure.latency.process import Block
from tasks.measure.latency.summary import Gathered, LatencySide, summarise
from tasks.measure.metrics.drops import estimate_drop, estimate_sqnr, estimate_value
from tasks.measure.metrics.metric import Metric
from tasks.run.user_functions import job_metric
from validators.gates.catalog import GATES, AnswerFigures, Gate, Measured, judge_gates
from validators.gates.clusters import count_units
from validators.gates.intervals import Clusters
from validators.gates.slices import slice_drops
from validators.gates.verdict_rules import confidence_of_each
from validators.job.job import Job
from validators.job.job_measurement import Measurement
from validators.records.latencies import Latency
from validators.records.measurements import Agreement, Coverage
from validators.records.run import DataFile, SessionSettings, Variant
from validators.records.verdicts import Verdict
from validators.samples.confirmation_split import cluster_samples
from validators.samples.datasets import Samples

Floats = NDArray[np.float64]
CANDIDATES = 30
# 300 samples, each three times; 64 documents of four windows, and as many prompts as two a document.
DISTINCT, COPIES, DOCUMENTS, WINDOWS, PROMPTS, TOKENS = 300, 3, 64, 4, 128, 64
FLIPS, TOLERANCE, RIGHT, NOISE = 0.05, 0.05, 0.9, 0.6
EQUAL_ANSWERS = 0.4
# Requests of a block, so that each launch supports p99; scatter of logarithms between launches, blocks and requests.
REQUESTS, LAUNCH_SD, BLOCK_SD, REQUEST_SD = 222, 0.01, 0.01, 0.05
SLOW_BLOCKS, SLOWER_BLOCK = 0.15, 2.5
SLOW_REQUESTS, SLOWER_REQUEST, BURST = 0.08, 1.5, 10
MEMORY_SD, LOAD_SD, ENERGY_SD = 0.005, 0.08, 0.03
MANY = 5000
INT8 = "int8-static-minmax-pc@ort-cuda"
MEASUREMENT = Measurement(price_per_hour=3.6)
STILL = BlockConditions(0.0, 0.0, (1.0, 1.0), growths={"major_faults": 0, "involuntary_switches": 0})
_AGREEMENT = EQUAL_ANSWERS + (1 - EQUAL_ANSWERS) * (TOKENS - 1) / 2 / TOKENS


@dataclass(frozen=True)
class Model:
    """Shares of a simulated model's blocks and requests that take `SLOWER_BLOCK` and `SLOWER_REQUEST` times as long."""

    slow_blocks: float = 0.0
    slow_requests: float = 0.0

    def times(self, rng: np.random.Generator) -> Floats:
        """Draw the milliseconds of a block's requests, shape `(REQUESTS,)`."""
        slow = SLOWER_BLOCK if rng.random() < self.slow_blocks else 1.0
        logs = rng.normal(0, BLOCK_SD) + rng.normal(0, REQUEST_SD, REQUESTS)
        bursts = np.repeat(rng.random(REQUESTS // BURST + 1) < self.slow_requests, BURST)[:REQUESTS]
        return np.asarray(slow * np.exp(logs) * np.where(bursts, SLOWER_REQUEST, 1.0))


@dataclass(frozen=True)
class Bounds:
    """What a model beside another truly has: speedup of p50, percentiles with their ratios, and the mean time of a request."""

    speedup: float
    p95_ratio: float
    p95_ms: float
    p99_ratio: float
    p99_ms: float
    mean_ms: float


def job_at(bounds: Bounds | None = None, **changes: Any) -> Job:
    """Return a job whose gates all have their bound where the simulated candidates are."""
    found = bounds or Bounds(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    gates = {
        "max_drop": TOLERANCE,
        "max_slice_drop": TOLERANCE,
        "min_metric": RIGHT,
        "max_metric": RIGHT,
        "min_sqnr_db": 10 * math.log10(1 / NOISE),
        "min_agreement": _AGREEMENT,
        "min_speedup": found.speedup,
        "min_speedup_fp16": found.speedup,
        "max_p95_ratio": found.p95_ratio,
        "max_p95_ms": found.p95_ms,
        "max_p99_ratio": found.p99_ratio,
        "max_p99_ms": found.p99_ms,
        "max_memory_ratio": 1.0,
        "max_load_ratio": 1.0,
        "max_energy_ratio": 1.0,
        # 3.6 an hour is one for a million milliseconds.
        "max_cost_per_million": found.mean_ms,
        "min_coverage": None,
    }
    fields: dict[str, Any] = {
        "source": "models:/m/1",
        "target": "ort-cuda",
        "data": {"calibration": "c.npz", "evaluation": "e.npz", "slices": ["place"]},
        "candidates": [INT8, "fp16@ort-cuda"],
        "measurement": MEASUREMENT.model_dump(mode="json"),
    }
    return Job.model_validate(fields | {"gates": gates | changes})


# Samples


@dataclass(frozen=True)
class Part:
    """The samples and prompts that choose, or those that confirm, and what happens to them in each candidate alike."""

    clusters: Clusters
    documents: Clusters
    common: NDArray[np.bool_]
    drops: Floats
    right: Floats
    noise: Floats
    shares: Floats


def draw_part(rng: np.random.Generator, seed: int) -> Part:
    """Draw a part, with the clusters that the product finds and the prompts that it chooses."""
    inputs = np.repeat(rng.normal(size=(DISTINCT, 4)), COPIES, axis=0)
    clusters, _ = cluster_samples(Samples(DataFile(Path("e.npz"), "", len(inputs)), {"x": inputs}, None), 1)
    assert clusters is not None
    documents = np.repeat(np.arange(DOCUMENTS), WINDOWS)
    rows = prompt_rows(np.ones(len(documents), np.bool_), documents, PROMPTS, seed)
    return Part(
        clusters=clusters,
        documents=documents[rows],
        common=rng.random(max(DISTINCT, DOCUMENTS)) < 0.5,
        drops=_drops(rng),
        right=_right(rng),
        noise=_noise(rng),
        shares=_shares(rng),
    )


def _drops(rng: np.random.Generator) -> Floats:
    return rng.choice([1.0, -1.0, 0.0], DISTINCT, p=[FLIPS / 2 + TOLERANCE, FLIPS / 2, 1 - FLIPS - TOLERANCE])


def _right(rng: np.random.Generator) -> Floats:
    return np.asarray(rng.random(DISTINCT) < RIGHT, np.float64)


def _noise(rng: np.random.Generator) -> Floats:
    return NOISE * rng.lognormal(-0.125, 0.5, DISTINCT)


def _shares(rng: np.random.Generator) -> Floats:
    """A document's answers are equal to their end, or part at any token."""
    part = rng.integers(0, TOKENS, DOCUMENTS) / TOKENS
    return np.where(rng.random(DOCUMENTS) < EQUAL_ANSWERS, 1.0, part)


def draw_answers(rng: np.random.Generator, part: Part, metric: Metric, confidence: float) -> dict[str, Any]:
    """Draw a candidate's answers on a part; return its figures as `Measured` has them."""

    def of_samples(common: Floats, own: Floats) -> Floats:
        return np.where(part.common[: len(own)], common, own)[part.clusters]

    drops = of_samples(part.drops, _drops(rng))
    before = (drops >= 0).astype(np.float64)[:, None]
    after = before - drops[:, None]
    right = of_samples(part.right, _right(rng))[:, None]
    noise = np.stack([np.ones(len(drops)), of_samples(part.noise, _noise(rng))], axis=1)
    estimate = partial(estimate_drop, metric, seed=0)

    # One group at the bound, the other equal to the baseline.
    group = part.clusters % 2
    after_in_groups = np.where(group[:, None] == 0, after, before)

    def in_group(chosen: NDArray[np.bool_], each: float) -> Any:
        return estimate(before[chosen], after_in_groups[chosen], each, clusters=part.clusters[chosen])

    drop, method = estimate(before, after, confidence, clusters=part.clusters)
    sqnr, sqnr_method = estimate_sqnr(noise, confidence, seed=0, clusters=part.clusters)
    bounds, bounds_method = estimate_value(metric, right, confidence, seed=0, clusters=part.clusters)
    units = count_units(len(drops), part.clusters)
    answers = AnswerFigures(
        rows=len(drops), units=units, samples=len(drops), noise_units=units, counted="clusters",
        baseline_value=0.0, value=0.0, drop=drop, drop_method=method, flips=None, sqnr=sqnr, sqnr_method=sqnr_method,
        slices=slice_drops({"place": group}, in_group, confidence, clusters=part.clusters),
        newly_bad=0, bounds=bounds, bounds_method=bounds_method,
    )  # fmt: skip
    shares = np.where(part.common[:DOCUMENTS], part.shares, _shares(rng))[part.documents]
    return {"answers": answers, "agreement": Agreement(TOKENS, tuple(shares.tolist()), tuple(part.documents.tolist()))}


# Launches


def draw_launch(rng: np.random.Generator, sides: tuple[Model, Model], earlier: list[list[float]]) -> Launch:
    """Draw one launch, in which the product measures pairs again that disagree."""
    launch = np.exp(rng.normal(0, LAUNCH_SD, 2))

    def block(index: int) -> Block:
        return Block("latency", launch[index] * sides[index].times(rng))

    def conditions() -> BlockConditions:
        return replace(STILL, growths=STILL.growths | {"energy_j": float(rng.lognormal(0, ENERGY_SD))})

    def pair(_: int) -> Pair:
        return Pair(block(0), block(1), (conditions(), conditions()))

    return measure_launch(pair, MEASUREMENT, earlier, cores=2)


def draw_latency(
    rng: np.random.Generator, sides: tuple[Model, Model], confidence: float, *, repeats_hide: bool = False
) -> Latency:
    """Draw a comparison; with `repeats_hide`, every figure reads the last measurement of a pair, as the speedup does."""
    found = Gathered(launches={"latency": []})
    for _ in range(MEASUREMENT.launches):
        launch = draw_launch(rng, sides, found.ratios())
        found.launches["latency"].append(replace(launch, replaced={}) if repeats_hide else launch)
    for side in found.sides:
        _fill(rng, side)
    return summarise(found, batch_size=1, dims={}, threads=1, confidence=confidence, samples_path=Path("simulated.npz"))


def _fill(rng: np.random.Generator, side: LatencySide) -> None:
    for _ in range(MEASUREMENT.launches):
        figures = {
            "load_ms": float(rng.lognormal(0, LOAD_SD)),
            "peak_memory_mb": float(rng.lognormal(0, MEMORY_SD)),
            "load_peak_memory_mb": 1.0,
        }
        for name, value in figures.items():
            side.figures.setdefault(name, []).append(value)
        side.warm_ups.append(WarmUp(0.1, True))
        side.nice.append(0)


def truth_of(sides: tuple[Model, Model]) -> Bounds:
    """Return the figures that the gates estimate, from many launches without repeats."""
    rng = np.random.default_rng(1)
    of_launch = (MANY, MEASUREMENT.blocks * REQUESTS)
    times = [np.concatenate([side.times(rng) for _ in range(MANY * MEASUREMENT.blocks)]) for side in sides]
    before, after = (one.reshape(of_launch) for one in times)

    def mean_of(figure: Callable[[Floats], Floats]) -> tuple[float, float]:
        logs = [np.log(figure(one)) for one in (before, after)]
        return float(np.exp((logs[1] - logs[0]).mean())), float(np.exp(logs[1].mean()))

    p95, p99 = (
        mean_of(partial(np.quantile, q=quantile, axis=1, method="median_unbiased")) for quantile in (0.95, 0.99)
    )
    mean_ms = mean_of(lambda one: one.mean(axis=1))[1]
    return Bounds(float(np.median(before) / np.median(after)), *p95, *p99, mean_ms)


# Decisions


def measured_of(job: Job, confidence: float, **found: Any) -> Measured:
    """Return what the gates read, judged at a confidence."""
    gates = job.gates.model_copy(update={"confidence": confidence})
    variant = Variant(INT8, Path("m.onnx"), "d", 1, SessionSettings("CUDAExecutionProvider", 1))
    return Measured(job.model_copy(update={"gates": gates}), INT8, variant, Coverage({}, (), (), ()), 1, **found)


def wrong_decisions(
    job: Job, draw: Callable[[bool, float], dict[str, Any]], gates: list[Gate], candidates: int = CANDIDATES
) -> set[str]:
    """Return the gates by which a run promotes a candidate that is at the bound.

    `draw(confirming, confidence)` draws a candidate's measurements. Candidates that pass are confirmed in an order of chance,
    as many as the job allows, if the gate's row says that it is confirmed.
    """
    once, each = job.gates.confidence, confidence_of_each(job.gates.confidence, job.confirmation.candidates)
    passing: dict[str, int] = dict.fromkeys((gate.name for gate in gates), 0)
    for _ in range(candidates):
        verdicts = _by_gate(judge_gates(measured_of(job, once, **draw(False, once)), ""))
        for gate in gates:
            passing[gate.name] += verdicts[gate.name].outcome == "pass"
    wrong = set()
    tries = [
        _by_gate(judge_gates(measured_of(job, each, **draw(True, each)), "", confirming=True))
        for _ in range(min(job.confirmation.candidates, max(passing.values())))
    ]
    for gate in gates:
        again = [found.get(f"confirmed_{gate.name}") for found in tries[: passing[gate.name]]]
        if any(verdict is None or verdict.outcome == "pass" for verdict in again):
            wrong.add(gate.name)
    return wrong


def _by_gate(verdicts: tuple[Verdict, ...]) -> dict[str, Verdict]:
    return {verdict.gate: verdict for verdict in verdicts}


BURSTS, PHASES = (Model(), Model(slow_requests=SLOW_REQUESTS)), (Model(), Model(slow_blocks=SLOW_BLOCKS))


def count_wrong_on_samples(runs: int, seed: int, candidates: int = CANDIDATES) -> dict[str, int]:
    """Return by gate on samples how many of the runs promote a candidate at its bound."""
    job, gates = job_at(), [gate for gate in GATES if gate.units == "clusters"]
    rng, metric = np.random.default_rng(seed), job_metric(job)

    def decide() -> set[str]:
        parts = {confirming: draw_part(rng, seed=int(rng.integers(2**31))) for confirming in (False, True)}
        return wrong_decisions(
            job, lambda confirming, each: draw_answers(rng, parts[confirming], metric, each), gates, candidates
        )

    return _count(decide, gates, runs)


def count_wrong_on_launches(
    runs: int, seed: int, sides: tuple[Model, Model] = BURSTS, candidates: int = CANDIDATES
) -> dict[str, int]:
    """Return by gate on launches how many of the runs promote a candidate at its bound."""
    job, gates = job_at(truth_of(sides)), [gate for gate in GATES if gate.units == "launches"]
    rng = np.random.default_rng(seed)

    def draw(_: bool, confidence: float) -> dict[str, Any]:
        latency = draw_latency(rng, sides, confidence)
        return {"latency": latency, "beside_fp16": latency}

    return _count(lambda: wrong_decisions(job, draw, gates, candidates), gates, runs)


def _count(decide: Callable[[], set[str]], gates: list[Gate], runs: int) -> dict[str, int]:
    counts = dict.fromkeys((gate.name for gate in gates), 0)
    for _ in range(runs):
        for name in decide():
            counts[name] += 1
    return counts


def judge_slow_blocks(slow_blocks: float, runs: int, seed: int) -> dict[str, Any]:
    """Return how often single comparisons pass whose variant has slow blocks, by the first and by the last measurements.

    Bounds are a p95 ratio of 1.2, and a cost halfway between that of the ordinary blocks and the true one; for a variant
    without slow blocks 1.1 times the truth, which it should pass.
    """
    sides = Model(), Model(slow_blocks=slow_blocks)
    truth = truth_of(sides)
    bounds = {"p95_ratio": 1.2, "cost_per_million": (1 + truth.mean_ms) / 2}
    if not slow_blocks:
        bounds = {"p95_ratio": 1.1 * truth.p95_ratio, "cost_per_million": 1.1 * truth.mean_ms}
    job = job_at(**{f"max_{name}": bound for name, bound in bounds.items()})
    figures: dict[str, Any] = {"slow_blocks": slow_blocks, "bounds": bounds, "truth": vars(truth)}
    for words, hide in (("first", False), ("last", True)):
        rng, passed = np.random.default_rng(seed), dict.fromkeys(bounds, 0)
        for _ in range(runs):
            latency = draw_latency(rng, sides, job.gates.confidence, repeats_hide=hide)
            verdicts = _by_gate(judge_gates(measured_of(job, job.gates.confidence, latency=latency), ""))
            for name in bounds:
                passed[name] += verdicts[name].outcome == "pass"
        figures[words] = {name: share(count, runs) for name, count in passed.items()}
    return figures
