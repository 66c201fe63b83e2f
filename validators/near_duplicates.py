"""Nearly the same samples: an image with a little noise or another compression, a text with a word changed.

How far apart two samples are: per input, the difference in units of what still counts as near; over the inputs, the root mean
square. At most 1 is near. Masks say nothing by themselves and are left out unless there is nothing else; so are kinds that no
model computes with. The difference in one input is

- for magnitudes (`validators.input_kinds`), the root mean square of the differences of the entries, and near is up to 20 % of
  the standard deviation over `others`. Two independent samples differ by 141 %; at 20 % they correlate by 1 - 0.2^2 / 2 = 98 %
  about the mean sample. Of the demo's digits, JPEG (of quality 30), 8 bits, or half the size and back give 6, 0.3 and 10 %,
  another interpolation 16 %, and a shift by 1 of 96 pixels 26 %; two distinct digits are at least 16 % apart.
- for indices, in whatever order, sqrt(2 - 2 a), and near is an affinity `a` of at least 85 %, so that a text of 7 tokens may
  have one replaced. `a` is the sum over tokens of sqrt(x y) / sqrt(|x| |y|), with x and y the token's counts and |x| and |y|
  the numbers of tokens in the two samples (A. Bhattacharyya, 1943): like the cosine of counts, but each of a sample's tokens
  weighs the same, where the cosine lets a token that occurs five times weigh 25. Of the 10,568 reviews of the demo 0.2 % have
  such a neighbour.

Both are Euclidean distances of vectors, so that a random projection to 64 components keeps them, give or take 9 %, whatever
the size (W. Johnson and J. Lindenstrauss, 1984). It names a few candidates, and these are measured in full.

Where samples have few degrees of freedom, chance alone puts one within 20 % of another. Near is then less far: so far that at
most 5 % of `others` have a near-duplicate among themselves, exact copies aside.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats

from validators.datasets import Arrays
from validators.input_kinds import Kind, kind_of

MAX_DIFFERENCE = 0.2
MIN_AFFINITY = 0.85
MAX_NATURAL_SHARE = 0.05
# An input where fewer entries than this carry the variance is a table, whose columns have units of their own.
MIN_CARRIERS = 16
COMPONENTS = 64
CANDIDATES = 5
# By so much a projection of 64 components stretches one pair in 10,000: the 0.9999 quantile of sqrt(chi2 / 64) is 1.33.
SLACK = 1.33
# Tokens are told apart by their place among so many: two of a vocabulary fall on one place too seldom to matter.
PLACE_BITS = 16
# What is known of all others is estimated from so many of them, evenly spaced.
MAX_SAMPLES = 2000
# Values held as floats at a time: 8 MB. With fewer, multiplying by the projection waits for memory.
BLOCK_VALUES = 2**21
# A difference of less than this fraction of an input's size is rounding.
RESOLUTION = 1e-6
# Far from everything, with a square that float32 can hold.
FAR = 1e9

Rows = NDArray[np.intp]
Vectors = Any  # float32 of shape (k, d): dense, or a sparse array
Encoder = Callable[[NDArray[Any]], Vectors]


@dataclass(frozen=True)
class _Side:
    """The rows of some samples that can be compared, shape `(k,)`, and their projected vectors, shape `(k, components)`."""

    arrays: Arrays
    rows: Rows
    points: NDArray[np.float32]

    def take(self, positions: Rows) -> _Side:
        return _Side(self.arrays, self.rows[positions], self.points[positions])


def find_near_duplicates(samples: Arrays, others: Arrays) -> Rows:
    """For each of `n` samples the row of its nearest near-duplicate in `others`, -1 where there is none; shape `(n,)`.

    Each array has shape `(n, ...)` in `samples` and `(m, ...)` in `others`. Exact copies are near-duplicates too. A sample with
    NaN, Inf, or a number beyond float32 has none, and is none.

    >>> others = {"ids": np.array([range(10, 20), range(40, 50)])}
    >>> find_near_duplicates({"ids": np.array([[12, 11, 10, *range(13, 19), 99], range(70, 80)])}, others)
    array([ 0, -1])
    """
    encoders = _make_encoders(samples, others)
    ours, theirs = _project(samples, encoders), _project(others, encoders)
    drawn = _draw(len(theirs.rows))
    among, _ = _find_nearest(theirs.take(drawn), theirs, encoders, itself=drawn)
    distances, nearest = _find_nearest(ours, theirs, encoders)
    return _report(ours, nearest, distances <= _choose_radius(among))


def find_near_duplicates_within(arrays: Arrays) -> Rows:
    """For each of `n` samples the row of its nearest near-duplicate among the others of its set, -1 if none; shape `(n,)`.

    Near is what it is to `find_near_duplicates(samples, arrays)`.

    >>> find_near_duplicates_within({"ids": np.array([range(10, 20), range(40, 50), [99, *range(11, 20)]])})
    array([ 2, -1,  0])
    """
    encoders = _make_encoders(arrays, arrays)
    side = _project(arrays, encoders)
    distances, nearest = _find_nearest(side, side, encoders, itself=np.arange(len(side.rows)))
    return _report(side, nearest, distances <= _choose_radius(distances[_draw(len(side.rows))]))


def chance_of_so_many(hits: int, n: int, natural_hits: int, m: int) -> float:
    """p-value: how likely `n` new samples are to have at least `hits` near-duplicates among `m` others by chance alone.

    `natural_hits` of the `m` others have one among themselves. Were all n + m samples drawn alike, a pair of near-duplicates
    would be as likely to fall on any two of them. Each pair across gives one hit; each pair among the others gives two natural
    ones. Pairs are what chance deals out, so the others count by halves in Fisher's exact test (R. A. Fisher, 1934): of all
    pairs, `hits` + `natural_hits` / 2, at least `hits` are across with the hypergeometric probability of drawing them with `n`
    out of n + m / 2.

    Counted singly, natural hits pretend to twice the evidence: in simulations of n = m = 2,000 with pairs in 0.5 to 5 % of
    samples, p < 0.001 came up in 0.6 % of the cases. By halves it did in less than 0.1 % at n = 128 and 2,000 alike.

    >>> round(chance_of_so_many(4, 128, 0, 2000), 6), round(chance_of_so_many(4, 128, 20, 2000), 3)
    (0.000161, 0.074)
    """
    pairs, places = -(-natural_hits // 2), -(-m // 2)
    return float(stats.hypergeom.sf(hits - 1, n + places, hits + pairs, n))


def allow_by_chance(n: int, natural_hits: int, m: int, min_p_value: float) -> int:
    """The most near-duplicates that `n` new samples may have before `chance_of_so_many` falls below `min_p_value`.

    >>> [allow_by_chance(128, natural_hits, 2000, 0.001) for natural_hits in (0, 10, 100)]
    [3, 5, 16]
    """
    return (
        bisect.bisect_left(
            range(n + 1), True, key=lambda hits: chance_of_so_many(hits, n, natural_hits, m) < min_p_value
        )
        - 1
    )


def _make_encoders(samples: Arrays, others: Arrays) -> dict[str, Encoder]:
    """For each input that tells samples apart, what turns a block of it into vectors: at a distance of 1 they are still near."""
    kinds: dict[str, Kind] = {}
    for name, array in others.items():
        if array.size:
            either = kind_of(array), kind_of(samples[name])
            kinds[name] = "index" if "index" in either else either[0]
    encoders: dict[str, Encoder] = {
        name: _count_tokens if kind == "index" else _scale_by(others[name])
        for name, kind in kinds.items()
        if kind in ("index", "magnitude")
    }
    # Of masks alone, the places that are set are the tokens.
    return encoders or {name: _count_places for name, kind in kinds.items() if kind == "mask"}


def _scale_by(others: NDArray[Any]) -> Encoder:
    """Magnitudes in units of `MAX_DIFFERENCE` spreads over `others`, divided by the root of their number."""
    rows = _usable({"": others})
    rows = rows[_draw(len(rows))]
    count, entries = max(1, len(rows)), others[0].size
    center, variances = np.zeros(entries), np.zeros(entries)
    for _, block in _blocks(others, rows):
        center += block.sum(axis=0, dtype=np.float64) / count
    for _, block in _blocks(others, rows):
        variances += ((block - center) ** 2).sum(axis=0) / count
    sizes = variances + center**2
    # The effective number of terms of a sum: L. Kish, "Survey Sampling", 1965.
    if variances.sum() ** 2 >= MIN_CARRIERS * (variances**2).sum():
        variances, sizes = variances.mean(), sizes.mean()
    spread = np.sqrt(np.maximum(variances, RESOLUTION**2 * sizes))
    # The least unit is for entries that are 0 in all others: nothing else is near them.
    unit = np.maximum(spread * MAX_DIFFERENCE * np.sqrt(entries), np.finfo(np.float32).tiny)

    def encode(block: NDArray[Any]) -> Vectors:
        # float64 keeps apart what differs little for its size, such as times; all other types fit into float32.
        wide = np.float64 if block.dtype.itemsize > 4 else np.float32
        with np.errstate(over="ignore"):
            scaled = (block - center.astype(wide)) / unit.astype(wide)
        return scaled.clip(-FAR, FAR).astype(np.float32)

    return encode


def _count_tokens(block: NDArray[Any]) -> Vectors:
    """Roots of the tokens' shares of a sample, 0 left out, scaled so that `MIN_AFFINITY` is a distance of 1."""
    rows, columns = np.nonzero(block)
    # D. Knuth, The Art of Computer Programming 3, 6.4: multiples of the golden ratio spread neighbouring numbers evenly.
    places = (block[rows, columns].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - PLACE_BITS)
    shares = 1 / np.count_nonzero(block, axis=1)[rows] / (2 - 2 * MIN_AFFINITY)
    # Adds up what falls on one place.
    counts = sparse.csr_array(
        (shares.astype(np.float32), (rows, places.astype(np.intp))), shape=(len(block), 2**PLACE_BITS)
    )
    return counts.sqrt()


def _count_places(block: NDArray[Any]) -> Vectors:
    return _count_tokens(np.where(block != 0, np.arange(1, block.shape[1] + 1), 0))


def _usable(arrays: Arrays) -> Rows:
    """Rows without NaN, Inf, or a number beyond float32 in any float input."""
    usable = np.ones(len(next(iter(arrays.values()))), np.bool_)
    for array in arrays.values():
        if array.dtype.kind == "f" and array.size:
            for part, block in _blocks(array, np.arange(len(array))):
                usable[part] &= (np.abs(block) <= np.finfo(np.float32).max).all(axis=1)
    return np.flatnonzero(usable)


def _project(arrays: Arrays, encoders: dict[str, Encoder]) -> _Side:
    rows = _usable(arrays)
    points = [_project_input(arrays[name], rows, encode, seed) for seed, (name, encode) in enumerate(encoders.items())]
    return _Side(arrays, rows, np.concatenate([np.zeros((len(rows), 0), np.float32), *points], axis=1))


def _project_input(array: NDArray[Any], rows: Rows, encode: Encoder, seed: int) -> NDArray[np.float32]:
    """Encoded rows: as they are if they have few components, or along random directions that keep distances on average."""
    directions: NDArray[np.float32] | None = None
    points = []
    for _, block in _blocks(array, rows):
        vectors = encode(block)
        width = vectors.shape[1]
        if width > COMPONENTS:
            if directions is None:
                drawn = np.random.default_rng(seed).standard_normal((width, COMPONENTS), np.float32)
                directions = drawn / np.float32(np.sqrt(COMPONENTS))
            vectors = vectors @ directions
        points.append(vectors)
    return np.concatenate(points) if points else np.zeros((0, 1), np.float32)


def _find_nearest(
    ours: _Side, theirs: _Side, encoders: dict[str, Encoder], itself: Rows | None = None
) -> tuple[NDArray[np.float64], Rows]:
    """Distance to the nearest of `theirs` and its row, for each of `ours`, shapes `(n,)`; inf and -1 where none is within 1.

    `itself` (shape `(n,)`) is where each of `ours` is among `theirs`, and does not count.
    """
    from sklearn.neighbors import NearestNeighbors  # imports in 1 s

    n, m = len(ours.rows), len(theirs.rows)
    if not encoders or not n or m <= (itself is not None):
        return np.full(n, np.inf), np.full(n, -1, np.intp)
    neighbours = NearestNeighbors(n_neighbors=min(m, CANDIDATES + 1)).fit(theirs.points)
    reach, columns = neighbours.kneighbors(ours.points)
    close = reach <= SLACK * np.sqrt(len(encoders))
    if itself is not None:
        close &= columns != itself[:, None]
    who, which = np.nonzero(close)
    rows = theirs.rows[columns]
    distances = np.full(columns.shape, np.inf)
    distances[who, which] = _measure(encoders, (ours.arrays, ours.rows[who]), (theirs.arrays, rows[who, which]))
    best = distances.argmin(axis=1)[:, None]
    return np.take_along_axis(distances, best, 1)[:, 0], np.take_along_axis(rows, best, 1)[:, 0]


def _measure(
    encoders: dict[str, Encoder], ours: tuple[Arrays, Rows], theirs: tuple[Arrays, Rows]
) -> NDArray[np.float64]:
    """The distance of each pair of rows, in full; shape `(pairs,)`."""
    squares = np.zeros(len(ours[1]))
    for name, encode in encoders.items():
        for (part, a), (_, b) in zip(_blocks(ours[0][name], ours[1]), _blocks(theirs[0][name], theirs[1]), strict=True):
            difference = encode(a) - encode(b)
            squares[part] += (difference * difference).sum(axis=1) / len(encoders)
    return np.sqrt(squares)


def _choose_radius(among: NDArray[np.float64]) -> float:
    """What is near: 1, or less where more than `MAX_NATURAL_SHARE` of these distances, exact copies aside, are within it."""
    apart = np.sort(among[among > 0])
    allowed = int(MAX_NATURAL_SHARE * len(among))
    # Below 1 / MAX_NATURAL_SHARE samples a single one is more than that share: nothing can be told from them.
    if not allowed or len(apart) <= allowed:
        return 1.0
    return min(1.0, float(np.nextafter(apart[allowed], 0)))


def _report(ours: _Side, nearest: Rows, near: NDArray[np.bool_]) -> Rows:
    found = np.full(len(next(iter(ours.arrays.values()))), -1, np.intp)
    found[ours.rows[near]] = nearest[near]
    return found


def _draw(count: int) -> Rows:
    """Up to `MAX_SAMPLES` evenly spaced positions out of `count`."""
    return np.linspace(0, count - 1, min(count, MAX_SAMPLES)).astype(np.intp)


def _blocks(array: NDArray[Any], rows: Rows) -> Iterator[tuple[slice, NDArray[Any]]]:
    """Where in `rows`, and the samples there, shape `(k, entries)`."""
    entries = array[0].size
    size = max(1, BLOCK_VALUES // entries)
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        yield part, array[rows[part]].reshape(-1, entries)
