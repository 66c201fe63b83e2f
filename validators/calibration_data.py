"""Whether calibration data is good evidence: enough of it, sound, unseen in the evaluation, and like the traffic."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from validators.calibration_checks import Evidence, describe_checks
from validators.datasets import Samples
from validators.digests import digest_samples
from validators.drift import Vector, compare
from validators.errors import DataError
from validators.job import CalibrationBounds
from validators.records import CalibrationVerdict, Check
from validators.sample_statistics import align, count_nonfinite, differs_from_first, measure_samples

# Statistics of more reference samples than this would take longer and change no verdict: chance in the calibration samples,
# of which there are fewer, is what limits the comparison.
MAX_REFERENCE_SAMPLES = 5000
# Great Expectations keeps the current context, and Python the warning filters, in one place for the whole process.
_ONE_AT_A_TIME = threading.Lock()


def judge_calibration(
    calibration: Samples,
    evaluation: Samples,
    traffic: Samples | None,
    bounds: CalibrationBounds,
    page_folder: Path,
    *,
    seed: int,
) -> CalibrationVerdict:
    """The verdict of one Great Expectations checkpoint on the calibration samples, its Data Docs site in `page_folder`.

    The reference, which the calibration samples should be like, is `traffic`, or the inputs of `evaluation` without it. All
    `inputs[name]` have shape `(n, ...)`; `seed` draws the reference samples when there are more than 5,000. The checks:

    - `enough_samples` (critical): at least `bounds.min_samples` distinct ones; copies add no evidence.
    - `finite` (critical): no NaN or Inf in a float input.
    - `varies` (critical; a warning for inputs that are not float): no input is the same in all samples.
    - `no_leakage` (critical): no sample is in the evaluation data, by the digest of its inputs. An exact copy is found, one
      with other padding or rounding is not.
    - `no_duplicates` (warning): at most 5 % of the samples repeat an earlier one.
    - `labels_covered` (critical; absent unless calibration and reference have class indices): no label of the reference is
      missing or rare. `validators.label_coverage.find_short_labels` says how chance is kept out of it.
    - `same_distribution` (critical with both signs of drift, a warning with one): mean, std, min, max and share of zeros of
      each float input, mean, share of zeros and length (entries that are not zero) of each integer input, by population
      stability index above chance and by corrected Kolmogorov-Smirnov p-value. `validators.drift` has formulas and sources.

    Raises:
        DataError: an input of the reference has a finite value in no sample, so that nothing can be compared with it.
    """
    evidence = gather_evidence(calibration, evaluation, traffic, bounds, seed=seed)
    with _ONE_AT_A_TIME:
        from validators.checkpoint import run_checkpoint  # imports Great Expectations: 4 s

        results, page = run_checkpoint(evidence, page_folder)
    checks = describe_checks(evidence, results)
    return CalibrationVerdict(conclude(checks), checks, page)


def conclude(checks: tuple[Check, ...]) -> Literal["accepted", "accepted_with_warnings", "refused"]:
    """The outcome: refused if a critical check failed, accepted with warnings if only others did."""
    failed = {check.severity for check in checks if not check.passed}
    if "critical" in failed:
        return "refused"
    return "accepted_with_warnings" if failed else "accepted"


def gather_evidence(
    calibration: Samples, evaluation: Samples, traffic: Samples | None, bounds: CalibrationBounds, *, seed: int
) -> Evidence:
    """All that the checks read of the samples, as one table and what its columns are held against.

    Raises:
        DataError: an input of the reference has a finite value in no sample.
    """
    import pandas as pd  # 1 s to import

    reference = evaluation if traffic is None else traffic
    statistics, reference_statistics = align(
        measure_samples(calibration.inputs), measure_samples(reference.inputs, _draw(len(reference), seed))
    )
    _check_reference(reference, reference_statistics)
    digests, known = digest_samples(calibration.inputs), set(digest_samples(evaluation.inputs))
    columns: dict[str, Any] = {"digest": digests, "in evaluation": [int(digest in known) for digest in digests]}
    labels, reference_labels = calibration.labels, reference.labels
    counts = None
    if labels is not None and reference_labels is not None and _are_classes(labels) and _are_classes(reference_labels):
        columns["label"] = labels
        counts = {int(label): number for label, number in Counter(reference_labels.tolist()).items()}
    is_float = {name: array.dtype.kind == "f" for name, array in calibration.inputs.items()}
    for name, array in calibration.inputs.items():
        columns[f"{name}.differs from first"] = differs_from_first(array)
        if is_float[name]:
            columns[f"{name}.not finite"] = count_nonfinite(array)
    return Evidence(
        table=pd.DataFrame(columns | statistics),
        float_inputs=tuple(name for name in is_float if is_float[name]),
        other_inputs=tuple(name for name in is_float if not is_float[name]),
        comparisons=compare(statistics, reference_statistics),
        medians={name: (_median(values), _median(reference_statistics[name])) for name, values in statistics.items()},
        reference="the evaluation inputs" if traffic is None else "the traffic",
        reference_labels=counts,
        bounds=bounds,
    )


def _draw(count: int, seed: int) -> NDArray[np.intp] | None:
    if count <= MAX_REFERENCE_SAMPLES:
        return None
    return np.sort(np.random.default_rng(seed).choice(count, MAX_REFERENCE_SAMPLES, replace=False))


def _are_classes(labels: NDArray[Any]) -> bool:
    return labels.ndim == 1 and labels.dtype.kind in "iu"


def _median(values: Vector) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else float("nan")


def _check_reference(reference: Samples, statistics: dict[str, Vector]) -> None:
    empty = sorted({name.rpartition(".")[0] for name, values in statistics.items() if not np.isfinite(values).any()})
    if empty:
        raise DataError(
            found=f"{reference.file.path.name}: NaN or Inf in input {empty[0]!r} of every sample",
            expected="samples with finite values, to hold the calibration data against",
            fix="repair the file, or leave out `data.traffic`",
        )
