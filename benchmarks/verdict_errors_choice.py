"""What a choice among many does to the figures of the chosen, and what the confirmation split makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from verdict_errors_draws import CONFIDENCE, flips

from tasks.measure.latency.ratio import ratio_estimate
from validators.gates.accuracy import judge_drop
from validators.gates.intervals import drop_interval
from validators.gates.verdict_rules import bounded, confidence_of_each
from validators.job.job import Confirmation
from validators.job.job_gates import Gates
from validators.records.run import DataFile
from validators.records.verdicts import Verdict
from validators.samples.confirmation_split import confirmation_mask
from validators.samples.datasets import Samples

CANDIDATES, SAMPLES, FLIPS = 20, 2000, 0.05
BOUND = 1.05
# As latency is measured by default, and as its logarithms scatter on a shared virtual machine.
LAUNCHES, PAIRS, LAUNCH_SD, PAIR_SD = 6, 3, 0.01, 0.06
CONFIRMATION = Confirmation()
OF_EACH = confidence_of_each(CONFIDENCE, CONFIRMATION.candidates)

Floats = NDArray[np.float64]


def choose_by_drop(drop: float, seed: int, experiments: int) -> dict[str, Any]:
    """Candidates that all lose `drop` in truth, best first by a speed that has nothing to do with it.

    All 2,000 samples choose and judge; or, beside it, half of them choose, and the first three that pass are held against the
    other half, in order, until one passes.
    """
    rng = np.random.default_rng(seed)
    gates, strict = Gates(), Gates(confidence=OF_EACH)
    at_once, confirmed, flattered, honest = 0, 0, [], []
    for _ in range(experiments):
        drops = np.stack([flips(FLIPS)(rng, SAMPLES, drop) for _ in range(CANDIDATES)])
        kept = confirmation_mask(_samples(rng), CONFIRMATION.share, 1)
        everywhere = [_judge(lost, gates) for lost in drops]
        chosen = next((verdict for verdict in everywhere if verdict.outcome == "pass"), None)
        at_once += chosen is not None
        if chosen is not None and chosen.value is not None:
            flattered.append(drop - chosen.value)
        ranked = [lost for lost in drops if _judge(lost[~kept], gates).outcome == "pass"][: CONFIRMATION.candidates]
        verdicts = [_judge(lost[kept], strict) for lost in ranked]
        confirmed += any(verdict.outcome == "pass" for verdict in verdicts)
        honest += [drop - verdict.value for verdict in verdicts[:1] if verdict.value is not None]
    return _figures(experiments, at_once, confirmed, flattered, honest)


def choose_by_speed(ratio: float, seed: int, experiments: int) -> dict[str, Any]:
    """Candidates that are all `ratio` times as fast in truth, best first by what was measured.

    The measurement that chose judges; or, beside it, the first three that pass are measured again, in order.
    """
    rng = np.random.default_rng(seed)
    at_once, confirmed, flattered, honest = 0, 0, [], []
    for _ in range(experiments):
        first = [_judge_speed(rng, ratio, CONFIDENCE) for _ in range(CANDIDATES)]
        ranked = sorted((verdict.value or 0.0 for verdict in first if verdict.outcome == "pass"), reverse=True)
        at_once += bool(ranked)
        flattered += [value - ratio for value in ranked[:1]]
        again = [_judge_speed(rng, ratio, OF_EACH) for _ in ranked[: CONFIRMATION.candidates]]
        confirmed += any(verdict.outcome == "pass" for verdict in again)
        honest += [verdict.value - ratio for verdict in again[:1] if verdict.value is not None]
    return _figures(experiments, at_once, confirmed, flattered, honest)


def _figures(
    experiments: int, at_once: int, confirmed: int, flattered: list[float], honest: list[float]
) -> dict[str, Any]:
    return {
        "experiments": experiments,
        "promoted on what chose": at_once,
        "promoted after confirmation": confirmed,
        "flattery on what chose": float(np.mean(flattered)) if flattered else None,
        "flattery on confirmation": float(np.mean(honest)) if honest else None,
    }


def _judge(lost: Floats, gates: Gates) -> Verdict:
    drop, method = drop_interval(lost, gates.confidence)
    return judge_drop(drop, gates, n=len(lost), method=method)


def _judge_speed(rng: np.random.Generator, ratio: float, confidence: float) -> Verdict:
    logs = rng.normal(0, LAUNCH_SD, (LAUNCHES, 1)) + rng.normal(0, PAIR_SD, (LAUNCHES, PAIRS))
    estimate = ratio_estimate((ratio * np.exp(logs)).tolist(), confidence)
    return bounded("speedup", estimate, BOUND, "at_least", confidence, LAUNCHES, "launches", "{:.3f}x".format)


def _samples(rng: np.random.Generator) -> Samples:
    inputs = {"x": rng.integers(0, 2**60, (SAMPLES, 1))}
    return Samples(DataFile(Path("simulated.npz"), "", SAMPLES), inputs, None)
