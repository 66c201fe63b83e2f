"""Evidence for the calibration checks: a table with one row per sample, and the reference values of its columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
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

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Leaks:
    """Calibration samples that are nearly identical to an evaluation sample.

    `near` (shape `(n,)`) holds the row of that evaluation sample, or -1; exact copies are excluded. `natural_share` is the
    share of evaluation samples with such a neighbour among the others. `allowed` is the largest count that chance explains for
    as many new samples. `groups` holds the keys of clusters (`data.groups`) with samples in both files; `in_groups` (shape
    `(n,)`) marks their calibration samples.
    """

    near: NDArray[np.intp]
    natural_share: float
    allowed: int
    groups: tuple[str, ...] = ()
    in_groups: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class ViewedSamples:
    """The model's view of the samples, with the likeness and cover computed from it."""

    view: ModelView
    likeness: Likeness
    cover: Cover


@dataclass(frozen=True)
class CalibrationEvidence:
    """Input of the checks: `table` has one row per calibration sample, the other fields hold the reference values.

    Columns of `table`:

    - `digest`: digest of the inputs
    - `in evaluation`, `near evaluation`, `group in evaluation`: 0 or 1; the last only if the job names groups
    - `label`, `slice.name`: only if they are judged
    - `nearest other`: distance in the representation; NaN for samples that were not run through the model
    - `representation`: coordinate along the first component of the representation
    - by input, `input.statistic`
    - the columns of the checks (`CalibrationCheck.columns`)

    `groups` maps `label` and each `slice.name` to the reference's sample count of each value. `comparisons` use the reference
    rows that `compared` names (empty: all rows). `medians` holds the median of each statistic over the calibration samples and
    over those reference rows. `seen` is None if too few samples were run through the model.
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
    columns_of_checks: Mapping[str, NDArray[Any]] = MappingProxyType({}),
) -> CalibrationEvidence:
    """Gather the evidence for the checks from the samples and from the model's view of them.

    `columns_of_checks` are columns of the table that the checks compute themselves.

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
    columns |= columns_of_checks
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
    # Compare as text, like the split: one file may hold numbers where the other holds digit strings.
    ours, theirs = calibration.clusters.astype(str), set(evaluation.clusters.astype(str).tolist())
    in_groups = np.array([key in theirs for key in ours.tolist()], np.bool_)
    return Leaks(near, natural / m, allowed, tuple(np.unique(ours[in_groups]).tolist()), in_groups)


def see(view: ModelView, bounds: CalibrationBounds, seed: int) -> ViewedSamples | None:
    """Measure likeness and cover from the finite embeddings; None if either side has fewer than `MIN_SAMPLES`."""
    ours, theirs = view.calibration.finite(), view.reference.finite()
    if min(len(ours), len(theirs)) < MIN_SAMPLES:
        return None
    likeness = measure_likeness(ours.vectors, theirs.vectors, min_p_value=bounds.min_drift_p_value, seed=seed)
    cover = measure_cover(ours.vectors, theirs.vectors, theirs.rows, bounds.min_embedding_coverage)
    return ViewedSamples(ModelView(view.tensor, ours, theirs, view.clipping), likeness, cover)


def _spread(values: Vector, rows: NDArray[np.intp], count: int) -> Vector:
    """Return a column of length `count` with `values` in `rows` and NaN elsewhere."""
    column = np.full(count, np.nan)
    column[rows] = values
    return column


def _group_columns(samples: Samples) -> dict[str, NDArray[Any]]:
    """Return the grouping columns of the samples: slices, and labels that are class indices."""
    labels = samples.labels
    # Count booleans as 1 or 0, so that both sides use the same names.
    columns = {
        f"slice.{name}": groups.astype(int) if groups.dtype.kind == "b" else groups
        for name, groups in samples.slices.items()
    }
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        columns["label"] = labels
    return columns


def _groups(calibration: Samples, reference: Samples) -> dict[str, dict[Label, int]]:
    """Count the reference samples of each group, for the grouping columns that both sides have."""
    ours, theirs = _group_columns(calibration), _group_columns(reference)
    counts: Mapping[str, Counter[Any]] = {name: Counter(theirs[name].tolist()) for name in ours if name in theirs}
    return {name: dict(counts[name]) for name in sorted(counts)}


def _median(values: Vector) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")
