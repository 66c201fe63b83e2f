"""Checks on the model's view of the samples: its representation, and the ranges of its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from validators.calibration.checks.check import ExpectationResult, Expected, Severity, Texts
from validators.calibration.evidence import CalibrationEvidence
from validators.records.measurements import worst_first
from validators.samples.words import count, first_few, percent

# Named in a text; the page lists ten, `ranges.csv` all.
WORST_TENSORS = 3


def expect_same_representation(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect the representation of the reference: both signs of a difference are critical, the p-value alone a warning."""
    seen, bounds, reference = evidence.seen, evidence.bounds, evidence.reference
    if seen is None:
        return
    severities: tuple[tuple[float, Severity], ...] = ((bounds.max_mmd, "critical"), (0.0, "warning"))
    # The chart is drawn once, in the row that failed: the page can hide successes.
    warned_alone = seen.likeness.p_value < bounds.min_drift_p_value and seen.likeness.mmd <= bounds.max_mmd
    for max_mmd, severity in severities:
        above = f" or a squared maximum mean discrepancy of at most {max_mmd:g}" if max_mmd else ""
        least = f"a p-value of at least {bounds.min_drift_p_value:g}{above}"
        arguments = {
            "reference_values": seen.cover.reference_along.tolist(),
            "mmd": seen.likeness.mmd,
            "p_value": seen.likeness.p_value,
            "max_mmd": max_mmd,
            "min_p_value": bounds.min_drift_p_value,
            "drawn": warned_alone == (severity == "warning"),
        }
        yield Expected(
            "ExpectRepresentationToFollowReference",
            "",
            severity,
            f"{seen.view.tensor} is distributed like that of {reference}: {least}",
            "representation",
            arguments,
        )


def expect_cover(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect a calibration sample near `min_embedding_coverage` of the reference samples."""
    seen, share = evidence.seen, evidence.bounds.min_embedding_coverage
    if seen is None:
        return
    text = f"at least {share:.0%} of {evidence.reference} have a calibration sample as near as these have each other"
    arguments = {"reference_distances": seen.cover.distances.tolist(), "min_share": share}
    yield Expected("ExpectColumnToCoverReference", "", "critical", text, "nearest other", arguments)


def expect_ranges(evidence: CalibrationEvidence) -> Iterator[Expected]:
    """Expect few values, and few samples, of the reference outside the range of the calibration samples."""
    seen, bounds = evidence.seen, evidence.bounds
    if seen is None:
        return
    clipping = seen.view.clipping
    parts: tuple[tuple[str, list[float], float, Severity], ...] = (
        ("values", [tensor.share for tensor in clipping], bounds.max_saturation, "critical"),
        ("samples", [tensor.sample_share for tensor in clipping], bounds.max_clipped_samples, "warning"),
    )
    for what, shares, most, severity in parts:
        text = (
            f"in no tensor more than {most:.1%} of the {what} of {evidence.reference} outside the range of the "
            "calibration samples"
        )
        places = [escape(tensor.place) for tensor in clipping]
        arguments = {"tensors": places, "shares": shares, "max_share": most, "what": what}
        yield Expected("ExpectRangesToHold", what, severity, text, arguments=arguments)


def describe_representation(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Texts:
    """Describe the discrepancy of the model's representation."""
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


def describe_cover(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Texts:
    """Describe the share of reference samples with a calibration sample near them."""
    seen = evidence.seen
    assert seen is not None
    regions = [f"sample {region.row} (stands for {region.samples})" for region in seen.cover.regions]
    return (
        f"{seen.cover.share:.1%} of {count(len(seen.view.reference), 'sample')} of {evidence.reference} have a calibration "
        "sample near them",
        f"at least {evidence.bounds.min_embedding_coverage:.0%}; near: within the 95th percentile of "
        "calibration nearest-neighbour distances",
        f"add at least {count(len(regions), 'sample')} like these of {evidence.reference}: " + first_few(regions),
    )


def describe_ranges(evidence: CalibrationEvidence, _: Sequence[ExpectationResult]) -> Texts:
    """Describe the tensors with most values outside the calibrated range."""
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
