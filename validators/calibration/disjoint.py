"""Comparison of calibration samples with a reference that must share no sample with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.calibration.model_view import first_of_each
from validators.digests import digest_samples
from validators.errors import DataError
from validators.job.job_data import CalibrationBounds
from validators.samples.datasets import Arrays, Samples
from validators.samples.drift import Comparison, Vector, compare, count_in_bins, find_signs
from validators.samples.sample_statistics import align, kind_of, measure_samples
from validators.samples.token_frequencies import Folds, measure_tokens

# More reference samples would cost time and change no verdict: the fewer calibration samples limit the precision.
MAX_REFERENCE_SAMPLES = 5000
# Deciles of fewer reference samples are noise.
MIN_REFERENCE_SAMPLES = 64


@dataclass(frozen=True)
class DisjointComparison:
    """Statistics of calibration and reference samples in the rows that may be compared.

    `statistics` has NaN in excluded calibration rows. `note` names the reference rows that count; empty if all do.
    """

    statistics: dict[str, Vector]
    reference_statistics: dict[str, Vector]
    comparisons: tuple[Comparison, ...]
    note: str


def compare_disjoint(
    calibration: Samples,
    reference: Samples,
    evaluation: Sequence[str],
    bounds: CalibrationBounds,
    seed: int,
    *,
    is_evaluation: bool,
) -> DisjointComparison:
    """Compare each statistic of the calibration samples with a reference that shares no sample with them.

    `evaluation` holds the digests of the evaluation samples, by row. `is_evaluation` means that the evaluation samples are the
    reference.

    Calibration data must hold no evaluation sample (`no_leakage`). If samples repeat, as single words do, that rule alone makes
    it differ from a random draw: the frequent samples are all in the evaluation data. A user can build a clean disjoint set in
    two ways, and each has its own exchangeable reference:

    - draw new samples and drop those in the evaluation data; reference: samples that equal no (other) evaluation sample;
    - deal out the distinct samples at random, so that all copies are on one side; reference: each distinct sample once, with
      the calibration samples reduced likewise.

    A sign of drift must show against both references; the comparison with fewer signs is returned. If no sample repeats, both
    references are the whole reference. More than 5,000 reference samples are subsampled with `seed`.

    Tokens are measured by the other half of the reference (`measure_tokens`), which is dealt out like the data: by group if
    both sides have groups (`data.groups`), else by sample or, for distinct samples, with all copies in one half.

    Inputs that are a state (`state_from`) are not compared: their values are the source's.

    Raises:
        DataError: an input of the reference has a finite value in no sample.
    """
    rows = _draw(len(reference), seed)
    taken = slice(None) if rows is None else rows
    sides = calibration.own_inputs, reference.own_inputs
    ours, theirs = align(measure_samples(sides[0]), measure_samples(sides[1], rows))
    _check_reference(reference, theirs)
    own = digest_samples(calibration.inputs)
    drawn = np.array(evaluation if is_evaluation else digest_samples(reference.inputs))[taken]
    counted, others = Counter(evaluation), int(is_evaluation)
    alone = np.array([counted[digest] <= others for digest in drawn.tolist()])
    distinct, once = first_of_each(own), first_of_each(drawn.tolist())
    fewest = min(MIN_REFERENCE_SAMPLES, int(np.count_nonzero(once)))
    by_row, by_sample = np.arange(len(drawn)), drawn
    if calibration.clusters is not None and reference.clusters is not None:
        by_row = by_sample = reference.clusters[taken]
    word = "that occur once" if others else "that are not in the evaluation data"
    choices = [
        (np.ones(len(own), bool), alone, by_row, word),
        (distinct, once, by_sample, "that differ from each other"),
    ]
    if distinct.all() and once.all() and alone.all():
        choices = choices[:1]
    found = []
    for kept, reference_kept, keys, note in choices:
        if np.count_nonzero(reference_kept) >= fewest:
            tokens = _measure_tokens(*sides, rows, *_deal(keys, len(own), seed))
            found.append(_compare_rows(ours | tokens[0], theirs | tokens[1], kept, reference_kept, note))
    return min(found, key=lambda one: _count_signs(one, bounds))


def _compare_rows(
    ours: Mapping[str, Vector],
    theirs: Mapping[str, Vector],
    kept: NDArray[np.bool_],
    reference_kept: NDArray[np.bool_],
    note: str,
) -> DisjointComparison:
    statistics = {name: np.where(kept, values, np.nan) for name, values in ours.items()}
    reference_statistics = {name: values[reference_kept] for name, values in theirs.items()}
    n, m = len(reference_kept), int(np.count_nonzero(reference_kept))
    return DisjointComparison(
        statistics,
        reference_statistics,
        compare(statistics, reference_statistics),
        "" if m == n else f"the {m:,} of {n:,} samples {note}",
    )


def _count_signs(compared: DisjointComparison, bounds: CalibrationBounds) -> tuple[int, int]:
    """Return the largest number of drift signs of one statistic, and the total number."""
    signs = [
        len(
            find_signs(
                count_in_bins(compared.statistics[one.statistic], one.edges),
                one.reference_counts,
                one.p_value,
                max_psi=bounds.max_psi,
                min_p_value=bounds.min_drift_p_value,
            )
        )
        for one in compared.comparisons
    ]
    return max(signs, default=0), sum(signs)


def _measure_tokens(
    calibration: Arrays, reference: Arrays, rows: NDArray[np.intp] | None, folds: Folds, reference_folds: Folds
) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Return the token statistics of each index input, of the reference in `rows` (None: all).

    An input of one value a sample, such as a length or an id, has none: its mean is the value, so that the two distributions
    are compared themselves. Ids that the reference lacks are no drift where data are split by user.
    """
    tables: tuple[dict[str, Vector], dict[str, Vector]] = {}, {}
    for name, array in calibration.items():
        other = reference[name] if rows is None else reference[name][rows]
        if min(array[0].size, other[0].size) > 1 and "index" in (kind_of(array), kind_of(other)):
            for table, tokens in zip(tables, measure_tokens(array, other, folds, reference_folds), strict=True):
                table |= {f"{name}.{statistic}": values for statistic, values in tokens.items()}
    return tables


def _deal(keys: NDArray[Any], count: int, seed: int) -> tuple[Folds, Folds]:
    """Return fold 0 or 1 of each of `count` calibration samples and of each reference sample, whose `keys` have shape `(m,)`.

    Samples of one key are in one fold. Both sides have the same share of either fold.
    """
    rng = np.random.default_rng(seed)
    _, places = np.unique(keys, return_inverse=True)
    reference_folds = (rng.permutation(places.max() + 1) % 2)[places]
    return (rng.permutation(count) < round(count * reference_folds.mean())).astype(np.intp), reference_folds


def _draw(count: int, seed: int) -> NDArray[np.intp] | None:
    if count <= MAX_REFERENCE_SAMPLES:
        return None
    return np.sort(np.random.default_rng(seed).choice(count, MAX_REFERENCE_SAMPLES, replace=False))


def _check_reference(reference: Samples, statistics: dict[str, Vector]) -> None:
    empty = sorted({name.rpartition(".")[0] for name, values in statistics.items() if not np.isfinite(values).any()})
    if empty:
        raise DataError(
            found=f"{reference.file.path.name}: NaN or Inf in input {empty[0]!r} of every sample",
            expected="samples with finite values, as the reference for the calibration data",
            fix="repair the file, or remove `data.traffic`",
        )
