"""Drift: the formulas against tables by hand, and how often clean draws raise an alarm."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from validators.job.job_data import CalibrationBounds
from validators.samples.drift import compare, count_in_bins, expect_psi_by_chance, find_edges, find_signs, measure_psi
from validators.samples.sample_statistics import measure_samples

BOUNDS = CalibrationBounds()


def test_psi_agrees_with_a_table_computed_by_hand() -> None:
    # shares 0.10 0.20 0.40 0.30 against 0.25 each:
    # -0.15 ln 0.4 = 0.137444, -0.05 ln 0.8 = 0.011157, 0.15 ln 1.6 = 0.070501, 0.05 ln 1.2 = 0.009116
    assert measure_psi((10, 20, 40, 30), (50, 50, 50, 50)) == pytest.approx(
        0.137444 + 0.011157 + 0.070501 + 0.009116, abs=2e-6
    )
    # An empty bin counts as half a sample: (0.005 - 0.5) ln 0.01 + (1 - 0.5) ln 2; one empty on both sides as nothing.
    assert measure_psi((0, 100, 0), (50, 50, 0)) == pytest.approx(0.495 * 4.605170 + 0.5 * 0.693147, abs=2e-6)
    assert measure_psi((7, 7), (20, 20)) == 0.0


def test_bins_hold_a_tenth_and_repeated_values_have_their_own() -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, 2001.0))
    assert count_in_bins(values, find_edges(values)) == (200,) * 10
    # Seven tenths zero, the rest spread out: below zero nothing, at zero 700, then the deciles that are left.
    clipped = np.concatenate([np.zeros(700), np.arange(1.0, 301.0)])
    assert count_in_bins(clipped, find_edges(clipped)) == (0, 700, 100, 100, 100)
    # A constant can be left on either side.
    assert count_in_bins(np.array([-1.0, 0.0, 0.0, 1e-3]), find_edges(np.zeros(50))) == (1, 2, 1)


def test_psi_by_chance_is_the_average_over_like_draws() -> None:
    rng = np.random.default_rng(0)
    draws = [(count_in_bins(rng.normal(size=128), edges), counts) for edges, counts in _references(rng, 400)]
    average = np.mean([measure_psi(*pair) for pair in draws])
    assert expect_psi_by_chance(*draws[0]) == pytest.approx(9 * (1 / 128 + 1 / 2000))
    assert average == pytest.approx(9 * (1 / 128 + 1 / 2000), rel=0.1)


def _references(rng: np.random.Generator, times: int) -> list[tuple[tuple[float, ...], tuple[int, ...]]]:
    references = []
    for _ in range(times):
        values = rng.normal(size=2000)
        edges = find_edges(values)
        references.append((edges, count_in_bins(values, edges)))
    return references


def test_p_values_are_corrected_for_the_number_of_statistics() -> None:
    rng = np.random.default_rng(0)
    reference = {name: rng.normal(size=500) for name in "abc"}
    values = {"a": rng.normal(0.3, size=100), "b": rng.normal(0.2, size=100), "c": rng.normal(size=100)}
    raw = {name: stats.ks_2samp(values[name], reference[name], method="asymp").pvalue for name in "abc"}
    first, second, third = sorted(raw.values())
    # Benjamini-Hochberg by hand: p * m / rank, made monotone from the largest down.
    by_hand = {third: third, second: min(third, second * 3 / 2), first: min(third, second * 3 / 2, first * 3)}
    assert {c.statistic: c.p_value for c in compare(values, reference)} == pytest.approx(
        {n: by_hand[raw[n]] for n in "abc"}
    )
    # Values that are missing are left out, and so is a statistic that has none.
    holes = values | {"a": np.concatenate([values["a"], [np.nan]]), "c": np.full(100, np.nan)}
    assert [c.statistic for c in compare(holes, reference)] == ["a", "b"]
    assert compare({}, {}) == ()


def test_each_sign_of_drift_has_its_bound() -> None:
    counts, reference = (40, 30, 30), (900, 600, 500)
    above_chance = measure_psi(counts, reference) - 2 * (1 / 100 + 1 / 2000)
    below = above_chance - 1e-9
    for max_psi, p_value, signs in (
        (above_chance, 0.001, ()),
        (below, 0.001, ("PSI",)),
        (above_chance, 0.0009, ("KS",)),
        (below, 0.0009, ("PSI", "KS")),
    ):
        assert find_signs(counts, reference, p_value, max_psi=max_psi, min_p_value=0.001) == signs


def draw_inputs(n: int) -> dict[str, NDArray[Any]]:
    """Clipped images whose brightness and contrast vary, token ids, and their mask: skewed, discrete, related numbers."""
    rng = np.random.default_rng(8)
    brightness, contrast = rng.normal(0.1, 0.3, (n, 1)), rng.gamma(9.0, 0.1, (n, 1))
    mask = (np.arange(24) < rng.integers(4, 24, (n, 1))).astype(np.int64)
    pixels = np.maximum(brightness + contrast * rng.normal(size=(n, 108)), 0).astype(np.float32)
    return {"pixels": pixels, "ids": mask * rng.integers(1, 30_000, (n, 24)), "mask": mask}


@pytest.mark.parametrize("n", [64, 128])
def test_clean_random_splits_raise_no_alarm(n: int) -> None:
    """At most 1 of 100 clean splits may show any sign of drift in any of 11 statistics. Of 4,000, 3 did."""
    pool = measure_samples(draw_inputs(12_000))
    alarms = 0
    for seed in range(100):
        order = np.random.default_rng(seed).permutation(12_000)
        values = {name: column[order[:n]] for name, column in pool.items()}
        reference = {name: column[order[n : n + 2000]] for name, column in pool.items()}
        alarms += any(signs_of_drift(values, reference).values())
    assert alarms <= 1


def signs_of_drift(values: dict[str, NDArray[Any]], reference: dict[str, NDArray[Any]]) -> dict[str, tuple[str, ...]]:
    bounds = {"max_psi": BOUNDS.max_psi, "min_p_value": BOUNDS.min_drift_p_value}
    return {
        c.statistic: find_signs(count_in_bins(values[c.statistic], c.edges), c.reference_counts, c.p_value, **bounds)
        for c in compare(values, reference)
    }


def test_a_statistic_that_was_constant_cannot_move_unseen() -> None:
    for value in (0.99, 1.01):
        assert signs_of_drift({"x": np.full(64, value)}, {"x": np.ones(2000)}) == {"x": ("PSI", "KS")}
    assert signs_of_drift({"x": np.ones(64)}, {"x": np.ones(2000)}) == {"x": ()}
