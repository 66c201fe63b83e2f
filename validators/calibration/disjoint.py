"""Comparison of calibration samples with a reference that must share no sample with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from validators.digests import digest_samples
from validators.errors import DataError
from validators.job.job_data import CalibrationBounds
from validators.samples.datasets import Samples
from validators.samples.drift import Comparison, Vector, compare, count_in_bins, find_signs
from validators.samples.sample_statistics import align, kind_of, measure_samples
from validators.samples.token_frequencies import measure_tokens

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

    Raises:
        DataError: an input of the reference has a finite value in no sample.
    """
    rows = _draw(len(reference), seed)
    ours, theirs = _measure_both(calibration, reference, rows)
    own = digest_samples(calibration.inputs)
    digests = list(evaluation) if is_evaluation else digest_samples(reference.inputs)
    drawn = digests if rows is None else [digests[row] for row in rows]
    counted, others = Counter(evaluation), int(is_evaluation)
    alone = np.array([counted[digest] <= others for digest in drawn])
    once = _first_of_each(drawn)
    fewest = min(MIN_REFERENCE_SAMPLES, int(np.count_nonzero(once)))
    choices = [(np.ones(len(own), bool), alone, "that occur once" if others else "that are not in the evaluation data")]
    choices += [(_first_of_each(own), once, "that differ from each other")]
    found = [
        _compare_rows(ours, theirs, kept, reference_kept, note)
        for kept, reference_kept, note in choices
        if np.count_nonzero(reference_kept) >= fewest
    ]
    return min(found, key=lambda one: _count_signs(one, bounds))


def _first_of_each(digests: list[str]) -> NDArray[np.bool_]:
    """Mark the first of each sample's copies; bool of shape `(n,)`."""
    first = {digest: row for row, digest in reversed(list(enumerate(digests)))}
    return np.array([first[digest] == row for row, digest in enumerate(digests)])


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


def _measure_both(
    calibration: Samples, reference: Samples, rows: NDArray[np.intp] | None
) -> tuple[dict[str, Vector], dict[str, Vector]]:
    """Return the statistics of the calibration samples and of the reference samples in `rows`, token statistics included."""
    ours, theirs = align(measure_samples(calibration.inputs), measure_samples(reference.inputs, rows))
    _check_reference(reference, theirs)
    for name, array in calibration.inputs.items():
        drawn = reference.inputs[name] if rows is None else reference.inputs[name][rows]
        if array[0].size and drawn[0].size and "index" in (kind_of(array), kind_of(drawn)):
            for table, tokens in zip((ours, theirs), measure_tokens(array, drawn), strict=True):
                table |= {f"{name}.{statistic}": values for statistic, values in tokens.items()}
    return ours, theirs


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
