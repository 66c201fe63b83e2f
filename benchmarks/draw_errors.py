"""How often the gate on calibration draws is wrong, by simulation with the functions of a run.

    python benchmarks/draw_errors.py    # some minutes on one core

Each experiment has `draws` variants that answer the same evaluation samples: right where a margin of the sample, a shift of the
draw and a little noise of both is above zero. The shifts make the true accuracies of draws normal around that of the source, or
break a draw altogether with a probability of 1/e, as if one sample of the calibration data decided.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from figures import save, share
from numpy.typing import NDArray
from scipy.special import ndtri

from tasks.run.user_functions import job_metric
from tasks.trials.draws import spread_between
from validators.gates.draws import judge_draw_spread
from validators.gates.verdict_rules import confidence_of_each
from validators.job.read_job import parse_job
from validators.records.measurements import Draws

EXPERIMENTS = 500
BOUND, ACCURACY, CLASSES = 0.01, 0.8, 4
# Standard deviation of a sample's margin between draws: 1.7 % of the answers of two draws differ.
NOISE = 0.05
BROKEN = 0.1
METRICS = ("accuracy", "f1_macro")


def main() -> None:
    rows = []
    for metric in METRICS:
        for samples in (500, 2000):
            for draws in (5, 10):
                for spread in (0.0, BOUND / 2, BOUND, 2 * BOUND, 4 * BOUND, None):
                    found = outcomes(metric, samples, draws, spread, EXPERIMENTS, seed=len(rows))
                    rows.append({"metric": metric, "samples": samples, "draws": draws, "spread": spread, **found})
    save("draw_errors", {"bound": BOUND, "broken_by": BROKEN, "experiments": EXPERIMENTS, "rows": rows})


def outcomes(
    name: str, samples: int, draws: int, spread: float | None, experiments: int, *, seed: int
) -> dict[str, Any]:
    """Return how often the verdict is each outcome; without a `spread` a draw in 2.7 is broken."""
    job = parse_job(
        {
            "source": "model.onnx",
            "data": {"calibration": "c.npz", "evaluation": "e.npz"},
            "metric": name,
            "gates": {"max_draw_spread": BOUND},
            "calibration": {"draws": draws},
        },
        base=Path(),
    )
    metric = job_metric(job)
    confidence = confidence_of_each(job.gates.confidence, job.confirmation.candidates)
    rng = np.random.default_rng(seed)
    counts: Counter[str] = Counter()
    for _ in range(experiments):
        margins = rng.normal(size=samples)
        labels = rng.integers(0, CLASSES, samples)
        rows = []
        for accuracy in _accuracies(draws, spread, rng):
            shift = math.sqrt(1 + NOISE**2) * float(ndtri(accuracy))
            right = margins + shift + NOISE * rng.normal(size=samples) > 0
            rows.append(metric.rows(_scores(labels, right), labels, None))
        found, noise = spread_between(metric, rows, np.arange(samples), confidence, seed=job.seed)
        verdict = judge_draw_spread(Draws(0.0, (0.0,) * draws, found, noise, confidence, 128), job.gates)
        assert verdict is not None
        counts[verdict.outcome] += 1
    return {outcome: share(counts[outcome], experiments) for outcome in ("pass", "inconclusive", "fail")}


def _accuracies(draws: int, spread: float | None, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the true accuracy of each draw, shape `(draws,)`."""
    if spread is None:
        return np.where(rng.random(draws) < 1 / math.e, ACCURACY - BROKEN, ACCURACY)
    return np.clip(rng.normal(ACCURACY, spread, draws), 0.01, 0.99)


def _scores(labels: NDArray[Any], right: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Return class scores `(n, classes)` with the label, or the class after it, as the answer."""
    answers = np.where(right, labels, (labels + 1) % CLASSES)
    return np.eye(CLASSES, dtype=np.float32)[answers]


if __name__ == "__main__":
    main()
