"""Whether calibration data is good evidence: enough of it, sound, unseen in the evaluation, and like the traffic."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Literal

from validators.calibration.descriptions import describe_checks
from validators.calibration.evidence import CalibrationEvidence, gather_evidence
from validators.calibration.model_view import ModelView
from validators.job.job_data import CalibrationBounds
from validators.records.measurements import worst_first
from validators.records.run import CalibrationVerdict, Check
from validators.samples.datasets import Samples

RANGES_FILE = "ranges.csv"
# Great Expectations keeps the current context, and Python the warning filters, in one place for the whole process.
_ONE_AT_A_TIME = threading.Lock()


def judge_calibration(
    calibration: Samples,
    evaluation: Samples,
    traffic: Samples | None,
    view: ModelView | None,
    bounds: CalibrationBounds,
    page_folder: Path,
    *,
    seed: int,
) -> CalibrationVerdict:
    """The verdict of one Great Expectations checkpoint on the calibration samples, its Data Docs site in `page_folder`.

    The reference, which the calibration samples should be like, is `traffic`, or the inputs of `evaluation` without it. All
    `inputs[name]` have shape `(n, ...)`; `view` is what the model makes of both; `seed` draws the reference samples when there
    are more than 5,000, and what is run through the model. The checks, with the bound's name in the job and its default:

    - `enough_samples` (critical): at least `min_samples` (64) distinct ones; copies add no evidence. The number comes from how
      ranges converge: of n + 1 samples of one distribution each is as likely as the others to hold the largest value of a
      tensor, so that the next request leaves the range of n samples, to either side, with a probability of 2 / (n + 1),
      whatever the distribution. 64 samples make that 3 %, and another 64 gain 1.5 points; 12 leave it at 15 %.
    - `finite` (critical): no NaN or Inf in a float input.
    - `varies` (critical; a warning for inputs that are not float): no input is the same in all samples.
    - `no_leakage` (critical): no sample is in the evaluation data, by the digest of its inputs; and no more are nearly the same
      as an evaluation sample than evaluation samples are among themselves (`min_leak_p_value`, 0.001).
      `validators.samples.near_duplicates` says what nearly the same means.
      No group that the job names (`data.groups`) has samples in both.
    - `no_duplicates` (warning): at most `max_duplicates` (5 %) of the samples repeat an earlier one.
    - `labels_covered`, `slices_covered` (critical; absent unless calibration and reference have class indices, or slices): no
      group of the reference is missing or rare (`min_label_share`, 0.25 of its share there).
      `validators.calibration.label_coverage.find_short_labels` says how chance is kept out of it.
    - `same_distribution` (critical with both signs of drift, a warning with one): mean, std, min, max and share of zeros of
      each magnitude, mean, share of zeros and length of each index or mask, surprisal and share of unseen tokens of each index,
      by population stability index above chance (`max_psi`, 0.5) and by corrected Kolmogorov-Smirnov p-value
      (`min_drift_p_value`, 0.001). Formulas and sources: `drift` and `token_frequencies` in `validators.samples`.
    - `same_representation` (critical with both signs, a warning with the p-value alone): maximum mean discrepancy of the
      model's own representation (`max_mmd`, 0.02) and its p-value by permutation (`min_drift_p_value`).
    - `reference_covered` (critical): at least `min_embedding_coverage` (80 %; a random draw has 95 % on average) of reference
      samples have a calibration sample near them in that representation. Formulas and sources:
      `validators.calibration.representation`.
    - `ranges_hold` (critical; a warning for samples): in no tensor that would be quantized do more than `max_saturation` (1 %)
      of the reference's values lie outside the range of the calibration samples, nor do more than `max_clipped_samples` (25 %)
      of the reference samples have such a value in it.

    The last three are absent without `view`. Beside the page lies `ranges.csv`, one row a tensor.

    Raises:
        DataError: an input of the reference has a finite value in no sample, so that nothing can be compared with it.
    """
    evidence = gather_evidence(calibration, evaluation, traffic, view, bounds, seed=seed)
    with _ONE_AT_A_TIME:
        from validators.calibration.gx_checkpoint import run_checkpoint  # imports Great Expectations: 4 s

        results, page = run_checkpoint(evidence, page_folder)
    if view is not None:
        _write_ranges(view, page_folder / RANGES_FILE)
    checks = describe_checks(evidence, results)
    return CalibrationVerdict(conclude(checks), checks, page, measure_figures(evidence))


def conclude(checks: tuple[Check, ...]) -> Literal["accepted", "accepted_with_warnings", "refused"]:
    """The outcome: refused if a critical check failed, accepted with warnings if only others did."""
    failed = {check.severity for check in checks if not check.passed}
    if "critical" in failed:
        return "refused"
    return "accepted_with_warnings" if failed else "accepted"


def measure_figures(evidence: CalibrationEvidence) -> dict[str, float]:
    """The numbers that are worth watching from run to run, by name; shares from 0 to 1."""
    leaked = evidence.table["in evaluation"] + evidence.table["near evaluation"]
    if "group in evaluation" in evidence.table:
        leaked += evidence.table["group in evaluation"]
    figures: dict[str, float] = {
        "samples": len(evidence.table),
        "distinct_samples": int(evidence.table["digest"].nunique()),
        "leaked_samples": int((leaked > 0).sum()),
    }
    if evidence.comparisons:
        figures["min_drift_p_value"] = min(comparison.p_value for comparison in evidence.comparisons)
    if seen := evidence.seen:
        figures |= {"mmd": seen.likeness.mmd, "mmd_p_value": seen.likeness.p_value}
        figures["embedding_coverage"] = seen.cover.share
        figures["saturation_max"] = max((tensor.share for tensor in seen.view.clipping), default=0.0)
    return figures


def _write_ranges(view: ModelView, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["tensor", "nodes", "low", "high", "share of values outside", "share of samples outside"])
        for tensor in worst_first(view.clipping):
            writer.writerow(
                [tensor.tensor, " ".join(tensor.nodes), tensor.low, tensor.high, tensor.share, tensor.sample_share]
            )
