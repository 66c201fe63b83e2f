"""Checks against the reference: its labels and slices occur, and every statistic has its distribution."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from validators.calibration.checks.check import ExpectationResult, Expected, Severity, Texts
from validators.calibration.evidence import CalibrationEvidence
from validators.calibration.label_coverage import MIN_EXPECTED_COUNT, count_required_labels
from validators.samples.words import count, first_few

LABEL = "label"


def expect_labels(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect each label of the reference, unless chance explains its absence."""
    if LABEL in evidence.groups:
        yield _expect_groups(evidence, LABEL, "label")


def expect_slices(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect each group of each slice of the reference, unless chance explains its absence."""
    for column in evidence.groups:
        if column != LABEL:
            yield _expect_groups(evidence, column, "group")


def _expect_groups(evidence: CalibrationEvidence, column: str, noun: str) -> Expected:
    share, counts = evidence.bounds.min_label_share, evidence.groups[column]
    text = f"each {noun} of {evidence.reference} that must occur does, with at least {share:g} times its share there"
    arguments = {"labels": list(counts), "reference_counts": list(counts.values()), "min_share": share}
    return Expected("ExpectColumnToCoverLabels", column, "critical", text, column, arguments)


def expect_same_distribution(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect no drift of any statistic: both signs of drift are critical, one is a warning."""
    bounds = evidence.bounds
    limits = f"PSI at most {bounds.max_psi:g} above chance, corrected KS p-value at least {bounds.min_drift_p_value:g}"
    severities: tuple[tuple[int, Severity], ...] = ((1, "critical"), (0, "warning"))
    for comparison in evidence.comparisons:
        for max_signs, severity in severities:
            text = f"distributed like {evidence.reference}: {'either' if max_signs else 'both'} of {limits}"
            arguments = {
                "edges": list(comparison.edges),
                "reference_counts": list(comparison.reference_counts),
                "p_value": comparison.p_value,
                "max_psi": bounds.max_psi,
                "min_p_value": bounds.min_drift_p_value,
                "max_signs": max_signs,
            }
            column = comparison.statistic
            yield Expected("ExpectColumnToFollowReference", column, severity, text, column, arguments)


def describe_groups(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Describe the coverage of labels, or of the groups of all slices; each result covers one column of the table."""
    required, found, fixes = 0, [], []
    for result in results:
        required += count_required_labels(evidence.groups[result.subject], len(evidence.table))
        for short in result.values["details"]["short"]:
            name = f"{result.subject.removeprefix('slice.')} {short['label']}"
            found.append(f"{name}: {short['count']} samples, {short['reference_share']:.1%} of the reference")
            fixes.append(f"{short['needed'] - short['count']} of {name}")
    noun = "labels" if results[0].subject == "label" else "groups"
    fine = f"none of the {required} {noun} that must occur is too rare" if required else f"no {noun} that must occur"
    return (
        first_few(found, "; ") or fine,
        f"each of the {noun} of which {MIN_EXPECTED_COUNT:.0f} samples or more are expected: present, with at least "
        f"{evidence.bounds.min_label_share:g} times its share of the reference ({evidence.reference})",
        "add at least as many samples: " + ", ".join(fixes),
    )


def describe_distribution(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Describe the statistics that drift."""
    # Each statistic has two expectations with the same observations: one critical, one a warning.
    observed = {result.subject: result.values["details"] for result in results}
    worst = sorted(observed, key=lambda name: (-len(observed[name]["signs"]), observed[name]["p_value"]))
    drifted = [name for name in worst if observed[name]["signs"]]
    bounds, reference = evidence.bounds, evidence.reference
    inputs = sorted({repr(name.rpartition(".")[0]) for name in drifted})
    fine = f"no sign of drift in {count(len(observed), 'statistic')}" if observed else "no statistics to compare"
    found = [_describe_drift(evidence, name, observed[name]) for name in drifted]
    return (
        first_few(found, "; ") or fine,
        f"for each statistic, a PSI of at most {bounds.max_psi:g} above chance and a corrected Kolmogorov-Smirnov "
        f"p-value of at least {bounds.min_drift_p_value:g} against {reference}"
        + (f" ({evidence.compared})" if evidence.compared else ""),
        f"compare how input {', '.join(inputs)} is made and scaled in the calibration data and in {reference}; "
        "draw the calibration samples at random from the same source",
    )


def _describe_drift(evidence: CalibrationEvidence, name: str, observed: dict[str, Any]) -> str:
    median, reference_median = evidence.medians[name]
    above_chance = observed["psi"] - observed["psi_by_chance"]
    return (
        f"{name} drifts by {' and '.join(observed['signs'])} (PSI {above_chance:.2f} above chance, "
        f"p-value {observed['p_value']:.2g}, median {median:.4g} against {reference_median:.4g})"
    )
