"""Gates: the interval against published values and brute force, every gate with a fault it must catch and a twin."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import xlogy

from validators.accuracy_gates import check_gates_can_be_met, judge_drop
from validators.champion_gate import judge_against_champion
from validators.coverage_gate import judge_coverage, judge_simulation
from validators.errors import JobError
from validators.gates import overall
from validators.intervals import drop_interval, tango_interval
from validators.job_gates import Gates
from validators.measurements import Coverage, Estimate, Latency
from validators.records import SessionSettings, Variant
from validators.resource_gates import judge_size, judge_speedup
from validators.sanity_gates import judge_finite
from validators.verdicts import Outcome, Verdict

Floats = NDArray[np.float64]
CANDIDATE = "int8-static-minmax-pc@ort-cpu"
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
@settings(deadline=None, derandomize=True, database=None, max_examples=200)
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


def bca(drops: Floats, confidence: float, seed: int) -> tuple[float, float]:
    """The BCa bootstrap of the mean, from Efron and Tibshirani (1993), section 14.3."""
    n, mean = len(drops), drops.mean()
    rng = np.random.default_rng(seed)
    means = np.sort(drops[rng.integers(0, n, (20_000, n))].mean(axis=1))
    z0 = stats.norm.ppf((means < mean).mean())
    jackknife = (drops.sum() - drops) / (n - 1)
    away = jackknife.mean() - jackknife
    acceleration = (away**3).sum() / (6 * (away**2).sum() ** 1.5)

    def end(z: float) -> float:
        return float(np.quantile(means, stats.norm.cdf(z0 + (z0 + z) / (1 - acceleration * (z0 + z)))))

    z = stats.norm.ppf(confidence)
    return end(-z), end(z)


def test_other_scores_get_the_bca_bootstrap() -> None:
    """Skewed drops: bounds as an own implementation gives, and farther on the long side."""
    drops = np.random.default_rng(5).lognormal(size=120) - 1.2
    estimate, method = drop_interval(drops, 0.95, seed=1)
    assert method == "BCa bootstrap"
    assert estimate.low is not None and estimate.high is not None
    assert estimate.value == pytest.approx(drops.mean())
    # Two bootstraps differ by their draws: by about 1 % of the width each.
    width = estimate.high - estimate.low
    assert (estimate.low, estimate.high) == pytest.approx(bca(drops, 0.95, 2), abs=0.05 * width)
    assert estimate.high - estimate.value > estimate.value - estimate.low
    assert drop_interval(drops, 0.95, seed=1)[0] == estimate


def test_right_and_wrong_get_the_paired_interval() -> None:
    """Losses count where only the baseline is right, gains where only the variant is."""
    drops = np.array([1.0] * 9 + [-1.0] * 3 + [0.0] * 20)
    estimate, method = drop_interval(drops, 0.975, seed=1)
    assert method == "paired score interval (Tango)"
    assert (estimate.low, estimate.high) == pytest.approx((-0.0271, 0.3897), abs=1e-4)
    assert estimate.value == pytest.approx(6 / 32)


def test_equal_drops_have_no_spread() -> None:
    """A constant shift is known without resampling."""
    assert drop_interval(np.full(40, 0.25), 0.95, seed=1) == (Estimate(0.25, 0.25, 0.25), "all drops equal")


# The gates


def latency(speedup: Estimate) -> Latency:
    """A latency of which only the speedup matters here."""
    return Latency(
        batch_size=1,
        p50_ms=1.0,
        p95_ms=None,
        p99_ms=None,
        count=40,
        baseline_p50_ms=speedup.value,
        baseline_p95_ms=None,
        baseline_p99_ms=None,
        speedup=speedup,
        pairs=8,
        load_ms=1.0,
        peak_memory_mb=1.0,
        baseline_load_ms=1.0,
        baseline_peak_memory_mb=1.0,
        samples_path=Path("samples.npz"),
    )


def variant(size_bytes: int = 100, *, simulated: bool = False) -> Variant:
    """A variant of which only the size and whether it is simulated matter here."""
    settings = SessionSettings("CPUExecutionProvider", 1)
    return Variant(CANDIDATE, Path("model.onnx"), "0" * 64, size_bytes, settings, is_simulated=simulated)


def coverage(low: int, high: int) -> Coverage:
    """`low` MACs in low precision and `high` in float."""
    return Coverage({"QGemm": low, "Gemm": high}, ("QGemm",), ("head",) if high else (), ("CPUExecutionProvider",))


GATES = Gates(max_drop=0.02, min_speedup=1.2, min_coverage=0.5, max_size_ratio=1.0)

CAUGHT: dict[str, tuple[Callable[[], Verdict | None], Callable[[], Verdict | None]]] = {
    "drop": (
        lambda: judge_drop(Estimate(0.05, 0.03, 0.07), GATES, n=500, method="m"),
        lambda: judge_drop(Estimate(0.005, -0.01, 0.019), GATES, n=500, method="m"),
    ),
    "speedup": (
        lambda: judge_speedup(latency(Estimate(0.26, 0.25, 0.27)), GATES, "ort-cpu"),
        lambda: judge_speedup(latency(Estimate(1.4, 1.3, 1.5)), GATES, "ort-cpu"),
    ),
    "coverage": (
        lambda: judge_coverage(CANDIDATE, coverage(10, 90), GATES),
        lambda: judge_coverage(CANDIDATE, coverage(90, 10), GATES),
    ),
    "size_ratio": (lambda: judge_size(variant(130), 100, GATES), lambda: judge_size(variant(26), 100, GATES)),
    "finite": (lambda: judge_finite(1, 2000), lambda: judge_finite(0, 2000)),
    "beats_champion": (
        lambda: against_champion(speedup=Estimate(0.9, 0.88, 0.92)),
        lambda: against_champion(speedup=Estimate(1.1, 1.05, 1.15)),
    ),
}


def against_champion(**changes: Any) -> Verdict:
    """The verdict beside a champion of the same source."""
    given: dict[str, Any] = {
        "same_source": True,
        "drop": Estimate(0.0, -0.01, 0.01),
        "speedup": Estimate(1.0, 0.9, 1.1),
        "size_ratio": 1.0,
        "objective": "latency",
        "gates": GATES,
        "n": 500,
    }
    return judge_against_champion(**(given | changes))


@pytest.mark.parametrize("gate", CAUGHT)
def test_each_gate_catches_its_fault_and_lets_the_twin_pass(gate: str) -> None:
    """The verdict names the gate; a failure says why."""
    fault, twin = (make() for make in CAUGHT[gate])
    assert fault is not None and twin is not None
    assert (fault.gate, fault.outcome) == (gate, "fail")
    assert fault.reason
    assert (twin.gate, twin.outcome, twin.reason) == (gate, "pass", "")


def test_a_simulated_variant_is_caught_and_a_real_one_has_no_such_gate() -> None:
    """Numbers without kernels fail whatever else they are."""
    verdict = judge_simulation(variant(simulated=True))
    assert verdict is not None
    assert (verdict.gate, verdict.outcome) == ("real_kernels", "fail") and "simulated" in verdict.reason
    assert judge_simulation(variant()) is None


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.01, 0.01, "pass"),
        (-0.01, 0.02, "pass"),
        (-0.01, 0.0201, "inconclusive"),
        (0.02, 0.04, "inconclusive"),
        (0.0201, 0.04, "fail"),
        (float("nan"), float("nan"), "fail"),
    ],
)
def test_the_drop_is_judged_by_both_ends_of_its_interval(low: float, high: float, outcome: Outcome) -> None:
    """Pass when the upper end is within the tolerance, fail when the lower one is beyond, the bound itself is within."""
    verdict = judge_drop(Estimate((low + high) / 2, low, high), GATES, n=500, method="some")
    assert verdict.outcome == outcome
    assert (verdict.low, verdict.high) == pytest.approx((low, high), nan_ok=True)
    assert (verdict.bound, verdict.n) == (0.02, 500)
    assert (verdict.direction, verdict.confidence, verdict.method) == ("at_most", 0.95, "some")
    assert ("more samples" in verdict.reason) == (outcome == "inconclusive")


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.2, 1.3, "pass"),
        (1.19, 1.3, "inconclusive"),
        (1.1, 1.2, "inconclusive"),
        (1.1, 1.19, "fail"),
        (float("nan"), float("nan"), "fail"),
    ],
)
def test_the_speedup_is_judged_by_both_ends_of_its_interval(low: float, high: float, outcome: Outcome) -> None:
    """The mirror of the drop: pass when the lower end is beyond the bound."""
    verdict = judge_speedup(latency(Estimate((low + high) / 2, low, high)), GATES, "ort-cpu")
    assert verdict is not None
    assert (verdict.outcome, verdict.direction, verdict.bound, verdict.n) == (outcome, "at_least", 1.2, 8)


@pytest.mark.parametrize(("low", "high", "outcome"), [(50, 50, "pass"), (49, 51, "fail"), (0, 0, "fail")])
def test_coverage_at_its_bound(low: int, high: int, outcome: Outcome) -> None:
    """Half is enough for a half; a model without any multiply-accumulates covers nothing."""
    verdict = judge_coverage(CANDIDATE, coverage(low, high), GATES)
    assert verdict is not None and verdict.outcome == outcome
    assert "head" in verdict.reason or outcome == "pass" or high == 0


def test_size_at_its_bound() -> None:
    """As many bytes as the baseline are enough for a ratio of one."""
    at, above = judge_size(variant(100), 100, GATES), judge_size(variant(101), 100, GATES)
    assert at is not None and above is not None
    assert (at.outcome, above.outcome) == ("pass", "fail")
    assert above.value == pytest.approx(1.01)


def test_gates_that_are_not_set_or_not_meant_give_no_verdict() -> None:
    """A null gate, and coverage of a candidate in float32."""
    none = Gates(min_speedup=None, min_coverage=None, max_size_ratio=None)
    assert judge_speedup(latency(Estimate(0.1, 0.1, 0.1)), none, "ort-cpu") is None
    assert judge_coverage(CANDIDATE, coverage(0, 9), none) is None
    assert judge_size(variant(900), 1, none) is None
    assert judge_coverage("fp32-fused@ort-cpu", coverage(0, 9), GATES) is None


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        # The same source: better by the objective, beyond doubt.
        ({"speedup": Estimate(1.05, 1.0, 1.1)}, "pass"),
        ({"speedup": Estimate(1.05, 0.99, 1.1)}, "inconclusive"),
        ({"speedup": Estimate(0.95, 0.9, 0.99)}, "fail"),
        ({"objective": "size", "size_ratio": 0.99, "speedup": Estimate(0.5, 0.5, 0.5)}, "pass"),
        ({"objective": "size", "size_ratio": 1.0}, "fail"),
        ({"objective": "size", "size_ratio": 1.5, "speedup": Estimate(2.0, 2.0, 2.0)}, "fail"),
        # Another source: anything that is not clearly worse.
        ({"same_source": False, "speedup": Estimate(0.5, 0.5, 0.5)}, "pass"),
        ({"same_source": False, "drop": Estimate(0.02, -0.01, 0.05)}, "pass"),
        ({"same_source": False, "drop": Estimate(0.05, 0.03, 0.07), "speedup": Estimate(3.0, 3.0, 3.0)}, "fail"),
    ],
)
def test_what_it_takes_to_follow_a_champion(changes: dict[str, Any], outcome: Outcome) -> None:
    """A change for noise is no gain; a new source version gets its chance unless it is clearly worse."""
    verdict = against_champion(**changes)
    assert (verdict.gate, verdict.outcome) == ("beats_champion", outcome)
    assert bool(verdict.reason) == (outcome != "pass")


def test_overall_is_the_worst_verdict() -> None:
    """Any failure fails, else any doubt is doubt."""
    made = {outcome: Verdict("g", outcome, 0.0, 0.0, "at_most") for outcome in ("pass", "fail", "inconclusive")}
    table: dict[tuple[Outcome, ...], str] = {
        (): "passed",
        ("pass", "pass"): "passed",
        ("pass", "inconclusive"): "inconclusive",
        ("inconclusive", "fail", "pass"): "failed",
        ("fail", "fail"): "failed",
    }
    for outcomes, expected in table.items():
        assert overall(tuple(made[outcome] for outcome in outcomes)) == expected


# Gates that nothing can pass


@pytest.mark.parametrize(
    ("max_drop", "confidence", "needed"), [(0.02, 0.95, 133), (0.01, 0.95, 268), (0.001, 0.95, 2703), (0.02, 0.99, 266)]
)
def test_a_tolerance_below_what_the_samples_can_show_is_refused(
    max_drop: float, confidence: float, needed: int
) -> None:
    """With one sample too few even a variant that never differs is inconclusive; with enough it passes."""
    gates = Gates(max_drop=max_drop, confidence=confidence)
    for n, outcome in ((needed - 1, "inconclusive"), (needed, "pass")):
        drop, method = drop_interval(np.zeros(n), confidence, seed=1)
        assert judge_drop(drop, gates, n=n, method=method).outcome == outcome
    check_gates_can_be_met(gates, needed, is_right_or_wrong=True)
    with pytest.raises(JobError, match=f"at least {needed} samples") as caught:
        check_gates_can_be_met(gates, needed - 1, is_right_or_wrong=True)
    assert f"{needed - 1} evaluation samples" in caught.value.found and caught.value.fix


def test_no_number_of_samples_shows_a_drop_of_nothing() -> None:
    """A tolerance of zero is refused for right and wrong, and let be for values."""
    with pytest.raises(JobError, match="infinitely many"):
        check_gates_can_be_met(Gates(max_drop=0.0), 10**6, is_right_or_wrong=True)
    check_gates_can_be_met(Gates(max_drop=0.0), 10, is_right_or_wrong=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_drops_that_are_not_finite_have_no_interval_and_do_not_pass(bad: float) -> None:
    """One sample is enough, and nothing is resampled."""
    drops = np.random.default_rng(0).normal(size=50) - 9
    drops[7] = bad
    estimate, method = drop_interval(drops, 0.95, seed=1)
    assert math.isnan(estimate.value) and "NaN or Inf" in method
    assert judge_drop(estimate, GATES, n=50, method=method).outcome == "fail"
