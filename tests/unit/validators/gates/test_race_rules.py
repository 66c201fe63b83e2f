"""Decisions of a race: bounds computed by hand, the order of measurements, and how often the best is stopped."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tasks.measure.latency.ratio import ratio_estimate
from validators.gates.race_rules import (
    CONFIDENCE,
    LEAST_DEVIATION,
    WORTH,
    Speeds,
    least_mean,
    looks_at,
    median_variance,
    run_finals,
)
from validators.records.measurements import Estimate


def add(speeds: Speeds, name: str, *logs: float) -> None:
    speeds.add(name, ratio_estimate([[math.exp(log)] for log in logs], 0.95), len(logs), 0.95)


def probe(speeds: Speeds, name: str, *logs: float) -> None:
    for log in logs:
        speeds.add_launch(name, Estimate(math.exp(log), math.exp(log), math.exp(log)))


# Half of the squares of normal values are below this.
MEDIAN = float(stats.chi2.median(1))


def test_the_variance_is_the_median_of_those_of_the_candidates() -> None:
    """Of deviations of 0.02, 0.04 and 0.5, each of two launches; with half of their three degrees of freedom."""
    speeds = Speeds()
    for name, deviation in (("a", 0.02), ("b", 0.5), ("c", 0.04)):
        half = deviation / math.sqrt(2)
        add(speeds, name, 1.0 - half, 1.0 + half)
    margin = float(stats.t.ppf(CONFIDENCE, 1.5)) * 0.04 / math.sqrt(MEDIAN) / math.sqrt(2)
    assert speeds.is_below("a", math.exp(1.0 + margin + 1e-6))
    assert not speeds.is_below("a", math.exp(1.0 + margin - 1e-6))


def test_a_few_slow_launches_hardly_changes_the_variance() -> None:
    """Of 3,000 racers with a deviation of 0.02, one in five has a launch that is slower by a quarter."""
    rng = np.random.default_rng(5)
    logs = rng.normal(0.0, 0.02, (3000, 2))
    clean, _ = median_variance([(float(one.var(ddof=1)), 1) for one in logs])
    assert clean == pytest.approx(0.0004, rel=0.1)
    logs[::5, 0] -= math.log(1.25)
    slowed, freedom = median_variance([(float(one.var(ddof=1)), 1) for one in logs])
    assert clean < slowed < 2 * clean and freedom == 1500
    assert logs.var(axis=1, ddof=1).mean() > 10 * clean, "the mean of the variances"


@pytest.mark.parametrize(("lead", "behind"), [(-0.01, False), (0.0, True), (0.06, True)])
def test_a_candidate_that_cannot_be_worth_more_is_behind(lead: float, behind: bool) -> None:
    """The margin is t(0.99, 11) * 0.01 * sqrt(1/2 + 1/2) = 0.0272; a candidate within log 1.03 = 0.0296 is not worth more."""
    speeds = Speeds()
    for index in range(20):
        add(speeds, f"other {index}", 0.0, 0.0)
    add(speeds, "slow", 0.0, 0.0)
    add(speeds, "leader", lead, lead)
    assert float(stats.t.ppf(CONFIDENCE, 11)) * LEAST_DEVIATION == pytest.approx(0.0272, abs=1e-4)
    assert speeds.is_behind("slow", "leader") == behind


def test_the_better_of_two_short_launches_decides() -> None:
    """The smaller of two variances, 0.0008, is their median, with one degree of freedom."""
    speeds = Speeds()
    probe(speeds, "a", 0.98, 1.02)
    probe(speeds, "b", 2.96, 3.04)
    assert speeds.value("a") == pytest.approx(math.e)
    margin = float(stats.t.ppf(CONFIDENCE, 1)) * math.sqrt(0.0008 / MEDIAN)
    best = 1.02 + margin / math.sqrt(2)
    assert speeds.is_below("a", math.exp(best + 1e-6)) and not speeds.is_below("a", math.exp(best - 1e-6))
    # Of the mean of two launches and that of one.
    lead = 1.02 + margin * math.sqrt(1.5) - math.log(WORTH)
    for name, more, behind in (("not ahead", -1e-6, False), ("ahead", 1e-6, True)):
        speeds.add(name, Estimate(math.exp(lead + more), 0.1, 9.0), 1, 0.95)
        assert speeds.is_behind("a", name) == behind


def test_ratio_in_turn_is_as_sure_as_median_of_three_launches() -> None:
    speeds = Speeds()
    for index in range(20):
        add(speeds, f"other {index}", 0.0, 0.0)
    margin = float(stats.t.ppf(CONFIDENCE, 10)) * LEAST_DEVIATION * math.sqrt(0.449)
    assert speeds.is_faster(math.exp(margin + 1e-6)) and not speeds.is_faster(math.exp(margin - 1e-6))
    edge = math.log(WORTH) - margin
    assert speeds.is_not_worth(math.exp(edge - 1e-6)) and not speeds.is_not_worth(math.exp(edge + 1e-6))
    medians = np.median(np.random.default_rng(6).normal(size=(20_000, 3)), axis=1)
    assert medians.var() == pytest.approx(0.449, abs=0.015)


def test_short_launches_are_compared_with_short_ones() -> None:
    speeds = Speeds()
    probe(speeds, "a", 1.0, 1.2)
    add(speeds, "a", 0.9, 0.9)
    add(speeds, "b", 0.7, 0.7)
    assert speeds.value("a") == pytest.approx(math.exp(0.9)) and speeds.short_value("a") == pytest.approx(math.exp(1.1))
    assert speeds.short_value("b") == pytest.approx(math.exp(0.7)), "which has no short ones"
    assert speeds.short_value("c") is None


def test_a_launch_that_was_slow_stops_nobody() -> None:
    speeds = Speeds()
    for index in range(8):
        probe(speeds, f"other {index}", 1.0, 1.01)
    add(speeds, "leader", *[1.05] * 6)
    probe(speeds, "slow once", 0.8, 1.1)
    probe(speeds, "slow", 0.8, 0.81)
    assert speeds.value("slow once") == pytest.approx(math.exp(0.95))
    assert not speeds.is_behind("slow once", "leader") and speeds.is_behind("slow", "leader")


def test_a_disturbed_launch_counts_for_order_alone() -> None:
    speeds = Speeds()
    for index in range(4):
        probe(speeds, f"other {index}", 0.0, 0.01)
    speeds.add_launch("a", Estimate(1.5, None, None))
    assert speeds.value("a") == pytest.approx(1.5) and not speeds.is_below("a", 100.0)
    probe(speeds, "a", 0.0)
    speeds.add_launch("a", Estimate(1.5, None, None))
    assert speeds.value("a") == pytest.approx(1.0), "the launch that was not disturbed"
    assert speeds.is_below("a", 100.0)
    probe(speeds, "a", 0.1)
    assert speeds.value("a") == pytest.approx(math.exp(0.05))


def test_nothing_is_decided_without_variance_or_when_disturbed() -> None:
    speeds = Speeds()
    speeds.add("a", Estimate(1.0, 1.0, 1.0), 1, 0.95)
    speeds.add("b", Estimate(9.0, 9.0, 9.0), 1, 0.95)
    assert not speeds.is_below("a", 100.0) and not speeds.is_behind("a", "b")
    add(speeds, "c", 0.0, 0.01, 0.02)
    assert speeds.is_behind("a", "b")
    speeds.add("a", Estimate(1.0, None, None), 2, 0.95)
    assert not speeds.is_behind("a", "b") and not speeds.is_below("a", 100.0)
    assert not speeds.is_behind("unknown", "b") and speeds.value("unknown") is None


def test_the_best_are_measured_first_and_the_rest_stopped() -> None:
    """Of six candidates the two fastest fail in accuracy; the third leads, the fourth is near it, the last two are not."""
    truth = {"a": 3.0, "b": 2.9, "c": 2.0, "d": 1.99, "e": 1.2, "f": 1.1}
    done: list[str] = []
    leader: list[str] = []

    def evaluate(name: str) -> bool:
        done.append(f"evaluate {name}")
        return name not in ("a", "b")

    def time(name: str) -> None:
        done.append(f"time {name}")
        leader[:] = leader or [name]

    def stops(name: str) -> bool:
        return bool(leader) and truth[name] < 0.9 * truth[leader[0]]

    run_finals(reversed(truth), rank=lambda name: -truth[name], stops=stops, evaluate=evaluate, time=time)
    assert done == ["evaluate a", "evaluate b", "evaluate c", "time c", "evaluate d", "time d"]


def test_the_best_of_simulated_candidates_is_rarely_stopped() -> None:
    """Roughly the rate that `benchmarks/race_errors.py` measures, among candidates that differ by 5 % as launches do."""
    rng = np.random.default_rng(3)
    wrong = 0
    for _ in range(300):
        logs = rng.normal(math.log(2), 0.05, 6)
        speeds = Speeds()
        for index, log in enumerate(logs):
            probe(speeds, str(index), *rng.normal(log, 0.05, 2))
        leader = int(rng.integers(6))
        add(speeds, str(leader), *rng.normal(logs[leader], 0.05, 6))
        best = int(np.argmax(logs))
        is_worth = logs[best] > logs[leader] + math.log(WORTH)
        wrong += is_worth and speeds.is_behind(str(best), str(leader))
    assert wrong <= 9


def test_the_bound_of_a_part_holds_for_the_whole() -> None:
    """Of 63 batches, skewed and few of them bad, drawn again and again: all looks together err in at most 1 %."""
    rng = np.random.default_rng(11)
    batches = rng.binomial(32, 0.02, 63) / 32
    wrong = 0
    for _ in range(1000):
        drawn = rng.permutation(batches)
        looks = looks_at(63)
        wrong += any(least_mean(drawn[:count], 63, len(looks)) > batches.mean() for count in looks)
    assert wrong <= 18, "95 % of experiments with a rate of 1 % have at most 15"


def test_the_bound_finds_a_large_mean_at_the_first_look() -> None:
    rng = np.random.default_rng(12)
    found = [least_mean(rng.normal(0.3, 0.08, 8), 63, 3) for _ in range(100)]
    assert min(found) > 0.02 and max(found) < 0.3
    assert least_mean(np.full(8, 0.03), 63, 3) < 0.02, "equal values by chance prove little"
    assert least_mean(np.full(63, 0.03), 63, 3) == pytest.approx(0.03), "all are known"
