"""Which samples of a pool to calibrate with: a few that lie near everything, and in the proportions in which it comes.

Two things are asked of a calibration set, and either alone is easy. It must cover: of a kind of sample that it lacks nobody
has measured the ranges. And it must look like a random draw of the traffic, which is what it is held against: by simple
statistics of the samples, and by the maximum mean discrepancy of their embeddings. Facility location alone takes hubs, in the
text demo the longest texts and the shortest (p-value of the lengths below 0.0005, of the discrepancy 0.005); k-center takes
outliers and covers less than a random draw; herding alone gains less than half as much nearness as the sum of both below.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import JobError

# What looking different costs against what lying far costs, for each sample of the set. A random draw of n samples has an
# energy distance of 1/n of the mean distance between two samples: times n, its cost is the same at every size, and neither
# term has a scale. Tried on texts and images with 24 to 600 samples: at 1/16 the norms of the embeddings differ (p-value 0.002
# to 0.014 for the texts), at 1/2 up to a third of the gain in nearness is lost and the discrepancy is hardly smaller.
WEIGHT = 0.25
# In the text demo all 6,000 reference samples instead of 4,000 gain 0.1 to 0.3 % of nearness. Together they take 128 MB.
MAX_CANDIDATES = 8_000
MAX_REFERENCE = 4_000
MAX_DISTANCES = MAX_CANDIDATES * MAX_REFERENCE
BLOCK = 512

Matrix = NDArray[np.floating[Any]]
Places = NDArray[np.intp]


def choose_samples(
    pool: Matrix,
    size: int,
    *,
    strata: NDArray[Any] | None = None,
    reference: Matrix | None = None,
    eligible: NDArray[np.bool_] | None = None,
    seed: int,
) -> Places:
    """Rows of the pool, ascending, shape `(size,)`: a set that represents `reference` (the pool itself without one).

    `pool` (shape `(n, d)`) and `reference` (shape `(m, d)`) hold one embedding a sample, as the same model sees it. Each of
    `strata` (shape `(n,)`) gets its share of the eligible rows, by largest remainder; what the reference's shares are is not
    known. Only rows that are `eligible` (shape `(n,)`) are chosen; of samples with the same embedding a second one only when
    nothing else is left to take. Of large pools, a seeded draw of candidates and of reference samples is looked at.

    The set is grown one sample at a time, by whichever leaves the least of `mean nearest + WEIGHT * samples * energy`:

    - the mean distance from a reference sample to the nearest one in the set. What it saves over the farthest candidate is
      facility location, monotone and submodular: alone, the greedy choice would save 1 - 1/e of the most that can be
      (G. Nemhauser, L. Wolsey, M. Fisher, Mathematical Programming 14, 1978), with strata half of it (M. Fisher et al.,
      Mathematical Programming Study 8, 1978). Distances and no kernel of them: there is no bandwidth to choose, a far sample
      still counts, and the other term has the same unit;
    - the energy distance from the set to the reference, 2 E|X-Y| - E|X-X'| - E|Y-Y'| (G. Székely and M. Rizzo, Journal of
      Statistical Planning and Inference 143, 2013), a maximum mean discrepancy whose kernel has no bandwidth. Lowering it
      one sample at a time is herding (Y. Chen, M. Welling, A. Smola, UAI 2010). No guarantee covers the sum.

    Text demo, 128 of 6,000, against 1,500 held out and 20 stratified random draws: mean nearest distance 3.59 (draws 3.68 to
    3.81, facility location 3.51, herding 3.67, k-center 3.74); biased squared discrepancy 0.0027 (draws 0.0047 to 0.0060,
    facility location 0.0081, herding 0.0027, k-center 0.147).

    >>> clusters = np.array([[0, 0], [0, 1], [1, 0], [90, 90], [90, 91], [91, 90]], np.float32)
    >>> choose_samples(clusters, 2, seed=0)
    array([0, 3])

    Raises:
        JobError: `size` is not from 1 to the eligible rows, an eligible or reference embedding is not finite, or the reference
            is empty or has another width than the pool.
    """
    rows = np.arange(len(pool)) if eligible is None else np.flatnonzero(eligible)
    _check(pool, rows, size, reference)
    rng = np.random.default_rng(seed)
    labels = np.zeros(len(rows), np.intp) if strata is None else np.unique(strata[rows], return_inverse=True)[1]
    quotas = share_out(np.bincount(labels), size, rng)
    kinds = _number_embeddings(pool, rows)
    kept = _draw_candidates(labels, kinds, quotas, rng)
    points = pool[rows[kept]].astype(np.float64)

    among, places = (pool, rows) if reference is None else (reference, np.arange(len(reference)))
    count = min(MAX_REFERENCE, max(1, MAX_DISTANCES // len(kept)))
    seen = among[np.sort(rng.permutation(places)[:count])].astype(np.float64)
    return np.sort(rows[kept[_grow(points, _measure_distances(points, seen), labels[kept], kinds[kept], quotas)]])


def share_out(counts: Places, size: int, rng: np.random.Generator) -> Places:
    """How many of `size` samples each stratum gets, in proportion to `counts` (shape `(strata,)`), by largest remainder.

    None gets more than it has, if `size` is at most the sum of `counts`. Of equal remainders, random ones are rounded up: with
    more labels than samples it would otherwise always be the first labels.

    >>> share_out(np.array([50, 30, 20]), 7, np.random.default_rng(0))  # 3.5, 2.1 and 1.4
    array([4, 2, 1])
    """
    # In whole numbers: remainders that are equal must not differ by rounding.
    quotas, remainders = np.divmod(counts * size, counts.sum())
    order = np.lexsort((rng.permutation(len(counts)), -remainders))
    quotas[order[: size - int(quotas.sum())]] += 1
    return np.asarray(quotas)


def _check(pool: Matrix, rows: Places, size: int, reference: Matrix | None) -> None:
    if not 1 <= size <= len(rows):
        raise JobError(
            found=f"{size} samples asked for, {len(rows)} of the pool's {len(pool)} eligible",
            expected=f"a size from 1 to {len(rows)}" if len(rows) else "eligible samples",
            fix="a smaller size, or a larger pool",
        )
    if reference is not None and (not len(reference) or reference.shape[1] != pool.shape[1]):
        raise JobError(
            found=f"a reference of shape {reference.shape} for a pool of shape {pool.shape}",
            expected="at least one reference sample, and embeddings of one width",
            fix="embed both with the same tensor of the same model",
        )
    broken = sum(1 for row in rows if not np.isfinite(pool[row]).all())
    broken_reference = 0 if reference is None else sum(1 for row in reference if not np.isfinite(row).all())
    if broken or broken_reference:
        raise JobError(
            found=f"NaN or infinity in the embeddings of {broken} eligible samples and {broken_reference} of the reference",
            expected="finite embeddings",
            fix="leave these samples out: the model computes nothing of use from them",
        )


def _number_embeddings(pool: Matrix, rows: Places) -> Places:
    """A number for each of `rows`, the same one for the same embedding."""
    # Digests and not np.unique, which would sort a second copy of the whole pool. Adding zero makes -0.0 the same as 0.0.
    digests = [hashlib.blake2b((pool[row] + 0.0).tobytes(), digest_size=16).digest() for row in rows]
    numbers = {digest: number for number, digest in enumerate(dict.fromkeys(digests))}
    return np.array([numbers[digest] for digest in digests], np.intp)


def _draw_candidates(labels: Places, kinds: Places, quotas: Places, rng: np.random.Generator) -> Places:
    """Places of the samples that may be chosen, ascending: of each stratum its share, copies of others last."""
    order = rng.permutation(len(labels))
    first = np.zeros(len(labels), bool)
    first[order[np.unique(kinds[order], return_index=True)[1]]] = True
    order = order[np.argsort(~first[order], kind="stable")]
    limit = min(len(labels), max(MAX_CANDIDATES, 2 * int(quotas.sum())))
    # A larger whole can have smaller parts (the Alabama paradox of largest remainders).
    limits = np.maximum(share_out(np.bincount(labels), limit, rng), quotas)
    return np.sort(np.concatenate([order[labels[order] == label][:most] for label, most in enumerate(limits)]))


def _measure_distances(points: NDArray[np.float64], others: NDArray[np.float64]) -> Matrix:
    """Euclidean distances, shape `(len(points), len(others))`, computed in blocks in double precision."""
    from sklearn.metrics.pairwise import euclidean_distances

    distances = np.empty((len(points), len(others)), np.float32)
    for start in range(0, len(points), BLOCK):
        distances[start : start + BLOCK] = euclidean_distances(points[start : start + BLOCK], others)
    return distances


def _grow(points: NDArray[np.float64], distances: Matrix, labels: Places, kinds: Places, quotas: Places) -> list[int]:
    """The greedy choice among `points`, as places, from their `distances` (shape `(points, reference)`) to the reference."""
    mean_distance = distances.mean(axis=1, dtype=np.float64)
    nearest = distances.max(axis=0)
    # What a sample would save in nearness: true of the empty set, and from then on an upper bound.
    saves = nearest.mean(dtype=np.float64) - mean_distance
    to_chosen = np.zeros(len(points))
    left, taken, copied = quotas.copy(), np.zeros(len(points), bool), np.zeros(len(points), bool)
    chosen: list[int] = []
    for count in range(1, int(quotas.sum()) + 1):
        free = (left[labels] > 0) & ~taken
        if (free & ~copied).any():
            free &= ~copied
        # WEIGHT * count * energy, less all that is the same whichever sample is added.
        cost = np.where(free, 2 * WEIGHT * (mean_distance - to_chosen / count), np.inf)
        best = _find_best(distances, nearest, saves, cost)
        chosen.append(best)
        left[labels[best]] -= 1
        taken[best] = True
        copied |= kinds == kinds[best]
        nearest = np.minimum(nearest, distances[best])
        to_chosen += _measure_distances(points[[best]], points)[0]
    return chosen


def _find_best(distances: Matrix, nearest: Matrix, saves: NDArray[np.float64], cost: NDArray[np.float64]) -> int:
    """The place with the greatest `saves - cost`, with as few of `saves` brought up to date as that takes.

    M. Minoux, "Accelerated greedy algorithms for maximizing submodular set functions", Optimization Techniques, 1978: what a
    sample saves only falls as the set grows. `saves` is updated in place.
    """
    score = saves - cost
    stale = np.ones(len(score), bool)
    while stale[best := int(score.argmax())]:
        saves[best] = np.maximum(nearest - distances[best], 0).mean(dtype=np.float64)
        score[best] = saves[best] - cost[best]
        stale[best] = False
    return best
