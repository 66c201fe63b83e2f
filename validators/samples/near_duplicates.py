"""Near-duplicate samples: an image with a little noise or another compression, a text with a word changed.

Two samples are near if they are near in every input. Masks carry no information of their own and are ignored unless all inputs
are masks. For the other kinds (`validators.samples.sample_statistics`) near means

- for magnitudes, a root mean square difference of up to 20 % of the standard deviation over `others`. Independent samples
  differ by 141 %; at 20 % they correlate by 1 - 0.2^2 / 2 = 98 % about the mean sample. For the demo's digits, 8 bits, JPEG of
  quality 30, half the size and back, and another interpolation give 0.3, 5, 9 and 16 %; a shift by 1 of 96 pixels, which is
  not near, gives 23 %. The two most similar of 5,000 are 16 % apart.
- for indices, in any order, an affinity of at least 85 %, so that a text of 7 tokens may have one replaced. The affinity is the
  sum over tokens of sqrt(x y) / sqrt(|x| |y|), with x and y a token's counts and |x| and |y| the numbers of tokens in the two
  samples (A. Bhattacharyya, 1943). It weighs all occurrences equally, whereas the cosine of counts gives a token that occurs
  five times the weight of 25. Of 10,568 reviews of the demo 0.2 % have such a neighbour.

Both are Euclidean distances, the second as sqrt(2 - 2 affinity). A random projection to 64 components keeps distances within
9 %, whatever the size (W. Johnson and J. Lindenstrauss, 1984): it selects a few candidates, which are then measured in full.
Distances are scaled so that 1 is the limit of near. If samples have so few degrees of freedom that many are that near by
chance, the limit shrinks until at most 2 % of `others` have a near-duplicate among themselves, exact copies aside.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from validators.samples.datasets import Arrays
from validators.samples.sample_statistics import Kind, blocks_of, kind_of

MAX_DIFFERENCE = 0.2
MIN_AFFINITY = 0.85
# Detection rates at p < 0.001 with 10 of 128 samples leaked from 2,000: for normal samples of 3 and 6 dimensions, leaked with
# 1 % noise, 97 to 100 % (33 to 50 % with a limit of 5 % here); for texts of which 5 % have a relative, leaked with a word
# replaced, 67 % (33 % with a limit of 1 % here).
MAX_NATURAL_SHARE = 0.02
# If fewer entries than this carry the variance, the input is a table whose columns have units of their own.
MIN_CARRIERS = 16
COMPONENTS = 64
# The projection stretches one pair in 10,000 by more: the 0.9999 quantile of sqrt(chi2 / 64), 64 degrees of freedom, is 1.34.
SLACK = 1.34
CANDIDATES = 5
# Tokens are hashed to components: 31 bits, folded to 14 for the projection, where a collision hardly matters.
TOKEN_BITS, FOLDED_BITS = 31, 14
# Spread and natural share of all others are estimated from this many, evenly spaced.
MAX_SAMPLES = 2000
# Values per block: 8 MB as float32. In smaller blocks the projection is limited by memory bandwidth.
BLOCK_VALUES = 2**21
# A difference of less than this fraction of an input's size is rounding.
RESOLUTION = 1e-6
# Larger values count as infinite, so that no sum of squares overflows.
MAX_VALUE = np.float32(1e30)
# Far from everything, but its square fits into float32.
FAR = 1e9

Rows = NDArray[np.intp]
Vectors = Any  # float32 of shape (k, d): dense, or a sparse array
Encoder = Callable[[NDArray[Any]], Vectors]


@dataclass(frozen=True)
class _Side:
    """Samples, the rows that can be compared (shape `(k,)`), and their projected vectors (shape `(k, components)`)."""

    arrays: Arrays
    rows: Rows
    points: NDArray[np.float32]

    def take(self, positions: Rows) -> _Side:
        return _Side(self.arrays, self.rows[positions], self.points[positions])

    def report(self, nearest: Rows, near: NDArray[np.bool_]) -> Rows:
        """Return `nearest` in the rows marked by `near` (shapes `(k,)`), and -1 in all other rows; shape `(n,)`."""
        found = np.full(len(next(iter(self.arrays.values()))), -1, np.intp)
        found[self.rows[near]] = nearest[near]
        return found


def find_near_duplicates(samples: Arrays, others: Arrays) -> Rows:
    """Return for each of `n` samples the row of its nearest near-duplicate in `others`, or -1; intp of shape `(n,)`.

    Each array has shape `(n, ...)` in `samples` and `(m, ...)` in `others`. Exact copies count as near-duplicates. A sample
    with NaN, Inf, or a value beyond 1e30 neither has nor is a near-duplicate.

    >>> others = {"ids": np.array([range(10, 20), range(40, 50)])}
    >>> find_near_duplicates({"ids": np.array([[12, 11, 10, *range(13, 19), 99], range(70, 80)])}, others)
    array([ 0, -1])
    """
    encoders = _make_encoders(samples, others)
    ours, theirs = _project(samples, encoders), _project(others, encoders)
    drawn = _draw(len(theirs.rows))
    among, _ = _find_nearest(theirs.take(drawn), theirs, encoders, itself=drawn)
    distances, nearest = _find_nearest(ours, theirs, encoders)
    return ours.report(nearest, distances <= _choose_radius(among))


def find_near_duplicates_within(arrays: Arrays) -> Rows:
    """Return for each of `n` samples the row of its nearest near-duplicate in the same set, or -1; intp of shape `(n,)`.

    The limit of near is that of `find_near_duplicates(samples, arrays)`.

    >>> find_near_duplicates_within({"ids": np.array([range(10, 20), range(40, 50), [99, *range(11, 20)]])})
    array([ 2, -1,  0])
    """
    encoders = _make_encoders(arrays, arrays)
    side = _project(arrays, encoders)
    distances, nearest = _find_nearest(side, side, encoders, itself=np.arange(len(side.rows)))
    return side.report(nearest, distances <= _choose_radius(distances[_draw(len(side.rows))]))


def chance_of_so_many(hits: int, n: int, natural_hits: int, m: int) -> float:
    """Return the p-value that at least `hits` of `n` new samples have a near-duplicate among `m` others by chance alone.

    `natural_hits` of the `m` others have a near-duplicate among themselves. If all n + m samples come from one draw, a pair
    of near-duplicates is equally likely to fall on any two of them: each pair across gives one hit, each pair among the others
    two natural hits. Chance distributes pairs, so the others count by halves in Fisher's exact test (R. A. Fisher, 1934): of
    all `hits` + `natural_hits` / 2 pairs, at least `hits` are across, with the probability of drawing them with `n` of
    n + m / 2. Counted singly, p < 0.001 would occur in 0.6 % of draws of n = m = 2,000 with 0.5 to 5 % of samples in a pair; by
    halves it occurs in less than 0.1 %, at n = 128 as well.

    Duplicates that are as common among the others count as natural: frames of one film on both sides are not detected, and
    frames on one side hide other leaks. With 128 samples against 2,000, at p < 0.001, detection takes 4 leaked samples if no
    others are near-duplicates. Detection in 9 of 10 cases takes 6 if 0.5 % of the others are, 10 with 2 %, and 14 with 5 %. A
    smaller `m` takes more: 7 of 128 against 500, and 17 of 2,000 against as many, if none are.

    >>> round(chance_of_so_many(4, 128, 0, 2000), 6), round(chance_of_so_many(4, 128, 20, 2000), 3)
    (0.000159, 0.064)
    """
    pairs, places = math.ceil(natural_hits / 2), math.ceil(m / 2)
    return float(stats.hypergeom.sf(hits - 1, n + places, hits + pairs, n))


def allow_by_chance(n: int, natural_hits: int, m: int, min_p_value: float) -> int:
    """Return how many near-duplicates `n` new samples may have before `chance_of_so_many` falls below `min_p_value`.

    >>> [allow_by_chance(128, natural_hits, 2000, 0.001) for natural_hits in (0, 10, 100)]
    [3, 5, 16]
    """
    counts = range(n + 1)
    return bisect.bisect(counts, -min_p_value, key=lambda hits: -chance_of_so_many(hits, n, natural_hits, m)) - 1


def _make_encoders(samples: Arrays, others: Arrays) -> dict[str, Encoder]:
    """Return an encoder for each informative input: it turns a block into vectors that are near up to a distance of 1."""
    kinds: dict[str, Kind] = {}
    for name, array in others.items():
        if array.size:
            either = kind_of(array), kind_of(samples[name])
            kinds[name] = "index" if "index" in either else either[0]
    encoders: dict[str, Encoder] = {name: _count_tokens for name, kind in kinds.items() if kind == "index"}
    encoders |= {name: _scale_by(others[name]) for name, kind in kinds.items() if kind == "magnitude"}
    # If all inputs are masks, the positions that are set serve as tokens.
    return encoders or {name: _count_places for name, kind in kinds.items() if kind == "mask"}


def _count_places(block: NDArray[Any]) -> Vectors:
    return _count_tokens(block * np.arange(1, block.shape[1] + 1))


def _scale_by(others: NDArray[Any]) -> Encoder:
    """Return an encoder of magnitudes in units of `MAX_DIFFERENCE` spreads over `others` times the root of the entry count."""
    rows = _usable({"": others})
    rows = rows[_draw(len(rows))]
    count, entries = max(1, len(rows)), math.prod(others.shape[1:])
    center, variances = np.zeros(entries), np.zeros(entries)
    for _, block in blocks_of(others, rows, BLOCK_VALUES):
        center += block.sum(axis=0, dtype=np.float64) / count
    for _, block in blocks_of(others, rows, BLOCK_VALUES):
        variances += ((block - center) ** 2).sum(axis=0) / count
    sizes = variances + center**2
    # The effective number of terms of a sum: L. Kish, "Survey Sampling", 1965.
    if variances.sum() ** 2 >= MIN_CARRIERS * (variances**2).sum():
        variances, sizes = variances.mean(), sizes.mean()
    spread = np.sqrt(np.maximum(variances, RESOLUTION**2 * sizes))
    # The smallest unit applies to entries that are 0 in all others: no other value is near them.
    unit = np.maximum(spread * MAX_DIFFERENCE * np.sqrt(entries), np.finfo(np.float32).tiny)

    def encode(block: NDArray[Any]) -> Vectors:
        # float32 resolves a tenth of `RESOLUTION`.
        with np.errstate(over="ignore"):
            scaled = (block.astype(np.float32) - center.astype(np.float32)) / unit.astype(np.float32)
        return scaled.clip(-FAR, FAR)

    return encode


def _count_tokens(block: NDArray[Any]) -> Vectors:
    """Return the roots of the tokens' shares of a sample, without 0, scaled so that `MIN_AFFINITY` is a distance of 1."""
    rows, columns = np.nonzero(block)
    # D. Knuth, The Art of Computer Programming 3, 6.4: multiples of the golden ratio spread neighbouring numbers evenly.
    places = (block[rows, columns].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - TOKEN_BITS)
    shares = 1 / np.count_nonzero(block, axis=1)[rows] / (2 - 2 * MIN_AFFINITY)
    entries = (shares.astype(np.float32), (rows, places.astype(np.int64)))
    return sparse.csr_array(entries, shape=(len(block), 2**TOKEN_BITS)).sqrt()  # csr_array sums duplicate entries


def _fold(vectors: Vectors) -> Vectors:
    """Fold sparse vectors to fewer columns, so that each can have a random direction; return dense ones unchanged."""
    if not isinstance(vectors, sparse.csr_array):
        return vectors
    entries = (vectors.data, vectors.indices >> (TOKEN_BITS - FOLDED_BITS), vectors.indptr)
    return sparse.csr_array(entries, shape=(vectors.shape[0], 2**FOLDED_BITS))


def _usable(arrays: Arrays) -> Rows:
    """Return the rows where all floats are finite and at most `MAX_VALUE` in magnitude."""
    usable = np.ones(len(next(iter(arrays.values()))), np.bool_)
    for array in arrays.values():
        if array.dtype.kind == "f":
            for part, block in blocks_of(array, values=BLOCK_VALUES):
                usable[part] &= (np.abs(block) <= MAX_VALUE).all(axis=1)
    return np.flatnonzero(usable)


def _project(arrays: Arrays, encoders: dict[str, Encoder]) -> _Side:
    rows = _usable(arrays)
    points = [_project_input(arrays[name], rows, encode, seed) for seed, (name, encode) in enumerate(encoders.items())]
    return _Side(arrays, rows, np.concatenate([np.zeros((len(rows), 0), np.float32), *points], axis=1))


def _project_input(array: NDArray[Any], rows: Rows, encode: Encoder, seed: int) -> NDArray[np.float32]:
    """Return vectors unchanged if they have few components, else along random directions, which keep distances on average."""
    width = _fold(encode(np.zeros((1, math.prod(array.shape[1:])), array.dtype))).shape[1]
    points = np.empty((len(rows), min(width, COMPONENTS)), np.float32)
    if width > COMPONENTS:
        directions = np.random.default_rng(seed).standard_normal((width, COMPONENTS), np.float32)
        directions /= np.float32(math.sqrt(COMPONENTS))
    for part, block in blocks_of(array, rows, BLOCK_VALUES):
        points[part] = _fold(encode(block)) @ directions if width > COMPONENTS else encode(block)
    return points


def _find_nearest(
    ours: _Side, theirs: _Side, encoders: dict[str, Encoder], itself: Rows | None = None
) -> tuple[NDArray[np.float64], Rows]:
    """Return the distance of each of `ours` to its nearest of `theirs`, inf if far, and that row; shapes `(k,)`.

    `itself` (shape `(k,)`) holds the position of each of `ours` among `theirs`, which is excluded.
    """
    from sklearn.neighbors import NearestNeighbors  # imports in 1 s

    count = min(len(theirs.rows), CANDIDATES + (itself is not None))
    if not encoders or not len(ours.rows) or not count:
        return np.full(len(ours.rows), np.inf), np.full(len(ours.rows), -1, np.intp)
    reach, columns = NearestNeighbors(n_neighbors=count).fit(theirs.points).kneighbors(ours.points)
    close = reach <= SLACK * math.sqrt(len(encoders))
    if itself is not None:
        close &= columns != itself[:, None]
    rows, distances = theirs.rows[columns], np.full(columns.shape, np.inf)
    distances[close] = _measure(ours.arrays, ours.rows[np.nonzero(close)[0]], theirs.arrays, rows[close], encoders)
    best = distances.argmin(axis=1)[:, None]
    return np.take_along_axis(distances, best, 1)[:, 0], np.take_along_axis(rows, best, 1)[:, 0]


def _measure(
    samples: Arrays, rows: Rows, others: Arrays, other_rows: Rows, encoders: dict[str, Encoder]
) -> NDArray[np.float64]:
    """Return the full distance of each pair of rows, in the input where it is largest; shape `(pairs,)`."""
    distances = np.zeros(len(rows))
    for name, encode in encoders.items():
        pairs = zip(
            blocks_of(samples[name], rows, BLOCK_VALUES), blocks_of(others[name], other_rows, BLOCK_VALUES), strict=True
        )
        for (part, block), (_, other) in pairs:
            difference = encode(block) - encode(other)
            distances[part] = np.maximum(distances[part], np.sqrt((difference * difference).sum(axis=1)))
    return distances


def _choose_radius(among: NDArray[np.float64]) -> float:
    """Return the limit of near: 1, or less if more than `MAX_NATURAL_SHARE` of these distances, copies aside, are within 1."""
    apart = np.sort(among[among > 0])
    allowed = int(MAX_NATURAL_SHARE * len(among))
    # If one sample exceeds that share, there are too few samples to estimate a limit.
    if not allowed or len(apart) <= allowed:
        return 1.0
    return min(1.0, float(np.nextafter(apart[allowed], 0)))


def _draw(count: int) -> Rows:
    """Return up to `MAX_SAMPLES` evenly spaced positions out of `count`."""
    return np.linspace(0, count - 1, min(count, MAX_SAMPLES)).astype(np.intp)
