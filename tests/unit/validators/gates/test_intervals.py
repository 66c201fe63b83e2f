"""Intervals of a drop: against published values, second implementations, and how often they hold in draws of known truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.special import xlogy

from validators.gates.clusters import clustered_drop_interval
from validators.gates.intervals import (
    SCORE_INTERVAL,
    drop_interval,
    mean_interval,
    paired_interval,
    tango_interval,
)
from validators.records.measurements import Estimate

Floats = NDArray[np.float64]
ONE_SIDED_95 = 1.6448536269514722

# The interval of a drop


def test_the_published_interval() -> None:
    """Tango 1998, sleeping difficulties of 32 matched pairs, 9 against 3 discordant, 95 % two-sided: -0.027 to 0.390."""
    low, high = tango_interval(9, 3, 32, 0.975)
    assert (round(low, 3), round(high, 3)) == (-0.027, 0.390)


def likeliest_variance(lost: int, gained: int, n: int, delta: float) -> float:
    """The variance of the count of losses less gains under a difference `delta`, by numerical search of the likelihood.

    The search is over the probability q of a gain: log L = lost log(q + delta) + gained log q + rest log(1 - 2q - delta).
    """
    low, high = max(0.0, -delta), (1 - delta) / 2
    for _ in range(12):
        q = np.linspace(low, high, 201)
        likelihood = (
            xlogy(lost, np.maximum(q + delta, 0))
            + xlogy(gained, q)
            + xlogy(n - lost - gained, np.maximum(1 - 2 * q - delta, 0))
        )
        best = int(np.argmax(likelihood))
        low, high = q[max(best - 1, 0)], q[min(best + 1, 200)]
    loss, gain = q[best] + delta, q[best]
    return float(n * (loss + gain - delta**2))


def brute_force_interval(lost: int, gained: int, n: int, z: float) -> tuple[float, float]:
    """Where the score test at `z` changes its mind, by bisection on either side of the observed difference."""

    def rejects(delta: float) -> bool:
        return (lost - gained - n * delta) ** 2 > z**2 * likeliest_variance(lost, gained, n, delta)

    bounds = []
    for edge in (-1 + 1e-9, 1 - 1e-9):
        inside, outside = (lost - gained) / n, edge
        for _ in range(50):
            middle = (inside + outside) / 2
            inside, outside = (inside, middle) if rejects(middle) else (middle, outside)
        bounds.append(inside)
    return bounds[0], bounds[1]


@pytest.mark.parametrize(
    ("lost", "gained", "n"),
    [
        (9, 3, 32),
        (3, 9, 32),
        (1, 0, 20),
        (0, 1, 20),
        (0, 7, 50),
        (20, 5, 100),
        (60, 40, 100),
        (14, 14, 2000),
        (3, 1, 5),
    ],
)
def test_the_interval_is_that_of_a_brute_force_score_test(lost: int, gained: int, n: int) -> None:
    """A second implementation, which maximises the likelihood numerically and bisects, gives the same bounds."""
    expected = brute_force_interval(lost, gained, n, ONE_SIDED_95)
    assert tango_interval(lost, gained, n, 0.95) == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("n", [1, 10, 133, 134, 2000])
def test_without_discordant_pairs_the_bound_is_known(n: int) -> None:
    """z^2 / (n + z^2) on either side."""
    bound = ONE_SIDED_95**2 / (n + ONE_SIDED_95**2)
    assert tango_interval(0, 0, n, 0.95) == pytest.approx((-bound, bound), abs=1e-9)


@given(st.integers(1, 200), st.floats(0, 1), st.floats(0, 1), st.sampled_from([0.8, 0.95, 0.999]))
@settings(derandomize=True, database=None, max_examples=200)
def test_bounds_hold_the_difference_and_mirror_each_other(n: int, share: float, part: float, confidence: float) -> None:
    """Any table: low <= difference <= high; swapping losses and gains mirrors; more confidence is wider."""
    discordant = round(share * n)
    lost = round(part * discordant)
    gained = discordant - lost
    low, high = tango_interval(lost, gained, n, confidence)
    assert -1 <= low <= (lost - gained) / n <= high <= 1
    assert tango_interval(gained, lost, n, confidence) == pytest.approx((-high, -low), abs=1e-9)
    wide_low, wide_high = tango_interval(lost, gained, n, 0.9999)
    assert wide_low <= low + 1e-9 and wide_high >= high - 1e-9


@pytest.mark.parametrize(("loss", "gain", "n"), [(0.05, 0.03, 200), (0.02, 0.02, 400), (0.10, 0.02, 150)])
def test_the_bound_covers_as_often_as_it_says(loss: float, gain: float, n: int) -> None:
    """Of 4,000 draws with a known drop, at least 95 % (less three standard errors) have it below the upper bound."""
    draws = 4000
    rng = np.random.default_rng(17)
    tables = rng.multinomial(n, [loss, gain, 1 - loss - gain], draws)
    interval = lru_cache(maxsize=None)(tango_interval)
    below = [interval(int(b), int(c), n, 0.95)[1] >= loss - gain for b, c, _ in tables]
    above = [interval(int(b), int(c), n, 0.95)[0] <= loss - gain for b, c, _ in tables]
    error = math.sqrt(0.95 * 0.05 / draws)
    assert np.mean(below) >= 0.95 - 3 * error
    assert np.mean(above) >= 0.95 - 3 * error
    # And not by being useless: a bound that always covers would tell nothing.
    assert np.mean(below) < 0.99


def test_right_and_wrong_get_the_paired_interval() -> None:
    """Losses count where only the baseline is right, gains where only the variant is."""
    drops = np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 20)
    estimate, method = drop_interval(drops, 0.975)
    assert method == SCORE_INTERVAL
    assert (estimate.low, estimate.high) == pytest.approx((-0.0271, 0.3897), abs=1e-4)
    assert estimate.value == pytest.approx(6 / 32)


# The mean of any other drops


def hall_transformation(t: float, skewness: float, n: int) -> float:
    """Hall (1992), section 2: the cubic in Student's statistic that takes its skewness out."""
    return t + skewness * (2 * t**2 + 1) / (6 * math.sqrt(n)) + skewness**2 * t**3 / (27 * n)


def reference_interval(values: Floats, confidence: float) -> tuple[float, float]:
    """The wider of Student's and Hall's bounds: the transformation solved for its root, the skewness as scipy has it."""
    n, error = len(values), stats.sem(values)
    skewness = float(stats.skew(values, bias=False))
    # The degrees of freedom with which a scaled chi-square has the variance of a sample's variance, (kurtosis - 1) / n.
    freedom = 2 * n / (float(stats.kurtosis(values, fisher=False)) - 1)
    t = float(stats.t.ppf(confidence, np.clip(freedom, 3, n - 1)))
    ends = []
    for quantile in (t, -t):
        root = optimize.brentq(lambda x, q=quantile: hall_transformation(x, skewness, n) - q, -1e4, 1e4)
        ends.append(values.mean() - root * error)
    return min(ends[0], values.mean() - t * error), max(ends[1], values.mean() + t * error)


@pytest.mark.parametrize("n", [8, 30, 500])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_the_interval_of_a_mean_is_that_of_a_root_search(n: int, confidence: float) -> None:
    """Skewed either way, and hardly."""
    rng = np.random.default_rng(n)
    for values in (rng.lognormal(size=n), -rng.exponential(size=n), rng.normal(size=n), np.arange(n) - n / 2):
        expected = reference_interval(values, confidence)
        assert mean_interval(values, confidence) == pytest.approx(expected, rel=1e-6, abs=1e-6)


LISTS = st.lists(st.integers(-1000, 1000), min_size=8, max_size=60).filter(lambda drops: len(set(drops)) > 1)


@given(LISTS, st.sampled_from([0.8, 0.95, 0.999]), st.sampled_from([1e-200, 1e-3, 0.37, 1e150]))
@settings(derandomize=True, database=None, max_examples=150)
def test_what_holds_for_any_drops(numbers: list[int], confidence: float, scale: float) -> None:
    """The interval holds the mean, mirrors with the drops, moves and grows with them; four times the same drops narrow it."""
    drops, span = np.array(numbers) * scale * 1.5, 3000 * scale
    estimate, method = drop_interval(drops, confidence, span)
    low, value, high = interval_of(estimate)
    assert low <= value <= high and method.startswith("wider of Student")
    mirrored = interval_of(drop_interval(-drops, confidence, span)[0])
    assert mirrored == pytest.approx((-high, -value, -low), rel=1e-9, abs=1e-9 * scale)
    more = interval_of(drop_interval(np.tile(drops, 4), confidence, span)[0])
    assert more[2] - more[0] < high - low


def interval_of(estimate: Estimate) -> tuple[float, float, float]:
    """An estimate whose bounds are there."""
    assert estimate.low is not None and estimate.high is not None
    return estimate.low, estimate.value, estimate.high


def squared_error_drops(rng: np.random.Generator, n: int) -> Floats:
    """What squared errors lose by noise on the outputs: heavy tails, and a mean of 0.02, which is the noise's mean square."""
    error = rng.standard_t(5, n)
    noise = rng.normal(size=n) * 0.02**0.5
    return np.asarray((error + noise) ** 2 - error**2)


def few_long(rng: np.random.Generator, n: int) -> Floats:
    """Nineteen in twenty drops are nothing; the others are exponential."""
    return (rng.random(n) < 0.05) * rng.exponential(size=n)


DRAWS: dict[str, tuple[Callable[[np.random.Generator, int], Floats], float, int]] = {
    "normal": (lambda rng, n: rng.normal(size=n), 0.0, 20),
    "exponential": (lambda rng, n: rng.exponential(size=n), 1.0, 50),
    "log-normal": (lambda rng, n: rng.lognormal(sigma=1.0, size=n), math.exp(0.5), 500),
    "squared errors": (squared_error_drops, 0.02, 500),
    "few and long": (few_long, 0.05, 300),
}


@pytest.mark.parametrize("name", DRAWS)
def test_either_bound_of_a_mean_holds_as_often_as_it_says(name: str) -> None:
    """Of 2,000 draws at most 5 % (and 2 of tolerance) have the truth beyond a bound, and not none: that would be no bound."""
    draw, truth, n = DRAWS[name]
    rng = np.random.default_rng(4)
    found = [drop_interval(draw(rng, n), 0.95)[0] for _ in range(2000)]
    above = np.mean([each.high is not None and each.high < truth for each in found])
    below = np.mean([each.low is not None and each.low > truth for each in found])
    assert max(above, below) <= 0.07 and max(above, below) > 0.01


def test_few_that_differ_may_lack_those_that_count() -> None:
    """One drop of 5 among 1,000: at most 4.74 of them by Clopper and Pearson, none below: -2.99 of 5, on either side."""
    drops = np.zeros(1000)
    drops[3] = 5.0
    estimate, method = drop_interval(drops, 0.95, 5.0)
    low, value, high = interval_of(estimate)
    assert value == pytest.approx(0.005) and "exact counts" in method
    # Hall's bound alone sees a single draw, and the skew of it; the exact one is what it must not be within.
    assert high >= 0.005 + (4.7376 - 1) * 5 / 1000
    assert low == pytest.approx(0.005 - 2.9912 * 5 / 1000, abs=1e-5)


def test_equal_drops_have_no_spread() -> None:
    """A constant shift is known from 59 samples on: a twentieth of others would have shown in 95 % of draws."""
    assert drop_interval(np.full(59, 0.25), 0.95) == (Estimate(0.25, 0.25, 0.25), "all drops equal")
    estimate, method = drop_interval(np.full(58, 0.25), 0.95)
    assert estimate == Estimate(0.25) and method.startswith("none")


def test_drops_without_a_limit_need_eight_that_differ() -> None:
    """Seven show no largest drop; of eight the largest stands for those not drawn. With a limit, one is enough."""
    drops = np.zeros(500)
    drops[:7] = 0.5
    estimate, method = drop_interval(drops, 0.95)
    assert estimate == Estimate(drops.mean()) and method.startswith("none: fewer than 8 samples differ")
    drops[7] = 2.0
    assert interval_of(drop_interval(drops, 0.95)[0])[2] >= drops.mean() + (14.4346 - 8) * 2 / 500
    assert drop_interval(drops[6:], 0.95, 3.0)[0].high is not None


def test_equal_shares_may_differ_by_their_whole_range() -> None:
    """With a limit, equal drops are judged as right answers are: 95 % of draws of 40 show a share of 1 - 0.05^(1/40)."""
    low, value, high = interval_of(drop_interval(np.full(40, 0.25), 0.95, 1.0)[0])
    unseen = 1 - 0.05 ** (1 / 40)
    assert (low, value, high) == pytest.approx((0.25 - unseen, 0.25, 0.25 + unseen))
    clusters = np.repeat(np.arange(40), 3)
    found = interval_of(clustered_drop_interval(np.full(120, 0.25), clusters, 0.95, 1.0)[0])
    assert found == pytest.approx((low, value, high))


@pytest.mark.parametrize("n", [0, 1, 2, 7])
def test_a_handful_of_drops_has_no_interval(n: int) -> None:
    """No bounds, no warning; without any drop no value either."""
    estimate, method = drop_interval(np.arange(n) * 0.3 + 0.1, 0.95)
    assert method.startswith("none") and (n == 0) == math.isnan(estimate.value)
    assert n == 0 or (estimate.low, estimate.high) == (None, None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e308])
def test_drops_whose_mean_is_not_finite_have_none(bad: float) -> None:
    """NaN, Inf, and a sum that overflows."""
    drops = np.full(50, 1e308)
    drops[:7] = bad
    estimate, method = drop_interval(drops, 0.95)
    assert all(math.isnan(value) for value in interval_of(estimate)) and "NaN or Inf" in method


# Metrics that are no means


def error_rate(baseline: Floats, variant: Floats) -> float:
    """Errors by words of both, rows of (errors, words)."""
    return float(variant[:, 0].sum() / variant[:, 1].sum() - baseline[:, 0].sum() / baseline[:, 1].sum())


def f1_drop(baseline: Floats, variant: Floats) -> float:
    """F1 of rows (true positives, false positives, false negatives)."""
    before, after = (2 * rows[:, 0].sum() / (rows.sum() + rows[:, 0].sum()) for rows in (baseline, variant))
    return float(before - after)


def mean_drop(baseline: Floats, variant: Floats) -> float:
    return float((baseline - variant).mean())


def texts(rng: np.random.Generator, n: int, worse: float) -> tuple[Floats, Floats]:
    """Rows of (errors, words) of texts, of which a fifth get `worse` more errors a word."""
    words = rng.integers(3, 30, n).astype(np.float64)
    errors = rng.poisson(0.1 * words).astype(np.float64)
    more = (rng.random(n) < 0.2) * rng.poisson(worse * words)
    return np.stack([errors, words], axis=1), np.stack([errors + more, words], axis=1)


def test_of_a_mean_the_jackknife_is_the_mean() -> None:
    """Its pseudo-values are the drops themselves (Miller 1974), so that both intervals are one."""
    baseline, variant = np.random.default_rng(2).exponential(size=(2, 200, 1))
    found = interval_of(paired_interval(baseline, variant, mean_drop, 0.95, seed=1)[0])
    low, high = mean_interval((baseline - variant)[:, 0], 0.95)
    assert found == pytest.approx((low, float((baseline - variant).mean()), high), rel=1e-9)


def test_the_bound_of_a_ratio_holds_as_often_as_it_says() -> None:
    """The truth is the fifth of 0.1 errors a word, 0.02; 600 draws of 150 texts leave it beyond a bound in 5 % (and 3 more)."""
    rng = np.random.default_rng(6)
    found = [interval_of(paired_interval(*texts(rng, 150, 0.1), error_rate, 0.95, seed=1)[0]) for _ in range(600)]
    above = np.mean([high < 0.02 for _, _, high in found])
    below = np.mean([low > 0.02 for low, _, _ in found])
    assert max(above, below) <= 0.08 and max(above, below) > 0.01


def test_groups_give_the_width_of_single_samples() -> None:
    """Of 251 samples two are left out at a time, of 250 one; sides and seeds matter little, swapped sides mirror."""
    rng = np.random.default_rng(8)
    baseline, variant = texts(rng, 251, 0.2)
    low, value, high = interval_of(paired_interval(baseline, variant, error_rate, 0.95, seed=1)[0])
    other = interval_of(paired_interval(baseline[:250], variant[:250], error_rate, 0.95, seed=1)[0])
    assert high - low == pytest.approx(other[2] - other[0], rel=0.15)
    mirrored = interval_of(paired_interval(variant, baseline, error_rate, 0.95, seed=1)[0])
    assert mirrored == pytest.approx((-high, -value, -low))


def test_a_variant_that_never_differs_is_not_beyond_doubt() -> None:
    """Up to three of 20 samples may change unseen, each as much as a swap of two rows: more than any tolerance of a point."""
    rows = np.zeros((20, 3))
    rows[:3, 0] = rows[3, 2] = 1  # three hits and a miss
    low, value, high = interval_of(paired_interval(rows, rows, f1_drop, 0.95, seed=1)[0])
    assert value == 0 and low == -high
    # The largest swap makes a hit of the miss' row: F1 falls from 6/7 to 4/6; 2.78 of 20 are the bound of none seen.
    assert high == pytest.approx(20 * (1 - 0.05 ** (1 / 20)) * (6 / 7 - 4 / 6))
    many = np.tile(rows, (200, 1))
    assert interval_of(paired_interval(many, many, f1_drop, 0.95, seed=1)[0])[2] < 0.01


def test_a_metric_that_is_undefined_never_passes() -> None:
    """On all samples: NaN. Without the only positive: no bounds. Of a handful: none either. No warning of any."""
    one = np.zeros((30, 3))
    none_positive, method = paired_interval(one, one, f1_drop, 0.95, seed=1)
    assert math.isnan(none_positive.value) and "NaN" in method
    one[4, 0] = 1
    single, method = paired_interval(one, one, f1_drop, 0.95, seed=1)
    assert single == Estimate(0.0) and "undefined" in method
    few = np.ones((7, 3))
    assert paired_interval(few, few, f1_drop, 0.95, seed=1)[0] == Estimate(0.0)
