"""What the checks of the calibration data look at: one table with a row a sample, and what its columns are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.calibration.disjoint import compare_disjoint
from validators.calibration.label_coverage import Label
from validators.calibration.model_view import ModelView
from validators.calibration.representation import MIN_SAMPLES, Cover, Likeness, measure_cover, measure_likeness
from validators.digests import digest_samples
from validators.job.job_data import CalibrationBounds
from validators.samples.datasets import Samples
from validators.samples.drift import Comparison, Vector
from validators.samples.near_duplicates import allow_by_chance, find_near_duplicates, find_near_duplicates_within
from validators.samples.sample_statistics import count_nonfinite, differs_from_first

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Leaks:
    """Calibration samples that are nearly the same as an evaluation sample.

    `near` (shape `(n,)`) is the row of that evaluation sample, -1 where there is none; exact copies are not among them.
    `natural_share` is the share of evaluation samples that have such a neighbour among the others, and `allowed` the most
    that as many new samples would have by chance. `groups` are the keys of clusters (`data.groups`) that have samples in both
    files, and `in_groups` (shape `(n,)`) marks the calibration samples of those.
    """

    near: NDArray[np.intp]
    natural_share: float
    allowed: int
    groups: tuple[str, ...] = ()
    in_groups: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class ViewedSamples:
    """What the model's view of the samples came to."""

    view: ModelView
    likeness: Likeness
    cover: Cover


@dataclass(frozen=True)
class CalibrationEvidence:
    """What the checks read: `table` has one row a calibration sample, the rest says what its columns are held against.

    Columns of `table`: `digest` (of the inputs), `in evaluation`, `near evaluation` and `group in evaluation` (0 or 1; the last
    if the job names groups), `label` and `slice.name` (if they are judged), `nearest other` (distance in the representation,
    NaN for what was not run through the model), `representation` (its place along the first component there), and by input
    `input.differs from first` (0 or 1), `input.not finite` (a count, float inputs only) and `input.statistic`. `groups` maps
    `label` and each `slice.name` to the samples that the reference has of each of its values. `comparisons` rest on the
    reference rows that `compared` names (empty: all of them); `medians` holds for each statistic the median over the
    calibration and over those. `seen` is None when too few samples were run through the model.
    """

    table: pd.DataFrame
    float_inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    compared: str
    medians: dict[str, tuple[float, float]]
    reference: str
    groups: dict[str, dict[Label, int]]
    leaks: Leaks
    seen: ViewedSamples | None
    bounds: CalibrationBounds


def gather_evidence(
    calibration: Samples,
    evaluation: Samples,
    traffic: Samples | None,
    view: ModelView | None,
    bounds: CalibrationBounds,
    *,
    seed: int,
) -> CalibrationEvidence:
    """All that the checks read of the samples, and of what the model makes of them.

    Raises:
        DataError: an input of the reference has a finite value in no sample.
    """
    import pandas as pd  # 1 s to import

    reference = evaluation if traffic is None else traffic
    digests, known = digest_samples(calibration.inputs), digest_samples(evaluation.inputs)
    compared = compare_disjoint(calibration, reference, known, bounds, seed, is_evaluation=traffic is None)
    in_evaluation = set(known)
    copies = np.array([digest in in_evaluation for digest in digests])
    leaks = _find_leaks(calibration, evaluation, copies, bounds)
    groups = _groups(calibration, reference)
    columns: dict[str, Any] = {"digest": digests, "in evaluation": copies.astype(int)}
    columns["near evaluation"] = (leaks.near >= 0).astype(int)
    if leaks.in_groups is not None:
        columns["group in evaluation"] = leaks.in_groups.astype(int)
    columns |= {name: _group_columns(calibration)[name] for name in groups}
    is_float = {name: array.dtype.kind == "f" for name, array in calibration.inputs.items()}
    for name, array in calibration.inputs.items():
        columns[f"{name}.differs from first"] = differs_from_first(array)
        if is_float[name]:
            columns[f"{name}.not finite"] = count_nonfinite(array)
    seen = None if view is None else see(view, bounds, seed)
    if seen is not None:
        rows = seen.view.calibration.rows
        columns["nearest other"] = _spread(seen.cover.among, rows, len(calibration))
        columns["representation"] = _spread(seen.cover.along, rows, len(calibration))
    return CalibrationEvidence(
        table=pd.DataFrame(columns | compared.statistics),
        float_inputs=tuple(name for name in is_float if is_float[name]),
        other_inputs=tuple(name for name in is_float if not is_float[name]),
        comparisons=compared.comparisons,
        compared=compared.note,
        medians={
            name: (_median(values), _median(compared.reference_statistics[name]))
            for name, values in compared.statistics.items()
        },
        reference="the evaluation inputs" if traffic is None else "the traffic",
        groups=groups,
        leaks=leaks,
        seen=seen,
        bounds=bounds,
    )


def _find_leaks(
    calibration: Samples, evaluation: Samples, copies: NDArray[np.bool_], bounds: CalibrationBounds
) -> Leaks:
    near = find_near_duplicates(calibration.inputs, evaluation.inputs)
    near[copies] = -1
    natural, m = int(np.count_nonzero(find_near_duplicates_within(evaluation.inputs) >= 0)), len(evaluation)
    allowed = allow_by_chance(int(np.count_nonzero(~copies)), natural, m, bounds.min_leak_p_value)
    if calibration.clusters is None or evaluation.clusters is None:
        return Leaks(near, natural / m, allowed)
    # As text, as the split reads them: one file may have written numbers where the other has digits.
    ours, theirs = calibration.clusters.astype(str), set(evaluation.clusters.astype(str).tolist())
    in_groups = np.array([key in theirs for key in ours.tolist()], np.bool_)
    return Leaks(near, natural / m, allowed, tuple(np.unique(ours[in_groups]).tolist()), in_groups)


def see(view: ModelView, bounds: CalibrationBounds, seed: int) -> ViewedSamples | None:
    """What the embeddings tell, of the samples that have finite ones; None where these are too few."""
    ours, theirs = view.calibration.finite(), view.reference.finite()
    if min(len(ours), len(theirs)) < MIN_SAMPLES:
        return None
    likeness = measure_likeness(ours.vectors, theirs.vectors, min_p_value=bounds.min_drift_p_value, seed=seed)
    cover = measure_cover(ours.vectors, theirs.vectors, theirs.rows, bounds.min_embedding_coverage)
    return ViewedSamples(ModelView(view.tensor, ours, theirs, view.clipping), likeness, cover)


def _spread(values: Vector, rows: NDArray[np.intp], count: int) -> Vector:
    """A column with these values in these rows, NaN elsewhere."""
    column = np.full(count, np.nan)
    column[rows] = values
    return column


def _group_columns(samples: Samples) -> dict[str, NDArray[Any]]:
    """What sorts the samples: class indices, and slices."""
    labels = samples.labels
    # A yes or no is counted as 1 or 0, so that both sides name it alike.
    columns = {
        f"slice.{name}": groups.astype(int) if groups.dtype.kind == "b" else groups
        for name, groups in samples.slices.items()
    }
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        columns["label"] = labels
    return columns


def _groups(calibration: Samples, reference: Samples) -> dict[str, dict[Label, int]]:
    """How many reference samples each group has, for what sorts both sides."""
    ours, theirs = _group_columns(calibration), _group_columns(reference)
    counts: Mapping[str, Counter[Any]] = {name: Counter(theirs[name].tolist()) for name in ours if name in theirs}
    return {name: dict(counts[name]) for name in sorted(counts)}


def _median(values: Vector) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
