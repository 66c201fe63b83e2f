"""The catalogue of calibration checks: evidence, checkpoint and verdict loop over it.

To add a check, write its functions in a module of this package, add a row here, and add its bound to
`validators.job.job_data.CalibrationBounds`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from validators.calibration.checks import model_checks, reference_checks, sample_checks
from validators.calibration.checks.check import CalibrationCheck, ExpectationResult, Severity
from validators.calibration.evidence import CalibrationEvidence
from validators.records.run import Check
from validators.samples.datasets import Samples

CHECKS: tuple[CalibrationCheck, ...] = (
    CalibrationCheck("enough_samples", sample_checks.expect_enough, sample_checks.describe_enough),
    CalibrationCheck(
        "finite", sample_checks.expect_finite, sample_checks.describe_finite, columns=sample_checks.count_not_finite
    ),
    CalibrationCheck(
        "varies", sample_checks.expect_varying, sample_checks.describe_varying, columns=sample_checks.mark_different
    ),
    CalibrationCheck("no_leakage", sample_checks.expect_no_leakage, sample_checks.describe_leakage),
    CalibrationCheck("no_duplicates", sample_checks.expect_distinct, sample_checks.describe_duplicates),
    CalibrationCheck(
        "labels_covered", reference_checks.expect_labels, reference_checks.describe_groups, is_optional=True
    ),
    CalibrationCheck(
        "slices_covered", reference_checks.expect_slices, reference_checks.describe_groups, is_optional=True
    ),
    CalibrationCheck(
        "same_distribution", reference_checks.expect_same_distribution, reference_checks.describe_distribution
    ),
    CalibrationCheck(
        "same_representation",
        model_checks.expect_same_representation,
        model_checks.describe_representation,
        is_optional=True,
    ),
    CalibrationCheck("reference_covered", model_checks.expect_cover, model_checks.describe_cover, is_optional=True),
    CalibrationCheck("ranges_hold", model_checks.expect_ranges, model_checks.describe_ranges, is_optional=True),
)


def measure_columns(calibration: Samples) -> dict[str, NDArray[Any]]:
    """Return the columns that the checks compute from the `n` calibration samples, shape `(n,)` each."""
    return {name: column for check in CHECKS for name, column in check.columns(calibration).items()}


def describe_checks(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> tuple[Check, ...]:
    """Combine the results of expectations into one `Check` per row of the catalogue.

    A check passes if all its expectations do. A failed check has the severity of its most severe failure; a passed check has
    the severity that a failure could have had. Without float inputs, their check has no expectation and passes.
    """
    checks = []
    for check in CHECKS:
        own = [result for result in results if result.check == check.name]
        if check.is_optional and not own:
            continue
        failed = [result for result in own if not result.passed]
        severity: Severity = "critical"
        if own and all(result.severity == "warning" for result in failed or own):
            severity = "warning"
        found, expected, fix = check.describe(evidence, own)
        checks.append(Check(check.name, severity, found, expected, fix if failed else "", not failed))
    return tuple(checks)
