"""Expectations of the calibration checkpoint: the column, bounds and severity of each check.

Importing this module imports Great Expectations (4 s): import it inside the function that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from validators.calibration.descriptions import Severity
from validators.calibration.evidence import CalibrationEvidence, ViewedSamples
from validators.calibration.gx_expectations import ExpectColumnToCoverLabels, ExpectColumnToFollowReference
from validators.calibration.model_expectations import (
    ExpectColumnToCoverReference,
    ExpectRangesToHold,
    ExpectRepresentationToFollowReference,
)
from validators.calibration.quiet_import import quiet_import

with quiet_import():
    import great_expectations.expectations as built_in
    from great_expectations.expectations.expectation import Expectation

# Strict typing does not see how the module exports its classes.
gxe: Any = built_in


def list_expectations(evidence: CalibrationEvidence) -> Iterator[Expectation]:
    """Yield all expectations in the order of the checks. Column names are escaped, because Data Docs does not escape them."""
    yield from _expect_usable(evidence)
    yield from _expect_unseen(evidence)
    for column, counts in evidence.groups.items():
        yield _expect_groups(evidence, column, counts)
    yield from _expect_distributions(evidence)
    if evidence.seen is not None:
        yield from _expect_seen(evidence, evidence.seen)


def _expect_usable(evidence: CalibrationEvidence) -> Iterator[Expectation]:
    least = evidence.bounds.min_samples
    text = f"there are at least {least} distinct samples"
    yield gxe.ExpectColumnUniqueValueCountToBeBetween(
        column="digest", min_value=least, **_tell("enough_samples", "", "critical", text)
    )
    for name in evidence.float_inputs:
        text = "no sample holds values that are NaN or Inf (observed: the most in a sample)"
        yield gxe.ExpectColumnMaxToBeBetween(
            column=escape(f"{name}.not finite"), max_value=0, **_tell("finite", name, "critical", text)
        )
    for name in (*evidence.float_inputs, *evidence.other_inputs):
        severity: Severity = "critical" if name in evidence.float_inputs else "warning"
        text = "the input is not the same in all samples (observed: samples that differ from the first)"
        yield gxe.ExpectColumnSumToBeBetween(
            column=escape(f"{name}.differs from first"), min_value=1, **_tell("varies", name, severity, text)
        )


def _expect_unseen(evidence: CalibrationEvidence) -> Iterator[Expectation]:
    text = "no sample is in the evaluation data (observed: samples that are)"
    yield gxe.ExpectColumnSumToBeBetween(
        column="in evaluation", max_value=0, **_tell("no_leakage", "", "critical", text)
    )
    text = (
        "no more samples are nearly the same as an evaluation sample than evaluation samples are among themselves "
        "(observed: samples that are)"
    )
    yield gxe.ExpectColumnSumToBeBetween(
        column="near evaluation", max_value=evidence.leaks.allowed, **_tell("no_leakage", "", "critical", text)
    )
    if evidence.leaks.in_groups is not None:
        text = (
            "no group has samples in both files (observed: calibration samples whose group is in the evaluation data)"
        )
        yield gxe.ExpectColumnSumToBeBetween(
            column="group in evaluation", max_value=0, **_tell("no_leakage", "", "critical", text)
        )
    share = 1 - evidence.bounds.max_duplicates
    text = f"at least {share:.0%} of the samples are distinct"
    yield gxe.ExpectColumnProportionOfUniqueValuesToBeBetween(
        column="digest", min_value=share, **_tell("no_duplicates", "", "warning", text)
    )


def _expect_groups(evidence: CalibrationEvidence, column: str, counts: dict[Any, int]) -> Expectation:
    share = evidence.bounds.min_label_share
    check, noun = ("labels_covered", "label") if column == "label" else ("slices_covered", "group")
    text = f"each {noun} of {evidence.reference} that must occur does, with at least {share:g} times its share there"
    return ExpectColumnToCoverLabels(
        column=escape(column),
        labels=list(counts),
        reference_counts=list(counts.values()),
        min_share=share,
        **_tell(check, column, "critical", text),
    )


def _expect_distributions(evidence: CalibrationEvidence) -> Iterator[Expectation]:
    bounds = evidence.bounds
    limits = f"PSI at most {bounds.max_psi:g} above chance, corrected KS p-value at least {bounds.min_drift_p_value:g}"
    severities: tuple[tuple[int, Severity], ...] = ((1, "critical"), (0, "warning"))
    for comparison in evidence.comparisons:
        for max_signs, severity in severities:
            text = f"distributed like {evidence.reference}: {'either' if max_signs else 'both'} of {limits}"
            yield ExpectColumnToFollowReference(
                column=escape(comparison.statistic),
                edges=list(comparison.edges),
                reference_counts=list(comparison.reference_counts),
                p_value=comparison.p_value,
                max_psi=bounds.max_psi,
                min_p_value=bounds.min_drift_p_value,
                max_signs=max_signs,
                **_tell("same_distribution", comparison.statistic, severity, text),
            )


def _expect_seen(evidence: CalibrationEvidence, seen: ViewedSamples) -> Iterator[Expectation]:
    bounds, reference = evidence.bounds, evidence.reference
    severities: tuple[tuple[float, Severity], ...] = ((bounds.max_mmd, "critical"), (0.0, "warning"))
    # The chart is drawn once, in the row that failed: the page can hide successes.
    warned_alone = seen.likeness.p_value < bounds.min_drift_p_value and seen.likeness.mmd <= bounds.max_mmd
    for max_mmd, severity in severities:
        above = f" or a squared maximum mean discrepancy of at most {max_mmd:g}" if max_mmd else ""
        least = f"a p-value of at least {bounds.min_drift_p_value:g}{above}"
        text = f"{seen.view.tensor} is distributed like that of {reference}: {least}"
        yield ExpectRepresentationToFollowReference(
            column="representation",
            reference_values=seen.cover.reference_along.tolist(),
            mmd=seen.likeness.mmd,
            p_value=seen.likeness.p_value,
            max_mmd=max_mmd,
            min_p_value=bounds.min_drift_p_value,
            drawn=warned_alone == (severity == "warning"),
            **_tell("same_representation", "", severity, text),
        )
    share = bounds.min_embedding_coverage
    text = f"at least {share:.0%} of {reference} have a calibration sample as near as these have each other"
    yield ExpectColumnToCoverReference(
        column="nearest other",
        reference_distances=seen.cover.distances.tolist(),
        min_share=share,
        **_tell("reference_covered", "", "critical", text),
    )
    clipping = seen.view.clipping
    parts: tuple[tuple[str, list[float], float, Severity], ...] = (
        ("values", [tensor.share for tensor in clipping], bounds.max_saturation, "critical"),
        ("samples", [tensor.sample_share for tensor in clipping], bounds.max_clipped_samples, "warning"),
    )
    for what, shares, most, severity in parts:
        text = f"in no tensor more than {most:.1%} of the {what} of {reference} outside the range of the calibration samples"
        yield ExpectRangesToHold(
            tensors=[escape(tensor.place) for tensor in clipping],
            shares=shares,
            max_share=most,
            what=what,
            **_tell("ranges_hold", what, severity, text),
        )


def _tell(check: str, subject: str, severity: Severity, text: str) -> dict[str, Any]:
    """Return the keywords of an expectation that the page and the verdict read. The page shows `description`."""
    return {
        "severity": severity,
        "description": escape(f"{check} ({severity}): {text}", quote=False),
        "meta": {"check": check, "subject": subject},
    }
