"""Texts of the calibration checks: found, expected, fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from validators.calibration.evidence import CalibrationEvidence
from validators.calibration.label_coverage import MIN_EXPECTED_COUNT, count_required_labels
from validators.records.measurements import worst_first
from validators.records.run import Check
from validators.samples.words import SHOWN, and_more, count, name_rows, percent

Severity = Literal["critical", "warning"]
Words = tuple[str, str, str]
WORST_TENSORS = 3  # named in a text; the page lists ten, `ranges.csv` all


@dataclass(frozen=True)
class ExpectationResult:
    """Result of one expectation: its check, its subject (an input, a statistic), its severity and the observed values."""

    check: str
    subject: str
    passed: bool
    severity: Severity
    values: dict[str, Any]


def describe_checks(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> tuple[Check, ...]:
    """Combine the results of expectations into one check per name, in the order of `DESCRIPTIONS`.

    A check passes if all its expectations do. A failed check has the severity of its most severe failure; a passed check has
    the severity that a failure could have had. Without float inputs, their check has no expectation and passes.
    """
    checks = []
    for name, describe in DESCRIPTIONS.items():
        own = [result for result in results if result.check == name]
        if name in OPTIONAL and not own:
            continue
        failed = [result for result in own if not result.passed]
        grave: Severity = "critical"
        if own and all(result.severity == "warning" for result in failed or own):
            grave = "warning"
        found, expected, fix = describe(evidence, own)
        checks.append(Check(name, not failed, grave, found, expected, fix if failed else ""))
    return tuple(checks)


def _describe_enough(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
    n, least = len(evidence.table), evidence.bounds.min_samples
    distinct = int(results[0].values["observed_value"])
    return (
        f"{n} samples" if distinct == n else f"{n} samples, {distinct} of them distinct",
        f"at least {least} distinct samples",
        f"add at least {least - distinct} more samples, drawn at random from the same source as {evidence.reference}",
    )


def _describe_finite(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
    faults = []
    for result in results:
        rows = evidence.table.index[evidence.table[f"{result.subject}.not finite"] > 0]
        if not result.passed:
            faults.append((result.subject, [int(row) for row in rows]))
    fine = f"finite values in {count(len(results), 'float input')}" if results else "no float inputs"
    return (
        "; ".join(f"NaN or Inf in input {name!r} of {count(len(rows), 'sample')}" for name, rows in faults) or fine,
        "no NaN or Inf in any float input",
        "drop or repair " + "; ".join(f"{name_rows(rows)} (input {name!r})" for name, rows in faults),
    )


def _describe_varies(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
    constant = [result.subject for result in results if not result.passed]
    n = len(evidence.table)
    fixes = [
        f"input {name!r}: check how the file was written, since a range measured on it would fit one sample"
        if name in evidence.float_inputs
        else f"input {name!r}: ignore this if it never varies in requests (an unpadded mask), else add samples that differ"
        for name in constant
    ]
    return (
        "; ".join(f"input {name!r} is the same in all {n} samples" for name in constant) or "every input varies",
        "samples that differ in every input",
        "; ".join(fixes),
    )


def _describe_leakage(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Words:
    table, leaks = evidence.table, evidence.leaks
    copies = [int(row) for row in table.index[table["in evaluation"] > 0]]
    near = [int(row) for row in table.index[table["near evaluation"] > 0]]
    found = [f"{len(copies)} of {len(table)} samples are in the evaluation data as well"]
    if near:
        places = [f"{row} like its {leaks.near[row]}" for row in near]
        found.append(f"{len(near)} nearly the same as one there ({', '.join(places[:SHOWN])}{and_more(places)})")
    leaked = {*copies, *(near if len(near) > leaks.allowed else [])}
    expected = (
        "no calibration sample in the evaluation data, and at most "
        f"{leaks.allowed} nearly the same (evaluation samples among themselves: {leaks.natural_share:.1%})"
    )
    if leaks.in_groups is not None:
        rows = [int(row) for row in np.flatnonzero(leaks.in_groups)]
        leaked.update(rows)
        names = ", ".join(leaks.groups[:SHOWN]) + and_more(leaks.groups)
        found.append(
            f"{count(len(rows), 'sample')} of {count(len(leaks.groups), 'group')} in both"
            + (f" ({names})" if rows else "")
        )
        expected += ", and no group (`data.groups`) in both files"
    return (
        ", ".join(found),
        expected,
        f"remove {name_rows(sorted(leaked))} from the calibration data, or the same samples from the evaluation data",
    )


def _describe_duplicates(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
    n = len(evidence.table)
    copies = round(n * (1 - results[0].values["observed_value"]))
    return (
        f"{copies} of {n} samples ({copies / n:.1%}) repeat an earlier one",
        f"at most {evidence.bounds.max_duplicates:.0%} repeated samples",
        f"remove or replace {count(copies, 'repeated sample')}",
    )


def _describe_groups(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
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
        "; ".join(found[:SHOWN]) + and_more(found) or fine,
        f"each of the {noun} of which {MIN_EXPECTED_COUNT:.0f} samples or more are expected: present, with at least "
        f"{evidence.bounds.min_label_share:g} times its share of the reference ({evidence.reference})",
        "add at least as many samples: " + ", ".join(fixes),
    )


def _describe_distribution(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Words:
    # Each statistic has two expectations with the same observations: one critical, one a warning.
    observed = {result.subject: result.values["details"] for result in results}
    worst = sorted(observed, key=lambda name: (-len(observed[name]["signs"]), observed[name]["p_value"]))
    drifted = [name for name in worst if observed[name]["signs"]]
    bounds, reference = evidence.bounds, evidence.reference
    inputs = sorted({repr(name.rpartition(".")[0]) for name in drifted})
    fine = f"no sign of drift in {count(len(observed), 'statistic')}" if observed else "no statistics to compare"
    found = "; ".join(_describe_drift(evidence, name, observed[name]) for name in drifted[:SHOWN]) + and_more(drifted)
    return (
        found or fine,
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


def _describe_representation(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Words:
    seen = evidence.seen
    assert seen is not None  # the check exists only with it
    bounds, likeness = evidence.bounds, seen.likeness
    return (
        f"squared discrepancy {likeness.mmd:.3g}, p-value {likeness.p_value:.2g}, in {seen.view.tensor} "
        f"({len(seen.view.calibration)} against {len(seen.view.reference)} samples)",
        f"a squared maximum mean discrepancy of at most {bounds.max_mmd:g} from {evidence.reference} in the "
        f"model's representation, or a p-value of at least {bounds.min_drift_p_value:g}",
        f"look for a source, language or kind of sample that {evidence.reference} and the calibration data do not share; "
        "draw the calibration samples at random from the same source",
    )


def _describe_cover(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Words:
    seen = evidence.seen
    assert seen is not None
    regions = [f"sample {region.row} (stands for {region.samples})" for region in seen.cover.regions]
    return (
        f"{seen.cover.share:.1%} of {count(len(seen.view.reference), 'sample')} of {evidence.reference} have a calibration "
        "sample near them",
        f"at least {evidence.bounds.min_embedding_coverage:.0%}; near: within the 95th percentile of "
        "calibration nearest-neighbour distances",
        f"add at least {count(len(regions), 'sample')} like these of {evidence.reference}: "
        + ", ".join(regions[:SHOWN])
        + and_more(regions),
    )


def _describe_ranges(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Words:
    seen, bounds = evidence.seen, evidence.bounds
    assert seen is not None
    worst = [tensor for tensor in worst_first(seen.view.clipping)[:WORST_TENSORS] if tensor.share]
    found = ", ".join(f"{percent(tensor.share)} of {tensor.place}" for tensor in worst) or "no value"
    by_samples = max(seen.view.clipping, key=lambda tensor: tensor.sample_share, default=None)
    most = (
        f"; samples with such values: up to {percent(by_samples.sample_share)}, in {by_samples.place}"
        if by_samples and worst
        else ""
    )
    return (
        f"values outside the range of the calibration samples: {found}{most}",
        f"at most {percent(bounds.max_saturation)} of the values of each tensor on {evidence.reference}, in at most "
        f"{percent(bounds.max_clipped_samples)} of the samples",
        f"add samples that reach as far as {evidence.reference} (the longest, the brightest, the rarest), in the share that "
        "they have there",
    )


OPTIONAL = frozenset({"labels_covered", "slices_covered", "same_representation", "reference_covered", "ranges_hold"})
DESCRIPTIONS: dict[str, Callable[[CalibrationEvidence, Sequence[ExpectationResult]], Words]] = {
    "enough_samples": _describe_enough,
    "finite": _describe_finite,
    "varies": _describe_varies,
    "no_leakage": _describe_leakage,
    "no_duplicates": _describe_duplicates,
    "labels_covered": _describe_groups,
    "slices_covered": _describe_groups,
    "same_distribution": _describe_distribution,
    "same_representation": _describe_representation,
    "reference_covered": _describe_cover,
    "ranges_hold": _describe_ranges,
}
