"""Likeness and cover of embeddings: against sums written out, and against sets whose truth is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from validators.calibration.representation import (
    COMPONENTS,
    MAX_PERMUTATIONS,
    covered_share,
    measure_cover,
    measure_distances,
    measure_likeness,
    project,
)

Matrix = NDArray[np.float64]


def draw(n: int, seed: int, shift: float = 0.0, dimensions: int = 12) -> Matrix:
    return np.random.default_rng(seed).normal(size=(n, dimensions)) + shift


def mmd_written_out(x: Matrix, y: Matrix) -> float:
    """Gretton et al. (2012), equation 3, term by term."""
    both = [*x, *y]
    distances = [float(((a - b) ** 2).sum()) for i, a in enumerate(both) for b in both[i + 1 :]]
    width = float(np.median(distances))

    def k(a: Matrix, b: Matrix) -> float:
        return math.exp(-float(((a - b) ** 2).sum()) / width)

    n, m = len(x), len(y)
    own = sum(k(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    others = sum(k(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    across = sum(k(a, b) for a in x for b in y) / (n * m)
    return own + others - 2 * across


@pytest.mark.parametrize(("n", "m", "shift"), [(9, 14, 0.0), (12, 8, 0.7)])
def test_the_discrepancy_is_the_sum_that_its_source_states(n: int, m: int, shift: float) -> None:
    x, y = draw(n, 1), draw(m, 2, shift)
    found = measure_likeness(x, y, min_p_value=0.05, seed=0)
    assert found.mmd == pytest.approx(mmd_written_out(x, y), abs=1e-12)


def test_p_values_are_uniform_for_one_distribution_else_small() -> None:
    same = [measure_likeness(draw(30, seed), draw(60, 500 + seed), min_p_value=0.02, seed=seed) for seed in range(120)]
    assert stats.kstest([found.p_value for found in same], "uniform").pvalue > 0.01
    assert abs(np.mean([found.mmd for found in same])) < 3 * stats.sem([found.mmd for found in same])  # unbiased
    other = [measure_likeness(draw(30, s), draw(60, 500 + s, 0.6), min_p_value=0.02, seed=s).p_value for s in range(20)]
    assert max(other) <= 0.02


def test_relabellings_suffice_for_the_bound_and_are_limited() -> None:
    """Enough of them that the p-value can fall below the bound."""
    x, y = draw(20, 1), draw(20, 2, 5.0)
    assert measure_likeness(x, y, min_p_value=0.001, seed=0).p_value == pytest.approx(1 / 2001)
    assert measure_likeness(x, y, min_p_value=1e-12, seed=0).p_value == pytest.approx(1 / (MAX_PERMUTATIONS + 1))


def test_embeddings_that_are_all_alike_are_like_each_other() -> None:
    found = measure_likeness(np.ones((10, 3)), np.ones((12, 3)), min_p_value=0.05, seed=0)
    assert found.mmd == pytest.approx(0, abs=1e-12) and found.p_value > 0.9


def test_distances_are_to_the_nearest_other_one() -> None:
    own, others = draw(15, 1), draw(20, 2)
    among, distances = measure_distances(own, others)
    each = np.linalg.norm(own[:, None] - own[None], axis=2) + np.diag(np.full(15, np.inf))
    np.testing.assert_allclose(among, each.min(axis=1))
    np.testing.assert_allclose(distances, np.linalg.norm(others[:, None] - own[None], axis=2).min(axis=1))


def test_the_radius_holds_95_of_100_calibration_samples() -> None:
    among = np.arange(1.0, 102.0)  # 1 to 101: the 95th percentile is 96
    assert covered_share(among, np.array([95.0, 96.0, 96.5, 200.0])) == 0.5


def test_like_draws_cover_each_other_and_lost_cluster_is_named() -> None:
    shares = [measure_cover(draw(128, s), draw(500, 900 + s), np.arange(500), 0.8).share for s in range(20)]
    assert np.mean(shares) == pytest.approx(0.95, abs=0.02)
    reference = draw(500, 40)
    reference[:200] += 12  # two fifths of the reference lie where no calibration sample is
    found = measure_cover(draw(128, 41), reference, np.arange(1000, 1500), 0.8)
    assert found.share == pytest.approx(0.6 * 0.95, abs=0.04)
    assert found.share == covered_share(found.among, found.distances)
    assert found.regions and {region.row for region in found.regions} <= set(range(1000, 1200))
    assert len({region.row for region in found.regions}) == len(found.regions)
    # One sample more for each region, in turn, brings the cover to what is asked for, and no fewer do.
    missing = 0.8 - found.share
    held = [region.samples / 500 for region in found.regions]
    assert sum(held) >= missing > sum(held[:-1])
    assert held == sorted(held, reverse=True)


def test_regions_are_not_named_where_enough_is_covered() -> None:
    assert measure_cover(draw(128, 1), draw(300, 2), np.arange(300), 0.8).regions == ()
    all_covered = measure_cover(draw(128, 1), draw(128, 1)[:40], np.arange(40), 0.8)
    assert all_covered.share == 1 and all_covered.regions == ()


def test_projection_keeps_the_widest_directions_of_the_basis() -> None:
    widths = np.array([9.0, 7, 5, 4, 3, 2.5, 2, 1.5, 0.01, 0.01, 0.01, 0.01])
    basis = draw(400, 3) * widths
    own, other = project(basis, basis[:5])
    assert own.shape == (400, COMPONENTS) and other.shape == (5, COMPONENTS)
    np.testing.assert_allclose(own[:5], other, atol=1e-8)
    assert own.var(axis=0).sum() == pytest.approx((basis - basis.mean(axis=0)).var(axis=0).sum(), rel=1e-3)
    assert project(draw(400, 3, dimensions=2))[0].shape == (400, 2)
