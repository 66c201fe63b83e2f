"""Checks of the samples themselves: enough, finite, different, absent from the evaluation data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from validators.calibration.checks.check import ExpectationResult, Expected, Severity, Texts
from validators.calibration.evidence import CalibrationEvidence
from validators.samples.datasets import Samples
from validators.samples.sample_statistics import count_nonfinite, differs_from_first
from validators.samples.words import count, first_few, name_rows


def count_not_finite(calibration: Samples) -> dict[str, NDArray[Any]]:
    """Return the number of NaN and Inf in each sample, shape `(n,)`, for every float input."""
    floats = {name: array for name, array in calibration.inputs.items() if array.dtype.kind == "f"}
    return {f"{name}.not finite": count_nonfinite(array) for name, array in floats.items()}


def mark_different(calibration: Samples) -> dict[str, NDArray[Any]]:
    """Return for each sample whether it differs from the first, 0 or 1, shape `(n,)`, for every input that is no state."""
    return {f"{name}.differs from first": differs_from_first(array) for name, array in calibration.own_inputs.items()}


def expect_enough(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect `min_samples` distinct samples."""
    least = evidence.bounds.min_samples
    text = f"there are at least {least} distinct samples"
    yield Expected("ExpectColumnUniqueValueCountToBeBetween", "", "critical", text, "digest", {"min_value": least})


def expect_finite(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect no NaN or Inf in any float input."""
    text = "no sample holds values that are NaN or Inf (observed: the most in a sample)"
    for name in evidence.float_inputs:
        column = f"{name}.not finite"
        yield Expected("ExpectColumnMaxToBeBetween", name, "critical", text, column, {"max_value": 0})


def expect_varying(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect no input to be the same in all samples, except a state, such as a counter of calls."""
    text = "the input is not the same in all samples (observed: samples that differ from the first)"
    for name in (*evidence.float_inputs, *evidence.other_inputs):
        severity: Severity = "critical" if name in evidence.float_inputs else "warning"
        column = f"{name}.differs from first"
        if column in evidence.table:
            yield Expected("ExpectColumnSumToBeBetween", name, severity, text, column, {"min_value": 1})


def expect_no_leakage(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect no sample, and no group, in the evaluation data, and no more near duplicates than chance allows."""
    expectation = "ExpectColumnSumToBeBetween"
    text = "no sample is in the evaluation data (observed: samples that are)"
    yield Expected(expectation, "", "critical", text, "in evaluation", {"max_value": 0})
    text = (
        "no more samples are nearly the same as an evaluation sample than evaluation samples are among themselves "
        "(observed: samples that are)"
    )
    yield Expected(expectation, "", "critical", text, "near evaluation", {"max_value": evidence.leaks.allowed})
    if evidence.leaks.in_groups is not None:
        text = (
            "no group has samples in both files (observed: calibration samples whose group is in the evaluation data)"
        )
        yield Expected(expectation, "", "critical", text, "group in evaluation", {"max_value": 0})


def expect_distinct(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect at most `max_duplicates` repeated samples."""
    share = 1 - evidence.bounds.max_duplicates
    text = f"at least {share:.0%} of the samples are distinct"
    yield Expected(
        "ExpectColumnProportionOfUniqueValuesToBeBetween", "", "warning", text, "digest", {"min_value": share}
    )


def describe_enough(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Describe the number of samples."""
    n, least = len(evidence.table), evidence.bounds.min_samples
    distinct = int(results[0].values["observed_value"])
    return (
        f"{n} samples" if distinct == n else f"{n} samples, {distinct} of them distinct",
        f"at least {least} distinct samples",
        f"add at least {least - distinct} more samples, drawn at random from the same source as {evidence.reference}",
    )


def describe_finite(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Name the samples with NaN or Inf."""
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


def describe_varying(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Name the inputs that never vary."""
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


def describe_leakage(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Texts:
    """Name the samples that are in the evaluation data as well."""
    table, leaks = evidence.table, evidence.leaks
    copies = [int(row) for row in table.index[table["in evaluation"] > 0]]
    near = [int(row) for row in table.index[table["near evaluation"] > 0]]
    found = [f"{len(copies)} of {len(table)} samples are in the evaluation data as well"]
    if near:
        places = [f"{row} like its {leaks.near[row]}" for row in near]
        found.append(f"{len(near)} nearly the same as one there ({first_few(places)})")
    leaked = {*copies, *(near if len(near) > leaks.allowed else [])}
    expected = (
        "no calibration sample in the evaluation data, and at most "
        f"{leaks.allowed} nearly the same (evaluation samples among themselves: {leaks.natural_share:.1%})"
    )
    if leaks.in_groups is not None:
        rows = [int(row) for row in np.flatnonzero(leaks.in_groups)]
        leaked.update(rows)
        named = f" ({first_few(leaks.groups)})" if rows else ""
        found.append(f"{count(len(rows), 'sample')} of {count(len(leaks.groups), 'group')} in both{named}")
        expected += ", and no group (`data.groups`) in both files"
    return (
        ", ".join(found),
        expected,
        f"remove {name_rows(sorted(leaked))} from the calibration data, or the same samples from the evaluation data",
    )


def describe_duplicates(evidence: CalibrationEvidence, results: Sequence[ExpectationResult]) -> Texts:
    """Describe the share of repeated samples."""
    n = len(evidence.table)
    copies = round(n * (1 - results[0].values["observed_value"]))
    return (
        f"{copies} of {n} samples ({copies / n:.1%}) repeat an earlier one",
        f"at most {evidence.bounds.max_duplicates:.0%} repeated samples",
        f"remove or replace {count(copies, 'repeated sample')}",
    )
