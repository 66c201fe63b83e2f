"""The checks of the calibration data in words: what was found, what was expected, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from validators.drift import Comparison
from validators.job import CalibrationBounds
from validators.label_coverage import MIN_EXPECTED_COUNT, count_required_labels
from validators.records import Check

if TYPE_CHECKING:
    import pandas as pd

Severity = Literal["critical", "warning"]
Words = tuple[str, str, str]
MAX_DUPLICATE_SHARE = 0.05
SHOWN = 5  # rows, statistics or labels named in a text; the page has them all


@dataclass(frozen=True)
class Evidence:
    """What the checks read: `table` has one row a calibration sample, the rest says what its columns are held against.

    Columns of `table`: `digest` (of the inputs), `in evaluation` (0 or 1), `label` (if labels are judged), and by input
    `input.differs from first` (0 or 1), `input.not finite` (a count, float inputs only) and `input.statistic`.
    `reference_labels` maps each label of the reference to its samples; None when labels are not judged. `medians` holds for
    each statistic the median over the calibration and over the reference.
    """

    table: pd.DataFrame
    float_inputs: tuple[str, ...]
    other_inputs: tuple[str, ...]
    comparisons: tuple[Comparison, ...]
    medians: dict[str, tuple[float, float]]
    reference: str
    reference_labels: dict[int, int] | None
    bounds: CalibrationBounds


@dataclass(frozen=True)
class Result:
    """What Great Expectations found of one expectation: of which check, about what (an input, a statistic), how grave."""

    check: str
    subject: str
    passed: bool
    severity: Severity
    values: dict[str, Any]


def describe_checks(evidence: Evidence, results: Sequence[Result]) -> tuple[Check, ...]:
    """One check a name, in the order of `DESCRIPTIONS`, from the results of its expectations.

    A check passes if all its expectations do. A failed one is as grave as the gravest failure in it, a passed one as grave
    as a failure of it could have been. A check of float inputs has no expectation, and passes, when there are none.
    """
    checks = []
    for name, describe in DESCRIPTIONS.items():
        own = [result for result in results if result.check == name]
        if name == "labels_covered" and not own:
            continue
        failed = [result for result in own if not result.passed]
        grave: Severity = "critical"
        if own and all(result.severity == "warning" for result in failed or own):
            grave = "warning"
        found, expected, fix = describe(evidence, own)
        checks.append(Check(name, not failed, grave, found, expected, fix if failed else ""))
    return tuple(checks)


def _describe_enough(evidence: Evidence, results: Sequence[Result]) -> Words:
    n, least = len(evidence.table), evidence.bounds.min_samples
    distinct = int(results[0].values["observed_value"])
    return (
        f"{n} samples" if distinct == n else f"{n} samples, {distinct} of them distinct",
        f"at least {least} distinct samples",
        f"add at least {least - distinct} more samples, drawn at random from the same source as {evidence.reference}",
    )


def _describe_finite(evidence: Evidence, results: Sequence[Result]) -> Words:
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


def _describe_varies(evidence: Evidence, results: Sequence[Result]) -> Words:
    constant = [result.subject for result in results if not result.passed]
    n = len(evidence.table)
    fixes = [
        f"input {name!r}: look how the file was written, for a range measured on it would fit one sample"
        if name in evidence.float_inputs
        else f"input {name!r}: leave it if all requests look so (a mask without padding), else add samples that differ"
        for name in constant
    ]
    return (
        "; ".join(f"input {name!r} is the same in all {n} samples" for name in constant) or "every input varies",
        "samples that differ in every input",
        "; ".join(fixes),
    )


def _describe_leakage(evidence: Evidence, _: Sequence[Result]) -> Words:
    rows = [int(row) for row in evidence.table.index[evidence.table["in evaluation"] > 0]]
    return (
        f"{len(rows)} of {len(evidence.table)} samples in the evaluation data as well",
        "no calibration sample in the evaluation data",
        f"remove {name_rows(rows)} from the calibration data, or the same samples from the evaluation data",
    )


def _describe_duplicates(evidence: Evidence, results: Sequence[Result]) -> Words:
    n = len(evidence.table)
    copies = round(n * (1 - results[0].values["observed_value"]))
    return (
        f"{copies} of {n} samples ({copies / n:.1%}) repeat an earlier one",
        f"at most {MAX_DUPLICATE_SHARE:.0%} repeated samples",
        f"remove {count(copies, 'repeated sample')}, or put others in their place",
    )


def _describe_labels(evidence: Evidence, results: Sequence[Result]) -> Words:
    reference = evidence.reference_labels or {}
    required = count_required_labels(reference, len(evidence.table))
    short = results[0].values["details"]["short"]
    found = [
        f"label {s['label']}: {s['count']} samples, {s['reference_share']:.1%} of the reference" for s in short[:SHOWN]
    ]
    fixes = [f"{s['needed'] - s['count']} of label {s['label']}" for s in short]
    fine = f"none of the {required} labels that must occur is too rare" if required else "no label that must occur"
    return (
        "; ".join(found) + and_more(short) or fine,
        f"each label of which {MIN_EXPECTED_COUNT:.0f} samples or more are expected: present, with at least "
        f"{evidence.bounds.min_label_share:g} times its share of the reference ({evidence.reference})",
        "add at least as many samples: " + ", ".join(fixes),
    )


def _describe_distribution(evidence: Evidence, results: Sequence[Result]) -> Words:
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
        f"p-value of at least {bounds.min_drift_p_value:g} against {reference}",
        f"compare how input {', '.join(inputs)} is made and scaled in the calibration data and in {reference}; "
        "draw the calibration samples at random from the same source",
    )


def _describe_drift(evidence: Evidence, name: str, observed: dict[str, Any]) -> str:
    median, reference_median = evidence.medians[name]
    above_chance = observed["psi"] - observed["psi_by_chance"]
    return (
        f"{name} drifts by {' and '.join(observed['signs'])} (PSI {above_chance:.2f} above chance, "
        f"p-value {observed['p_value']:.2g}, median {median:.4g} against {reference_median:.4g})"
    )


def name_rows(rows: Sequence[int]) -> str:
    """Rows, counted from 0, for a person to find.

    >>> name_rows([3, 17]), name_rows(range(100))
    ('samples 3, 17', '100 samples (0, 1, 2, 3, 4 and 95 more)')
    """
    if len(rows) <= SHOWN:
        return f"{'sample' if len(rows) == 1 else 'samples'} {', '.join(map(str, rows))}"
    return f"{len(rows)} samples ({', '.join(map(str, rows[:SHOWN]))}{and_more(rows)})"


def and_more(items: Sequence[object]) -> str:
    """The end of a list of which `SHOWN` items are written out."""
    return f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "sample"), count(2, "sample")
    ('1 sample', '2 samples')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


DESCRIPTIONS: dict[str, Callable[[Evidence, Sequence[Result]], Words]] = {
    "enough_samples": _describe_enough,
    "finite": _describe_finite,
    "varies": _describe_varies,
    "no_leakage": _describe_leakage,
    "no_duplicates": _describe_duplicates,
    "labels_covered": _describe_labels,
    "same_distribution": _describe_distribution,
}
