"""How usual tokens are: against a table worked out by hand, and against what must hold for draws of one distribution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from validators.samples.token_frequencies import PRIOR_COUNT, measure_tokens


def folds(*values: int) -> np.ndarray:
    return np.array(values)


def test_a_table_worked_out_by_hand() -> None:
    # By rows 1 and 2, of the other fold: 7 twice, 8 once, 9 once; by row 0: 7 twice, 8 once. 5 is of the calibration samples
    # alone: 4 tokens.
    calibration = np.array([[7, 5, 0], [8, 0, 0], [8, 0, 0]])
    reference = np.array([[7, 7, 8], [7, 8, 0], [7, 9, 0]])
    ours, theirs = measure_tokens(calibration, reference, folds(0, 0, 1), folds(0, 1, 1))

    def p(count: float, of: float) -> float:
        return (count + PRIOR_COUNT) / (of + 4 * PRIOR_COUNT)

    def surprisal(*shares: float) -> float:
        return -sum(math.log(share) for share in shares) / len(shares)

    expected = [surprisal(p(2, 4), p(0, 4)), surprisal(p(1, 4)), surprisal(p(1, 3))]
    np.testing.assert_allclose(ours["surprisal"], expected, atol=1e-6)
    np.testing.assert_allclose(ours["share of unseen tokens"], [0.5, 0, 0])
    expected = [surprisal(p(2, 4), p(2, 4), p(1, 4)), surprisal(p(2, 3), p(1, 3)), surprisal(p(2, 3), p(0, 3))]
    np.testing.assert_allclose(theirs["surprisal"], expected, atol=1e-6)
    np.testing.assert_allclose(theirs["share of unseen tokens"], [0, 0, 0.5])


def test_shapes_beyond_two_axes_and_samples_without_tokens() -> None:
    calibration = np.array([[[7, 0], [8, 0]], [[0, 0], [0, 0]]])
    ours, theirs = measure_tokens(calibration, np.array([[7, 8, 8]]), folds(1, 1), folds(0))
    assert np.isfinite(ours["surprisal"][0]) and np.isnan(ours["surprisal"][1])
    assert np.isnan(ours["share of unseen tokens"][1])
    assert theirs["share of unseen tokens"].tolist() == [1]  # of no others


def test_without_padding_every_number_is_a_token() -> None:
    ours, _ = measure_tokens(np.array([[3, 4]]), np.array([[3, 3], [3, 4], [4, 4]]), folds(0), folds(1, 1, 1))
    assert ours["surprisal"][0] == pytest.approx(-math.log(0.5), abs=1e-6)


def test_like_draws_are_equally_usual_and_unlike_ones_are_not() -> None:
    def draw(n: int, seed: int, shift: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).zipf(1.5, (n, 20)).clip(max=20_000) + shift

    def p_value(shift: int, seed: int) -> float:
        sides = draw(60, seed, shift), draw(300, 700 + seed)
        ours, theirs = measure_tokens(*sides, np.arange(60) % 2, np.arange(300) % 2)
        return float(stats.ks_2samp(ours["surprisal"], theirs["surprisal"]).pvalue)

    # The reference's own tokens left out: were they counted in, all p-values would be small.
    assert stats.kstest([p_value(0, seed) for seed in range(80)], "uniform").pvalue > 0.01
    assert max(p_value(1, seed) for seed in range(10)) < 1e-3
