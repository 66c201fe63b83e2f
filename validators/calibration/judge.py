"""Verdict on calibration data: enough samples, finite, absent from the evaluation data, and like the traffic."""

from __future__ import annotations

import csv
import threading
from pathlib import Path
from typing import Literal

from validators.calibration.checks.catalog import describe_checks, measure_columns
from validators.calibration.evidence import CalibrationEvidence, gather_evidence
from validators.calibration.model_view import ModelView
from validators.job.job_data import CalibrationBounds
from validators.records.measurements import worst_first
from validators.records.run import CalibrationVerdict, Check
from validators.samples.datasets import Samples

RANGES_FILE = "ranges.csv"
# The context of Great Expectations and Python's warning filters are global to the process.
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
    """Judge the calibration samples by one Great Expectations checkpoint; write its Data Docs site into `page_folder`.

    The calibration samples should resemble the reference: `traffic`, or the inputs of `evaluation` if `traffic` is None. All
    `inputs[name]` have shape `(n, ...)`. `view` holds the model's outputs for both. `seed` draws reference samples if there
    are more than 5,000, and drives the permutation test. The checks, with each bound's name in the job and its default:

    - `enough_samples` (critical): at least `min_samples` (64) distinct samples; copies add no evidence. The number follows from
      the convergence of ranges: among n + 1 samples of one distribution, each is equally likely to hold the largest value of a
      tensor. The next request therefore leaves the range of n samples, on either side, with probability 2 / (n + 1), whatever
      the distribution. 64 samples make that 3 %, another 64 gain 1.5 points, and 12 leave it at 15 %.
    - `finite` (critical): no NaN or Inf in a float input.
    - `varies` (critical; a warning for inputs that are not float): no input is the same in all samples.
    - `no_leakage` (critical): no sample is in the evaluation data, by the digest of its inputs. No more samples are near
      duplicates of an evaluation sample than evaluation samples are among themselves (`min_leak_p_value`, 0.001);
      `validators.samples.near_duplicates` defines near duplicates. No group that the job names (`data.groups`) has samples in
      both.
    - `no_duplicates` (warning): at most `max_duplicates` (5 %) of the samples repeat an earlier one.
    - `labels_covered`, `slices_covered` (critical; absent unless calibration and reference have class indices, or slices): no
      group of the reference is missing or rare (`min_label_share`, 0.25 of its share there).
      `validators.calibration.label_coverage.find_short_labels` explains how it discounts chance.
    - `same_distribution` (critical with both signs of drift, a warning with one): mean, std, min, max and share of zeros of
      each magnitude; mean, share of zeros and length of each index or mask; surprisal and share of unseen tokens of each index.
      The two signs are the population stability index above chance (`max_psi`, 0.5) and the corrected Kolmogorov-Smirnov
      p-value (`min_drift_p_value`, 0.001). Formulas and sources: `drift` and `token_frequencies` in `validators.samples`.
    - `same_representation` (critical with both signs, a warning with the p-value alone): maximum mean discrepancy of the
      model's own representation (`max_mmd`, 0.02) and its p-value by permutation (`min_drift_p_value`).
    - `reference_covered` (critical): at least `min_embedding_coverage` (80 %; a random draw has 95 % on average) of reference
      samples have a calibration sample near them in that representation. Formulas and sources:
      `validators.calibration.representation`.
    - `ranges_hold` (critical for values; a warning for samples): no tensor that would be quantized has more than
      `max_saturation` (1 %) of the reference's values outside the range of the calibration samples, or more than
      `max_clipped_samples` (25 %) of the reference samples with such a value.

    Without `view`, the last three are absent; with it, `ranges.csv` is written beside the page, one row per tensor.

    Raises:
        DataError: an input of the reference has a finite value in no sample, so that nothing can be compared with it.
    """
    columns = measure_columns(calibration)
    evidence = gather_evidence(calibration, evaluation, traffic, view, bounds, seed=seed, columns_of_checks=columns)
    with _ONE_AT_A_TIME:
        from validators.calibration.gx_checkpoint import run_checkpoint  # imports Great Expectations: 4 s

        results, page = run_checkpoint(evidence, page_folder)
    if view is not None:
        _write_ranges(view, page_folder / RANGES_FILE)
    checks = describe_checks(evidence, results)
    return CalibrationVerdict(conclude(checks), checks, measure_figures(evidence), page)


def conclude(checks: tuple[Check, ...]) -> Literal["accepted", "accepted_with_warnings", "refused"]:
    """Return the outcome: refused if a critical check failed, accepted with warnings if only other checks did."""
    failed = {check.severity for check in checks if not check.passed}
    if "critical" in failed:
        return "refused"
    return "accepted_with_warnings" if failed else "accepted"


def measure_figures(evidence: CalibrationEvidence) -> dict[str, float]:
    """Return the figures to track from run to run, by name; shares are from 0 to 1."""
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
