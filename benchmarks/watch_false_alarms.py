"""How often the watch is wrong: `python benchmarks/watch_false_alarms.py [DRIFT_LOOKS]`, on one core.

Two tables. Alarms of disagreement in watches of 1,000 hourly looks, exactly at the bound, inside it and beyond it, of 200
samples a look. And looks with a sign of drift where there is none: calibration sets of 128, each looked at several times
with 400 samples of the same source, in the view of a layer of random features.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tasks.watch.alarms import DRIFT_BY_CHANCE, Memory, Signal, find_alarms, remember, weigh
from tasks.watch.look import find_drift
from validators.calibration.model_view import Embeddings, ModelView
from validators.job.job_data import CalibrationBounds
from validators.job.job_watch import Watch
from validators.records.run import DataFile
from validators.samples.datasets import Samples

WATCHES, LOOKS, SAMPLES = 400, 1000, 200
FEATURES, HIDDEN, CLASSES = 64, 128, 4
LOOKS_A_SET = 10


def first_alarms(share: float, watch: Watch, rng: np.random.Generator, watches: int, looks: int) -> NDArray[np.intp]:
    """The look of the first alarm of each watch, `looks + 1` for none; shape `(watches,)`."""
    bound = 1 - watch.min_agreement
    # Evidence of a look depends on its count alone.
    evidence = [weigh(np.r_[np.ones(count), np.zeros(SAMPLES - count)], bound) for count in range(SAMPLES + 1)]
    first = np.full(watches, looks + 1)
    for place in range(watches):
        memory = Memory()
        for look, count in enumerate(rng.binomial(SAMPLES, share, looks), 1):
            found = [Signal("disagreement", count / SAMPLES, bound, evidence[count])]
            memory = remember(memory, found, watch)
            if find_alarms(memory, found, watch):
                first[place] = look
                break
    return first


def alarm_rows() -> Iterator[str]:
    rng = np.random.default_rng(1)
    yield "| looks between false alarms | truth (bound 0.10) | watches with an alarm | by the guarantee at most | median look |"
    yield "|---|---|---|---|---|"
    for between in (1_000, 10_000):
        watch = Watch(traffic="requests", looks_between_false_alarms=between)
        for share in (0.05, 0.09, 0.10, 0.12, 0.15, 0.20, 0.40):
            first = first_alarms(share, watch, rng, WATCHES, LOOKS)
            alarms = int((first <= LOOKS).sum())
            most = f"{min(1.0, LOOKS / between):.0%}" if share <= 0.1 else ""
            median = f"{np.median(first):.0f}" if alarms > WATCHES / 2 else ""
            yield f"| {between:,} | {share:.2f} | {alarms} of {WATCHES} | {most} | {median} |"


def drift_signs(looks: int) -> tuple[int, int]:
    """Looks with a sign of drift, of how many, where every sample is of one source."""
    rng = np.random.default_rng(2)
    centres = rng.normal(size=(CLASSES, FEATURES))
    weights = rng.normal(size=(FEATURES, HIDDEN)) / 8

    def draw(n: int) -> tuple[Samples, Embeddings]:
        x = (centres[rng.integers(0, CLASSES, n)] + rng.normal(size=(n, FEATURES)) * 2).astype(np.float32)
        hidden = np.maximum(x @ weights, 0).astype(np.float32)
        return Samples(DataFile(Path("drawn"), "", n), {"x": x}, None), Embeddings(hidden, np.arange(n))

    signs = total = 0
    while total < looks:
        calibration, ours = draw(128)
        for _ in range(LOOKS_A_SET):
            traffic, theirs = draw(400)
            theirs = Embeddings(theirs.vectors[:384], theirs.rows[:384])
            view = ModelView("hidden", ours, theirs, ())
            signs += bool(find_drift(calibration, traffic, view, CalibrationBounds(), seed=7)[0])
            total += 1
    return signs, total


def main() -> None:
    for row in alarm_rows():
        print(row)
    signs, total = drift_signs(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    print(
        f"\nlooks with a sign of drift where there is none: {signs} of {total}; assumed at most {DRIFT_BY_CHANCE:.0%}"
    )


if __name__ == "__main__":
    main()
