"""How often a verdict on accuracy is wrong when samples come in clusters, with the clusters named and ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from figures import share
from numpy.typing import NDArray
from verdict_errors_draws import CONFIDENCE, Floats, error_rate_drop, error_rates, few_change, flips, squared_errors

from validators.gates.accuracy import judge_drop
from validators.gates.clusters import clustered_drop_interval
from validators.gates.intervals import Clusters, drop_interval, paired_interval
from validators.job.job_gates import Gates
from validators.records.measurements import Estimate

TOLERANCE = 0.02
# Rows of one draw with this true drop: drops of shape (n,), or rows before and after of shape (n, 2).
Draw = Callable[[np.random.Generator, int, float], tuple[Floats, ...]]
KINDS: dict[str, Draw] = {
    "flips 2 %": lambda rng, n, drop: (flips(0.02)(rng, n, drop),),
    "flips 10 %": lambda rng, n, drop: (flips(0.10)(rng, n, drop),),
    "squared errors": lambda rng, n, drop: (squared_errors(rng, n, drop),),
    "few change": lambda rng, n, drop: (few_change(rng, n, drop),),
    "error rate": error_rates,
}
# Kind and cluster sizes that the rule was not chosen with.
HELD_OUT: dict[str, Draw] = {"flips 5 %": lambda rng, n, drop: (flips(0.05)(rng, n, drop),)}
HELD_OUT_SAMPLES, HELD_OUT_SIZES = (300, 1000, 4000), (3, 10, 50)
SAMPLES, SIZES = (200, 500, 2000, 10000), (1, 5, 20, 100)
# Of 500 samples only the cells with fewest clusters are simulated.
FEW = {500: (100,)}
# How many samples of a cluster are copies of one draw: all of them, or each with a probability of one half.
FOLLOW = {"fully": 1.0, "partly": 0.5}
# Sizes of clusters that differ: log-normal, of this spread, with the mean as asked.
SPREAD = 0.8
Cell = tuple[str, int, int, str, str]


def cells() -> list[Cell]:
    """Return kind, samples, samples a cluster, correlation and sizes of each cell; there are at least five clusters in all."""
    found: list[Cell] = []
    for kind in KINDS:
        for n in SAMPLES:
            # Each of its experiments reckons the metric 250 times.
            if kind == "error rate" and n != 2000:
                continue
            for size in FEW.get(n, SIZES):
                if n // size >= 5:
                    found += [(kind, n, size, like, "equal") for like in (FOLLOW if size > 1 else ["not"])]
        found += [(kind, 2000, size, like, "differ") for size in (5, 20) for like in FOLLOW]
    return found


def held_out_cells() -> list[Cell]:
    """Return cells of a kind, numbers of samples and cluster sizes that `cells` lacks, with at least five clusters each."""
    return [
        (kind, n, size, like, sizes)
        for kind in HELD_OUT
        for n in HELD_OUT_SAMPLES
        for size in HELD_OUT_SIZES
        for like in FOLLOW
        for sizes in ("equal", "differ")
        if n // size >= 5
    ]


def cell_of(row: dict[str, Any]) -> Cell:
    """Return the cell that a row of the results describes."""
    return (row["kind"], row["n"], row["samples_a_cluster"], row["correlated"], row["sizes"])


def judge_clustered(cell: Cell, seed: int, experiments: int) -> dict[str, Any]:
    """Return the shares that pass at the tolerance and without a drop, with the clusters named and ignored."""
    kind, n, size, like, sizes = cell
    rng, easy = np.random.default_rng(seed), experiments // 4

    def outcomes(drop: float, count: int) -> tuple[list[str], list[str]]:
        named, ignored = [], []
        for _ in range(count):
            rows, clusters = _draw(rng, kind, n, size, FOLLOW.get(like, 0.0), sizes == "differ", drop)
            named.append(_outcome(rows, clusters))
            ignored.append(_outcome(rows, None))
        return named, ignored

    (lost, lost_ignored), (kept, kept_ignored) = outcomes(TOLERANCE, experiments), outcomes(0.0, easy)
    return {
        "kind": kind,
        "n": n,
        "samples_a_cluster": size,
        "clusters": n // size,
        "correlated": like,
        "sizes": sizes,
        "pass_at_tolerance": share(lost.count("pass"), experiments),
        "pass_at_tolerance_clusters_ignored": share(lost_ignored.count("pass"), experiments),
        "no_interval": share(lost.count("no interval"), experiments),
        "pass_without_drop": share(kept.count("pass"), easy),
        "pass_without_drop_clusters_ignored": share(kept_ignored.count("pass"), easy),
    }


def _draw(
    rng: np.random.Generator, kind: str, n: int, size: int, follow: float, differ: bool, drop: float
) -> tuple[tuple[Floats, ...], Clusters]:
    """Return rows of about `n` samples, and the cluster of each."""
    count = n // size
    sizes: NDArray[np.intp] = np.full(count, size)
    if differ:
        sizes = np.maximum(1, np.round(size * rng.lognormal(-(SPREAD**2) / 2, SPREAD, count))).astype(np.intp)
    clusters = np.repeat(np.arange(count), sizes)
    draw = (KINDS | HELD_OUT)[kind]
    of_clusters, own = draw(rng, count, drop), draw(rng, len(clusters), drop)
    follows = rng.random(len(clusters)) < follow
    mixed = []
    for common, single in zip(of_clusters, own, strict=True):
        chosen = follows if single.ndim == 1 else follows[:, None]
        mixed.append(np.where(chosen, common[clusters], single))
    return tuple(mixed), clusters


def _outcome(rows: tuple[Floats, ...], clusters: Clusters | None) -> str:
    drop, method = _estimate(rows, clusters)
    if drop.high is None:
        return "no interval"
    return judge_drop(drop, Gates(max_drop=TOLERANCE, confidence=CONFIDENCE), n=len(rows[0]), method=method).outcome


def _estimate(rows: tuple[Floats, ...], clusters: Clusters | None) -> tuple[Estimate, str]:
    if len(rows) == 2:
        return paired_interval(rows[0], rows[1], error_rate_drop, CONFIDENCE, seed=0, clusters=clusters)
    if clusters is None:
        return drop_interval(rows[0], CONFIDENCE)
    return clustered_drop_interval(rows[0], clusters, CONFIDENCE)
