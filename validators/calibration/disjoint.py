"""Comparison of calibration samples with a reference that they must share no sample with."""

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
from validators.samples.input_kinds import kind_of
from validators.samples.sample_statistics import align, measure_samples
from validators.samples.token_frequencies import measure_tokens

# Statistics of more reference samples than this would take longer and change no verdict: chance in the calibration samples,
# of which there are fewer, is what limits the comparison.
MAX_REFERENCE_SAMPLES = 5000
# Fewer reference samples than this make a poor reference: deciles of fewer are noise.
MIN_REFERENCE_SAMPLES = 64


@dataclass(frozen=True)
class DisjointComparison:
    """The statistics of both sides in the rows that may be compared.

    `statistics` has NaN in the calibration rows that are left out. `note` says which rows of the reference count, and is empty
    where all do.
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
    """Compare each statistic of the calibration samples with a reference that they share no sample with.

    `evaluation` holds the digests of the evaluation samples, by row; `is_evaluation` says that these are the reference.

    Calibration data may hold no evaluation sample (`no_leakage`). Where samples repeat, as single words do, that alone makes it
    differ from a random draw: the frequent samples are all in the evaluation data. Two ways lead to a clean disjoint set, and
    each has a reference that it is exchangeable with:

    - new draws, less those in the evaluation data: the reference samples that equal no (other) evaluation sample;
    - the distinct samples dealt out at random, so that all copies are on one side: each distinct sample once, on both sides.

    A sign of drift must show against both; the comparison with fewer signs is returned. Where no sample repeats, both are the
    whole reference.

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
    """Whether each sample is the first of its copies; shape `(n,)`."""
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
    """The most signs of drift that one statistic shows, and how many there are in all."""
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
    """The statistics of each calibration sample and of each reference sample in `rows`, those of tokens included."""
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
            expected="samples with finite values, to hold the calibration data against",
            fix="repair the file, or leave out `data.traffic`",
        )
