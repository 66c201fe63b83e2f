"""Reach of single samples: how far one can move a metric, and how many of those that can were answered differently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]
Vector = NDArray[np.float64]
# Shape (n,): numbers from 0.
Numbers = NDArray[np.intp]

# With fewer differing samples than this, the chance that larger differences were not drawn outweighs the observed spread.
FEW_DIFFERENT = 10
# Rows that are answered otherwise to see what the metric does; each costs one or two passes over all samples.
PROBED_ROWS = 120
# Distinct rows that take the place of each other where answers have no worst.
SWAPPED_ROWS = 16
# A kind of samples is probed by at least this many rows; more kinds than that allows are joined.
LEAST_OF_KIND = 4
# Changes of the metric below this share of the largest are rounding.
ROUNDING = 1e-9
# Changes of the metric below this share of the largest are noise, of which few samples hold no evidence against larger ones.
RELEVANT = 0.05


def is_few(different: float, n: float) -> bool:
    """Return True if so few samples differ that larger differences may not have been drawn."""
    return different < FEW_DIFFERENT and different < n / 2


# Rows of the same samples if every answer were wrong, (n, k), and the kind of each sample: those of one kind, such as a class,
# move the metric about alike. Metrics do not import it: their results would be made again with every change here.
Wrong = tuple[Rows, Numbers]


@dataclass(frozen=True)
class Reach:
    """Effective number of units that can move a metric, how many of them moved it, and the largest change by one unit."""

    units: float
    moved: float
    largest: float


def reach_of(
    baseline: Rows,
    variant: Rows,
    drop_of: Callable[[Rows, Rows], float],
    unit_of_row: Numbers,
    rng: np.random.Generator,
    *,
    wrong: Wrong | None,
    moved: NDArray[np.bool_] | None,
    alike: bool,
    enough: float,
) -> Reach:
    """Return how far single units (samples, or clusters of them) can move a drop, by answering some rows otherwise.

    `baseline` and `variant` are float64 `(n, k)`; `unit_of_row` `(n,)` numbers the unit of each row. Without `wrong`, a row
    takes the values of another, and all units count alike. `moved` `(n,)` tells the rows whose answers differ; without it these
    are the rows that differ, and with `wrong` those where the baseline's answer in the variant's place changes the metric.
    Fewer units than `enough` may lack the large changes: then changes below `RELEVANT` of the largest do not count as moves.

    Changes phi of the metric by each row give the effective number (sum phi^2)^2 / sum phi^4: the degrees of freedom of the
    variance that independent changes of these sizes have (F. Satterthwaite, Biometrics Bulletin 2, 1946). It is the number of
    rows that can move the metric, if these move it alike. Clusters have the sizes of their rows' phi^2. The largest change by a
    cluster is that of its rows on average, each by as much as the largest. It is only looked for without `wrong` if few rows
    moved, or if no pseudo-value shows a difference (`alike`).
    """
    drop, changed = drop_of(baseline, variant), variant.copy()

    def change(place: int, row: Vector) -> float:
        changed[place] = row
        found = abs(drop_of(baseline, changed) - drop)
        changed[place] = variant[place]
        return found if np.isfinite(found) else np.inf

    differs = (baseline != variant).any(axis=1) if moved is None else moved
    share = differs.astype(np.float64)
    if wrong is None:
        weight, largest = np.ones(len(variant)), 0.0
        if alike or is_few(float(share.sum()), len(variant)):
            distinct = rng.permutation(np.unique(variant, axis=0, return_index=True)[1])[:SWAPPED_ROWS]
            largest = max(change(place, variant[other]) for place in distinct for other in distinct)
    else:
        rows_wrong, kinds = wrong
        places, kind = _drawn(kinds, rng)
        phi = np.array([change(place, rows_wrong[place]) for place in places])
        largest = float(phi.max())
        squares = _spread(_without_wrong_ones(phi**2, kind[places]), places, kind)
        weight = squares / max(float(squares.max()), np.finfo(np.float64).tiny)
        is_small = _effective_units(weight, unit_of_row) < enough
        if moved is None or (is_small and not np.array_equal(baseline, variant)):
            least = (RELEVANT if is_small else ROUNDING) * largest
            found = [differs[place] and change(place, baseline[place]) > least for place in places]
            share = np.where(differs, _spread(np.array(found, np.float64), places, kind, differs[places]), 0.0)
    units, rows = _effective_units(weight, unit_of_row), _effective(weight)
    if not units:
        return Reach(0.0, 0.0, 0.0)
    return Reach(units, units * float(weight @ share) / float(weight.sum()), largest * rows / units)


def _drawn(kind: Numbers, rng: np.random.Generator) -> tuple[Numbers, Numbers]:
    """Draw up to `PROBED_ROWS` places, about as many of each kind; return them and the kinds.

    Too many kinds are joined by the number of their samples: the rarer a kind, the further each may move the metric.
    """
    present, sizes = np.unique(kind, return_counts=True)
    if len(present) * LEAST_OF_KIND > PROBED_ROWS:
        kind = np.log2(sizes).astype(np.intp)[np.searchsorted(present, kind)]
        present = np.unique(kind)
    each = PROBED_ROWS // len(present)
    return np.concatenate([rng.permutation(np.flatnonzero(kind == one))[:each] for one in present]), kind


def _without_wrong_ones(squares: Vector, kind: Numbers) -> Vector:
    """Return squared changes in which those of 0 are the mean of their kind's others, if these are half or more.

    Such rows were answered wrong before. Where most of a kind change nothing, they do not count.
    """
    found = squares.copy()
    for one in np.unique(kind):
        own, some = kind == one, squares[(kind == one) & (squares > 0)]
        if 2 * len(some) >= np.count_nonzero(own):
            found[own & (squares == 0)] = some.mean()
    return found


def _spread(found: Vector, places: Numbers, kind: Numbers, counts: NDArray[np.bool_] | None = None) -> Vector:
    """Return a value for each row, `(n,)`: its own where it was probed, else the mean of its kind's that `counts`."""
    weights, width = np.ones(len(places)) if counts is None else counts.astype(np.float64), int(kind.max()) + 1
    sums, sizes = (np.bincount(kind[places], each, minlength=width) for each in (found * weights, weights))
    values = (sums / np.maximum(sizes, 1))[kind]
    values[places] = found
    return np.asarray(values, np.float64)


def _effective_units(weight: Vector, unit_of_row: Numbers) -> float:
    """Return the effective number of units, from the weight of each row."""
    return _effective(np.asarray(np.bincount(unit_of_row, weight), np.float64))


def _effective(weights: Vector) -> float:
    """Return the number of equal weights with the same information (L. Kish, "Survey Sampling", 1965)."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if weights.any() else 0.0
