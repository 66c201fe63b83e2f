"""Drift of recent traffic from the champion's calibration data: the checks of step 3, without those of the data file."""

from __future__ import annotations

from dataclasses import dataclass

from validators.calibration.disjoint import compare_disjoint
from validators.calibration.evidence import see
from validators.calibration.model_view import ModelView
from validators.digests import digest_samples
from validators.job.job_data import CalibrationBounds
from validators.samples.datasets import Samples
from validators.samples.drift import count_in_bins, expect_psi_by_chance, find_signs, measure_psi


@dataclass(frozen=True)
class Drift:
    """The signs of drift in words, empty without drift, and the figures behind them by name."""

    signs: tuple[str, ...]
    figures: dict[str, float]


def find_drift(
    calibration: Samples, traffic: Samples, view: ModelView | None, bounds: CalibrationBounds, *, seed: int
) -> Drift:
    """Compare recent traffic with the calibration samples; a sign is a finding that refuses calibration data in step 3.

    The signs are: a statistic with both its population stability index and its Kolmogorov-Smirnov p-value beyond their bounds;
    discrepancy and p-value in the model's representation both beyond theirs; too few requests near a calibration sample there.
    `view` is the model's view of both, or None if the model did not run.

    Raises:
        DataError: an input of the traffic has a finite value in no sample.
    """
    # The champion's calibration samples exclude its evaluation data, which resembles the traffic.
    compared = compare_disjoint(calibration, traffic, digest_samples(traffic.inputs), bounds, seed, is_evaluation=True)
    signs: list[str] = []
    figures: dict[str, float] = {}
    for one in compared.comparisons:
        counts = count_in_bins(compared.statistics[one.statistic], one.edges)
        above_chance = measure_psi(counts, one.reference_counts) - expect_psi_by_chance(counts, one.reference_counts)
        figures["psi_max"] = max(figures.get("psi_max", 0.0), above_chance)
        figures["drift_p_value"] = min(figures.get("drift_p_value", 1.0), one.p_value)
        found = find_signs(
            counts, one.reference_counts, one.p_value, max_psi=bounds.max_psi, min_p_value=bounds.min_drift_p_value
        )
        if len(found) > 1:
            signs.append(f"{one.statistic}: PSI {above_chance:.2f} above chance, p-value {one.p_value:.2g}")
    seen = see(view, bounds, seed) if view else None
    if seen is None:
        return Drift(tuple(signs), figures)
    likeness, share = seen.likeness, seen.cover.share
    figures |= {"mmd": likeness.mmd, "mmd_p_value": likeness.p_value, "embedding_coverage": share}
    if likeness.p_value < bounds.min_drift_p_value and likeness.mmd > bounds.max_mmd:
        signs.append(f"{seen.view.tensor}: squared discrepancy {likeness.mmd:.3g}, p-value {likeness.p_value:.2g}")
    if share < bounds.min_embedding_coverage:
        signs.append(f"{seen.view.tensor}: {share:.1%} of the requests have a calibration sample near them")
    return Drift(tuple(signs), figures)
