"""Slices: the drop in every group, and a verdict on the worst that holds for all of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from validators.gates.accuracy import judge_drop
from validators.gates.intervals import drop_interval, tango_interval
from validators.gates.slices import EstimateDrop, judge_slices, slice_drops
from validators.job.job_gates import Gates
from validators.records.measurements import Estimate, SliceDrop
from validators.records.verdicts import Outcome

GATES = Gates(max_drop=0.02, max_slice_drop=0.05)
N = 4000
LANGUAGE = np.array(["en", "de", "fr", "pt"])[np.minimum(np.arange(N) // 1300, 3)]  # 100 of pt
CUSTOMER = np.arange(N) % 2
SLICES = {"language": LANGUAGE, "customer": CUSTOMER}


def of(drops: NDArray[np.float64]) -> EstimateDrop:
    """The drop of the mean on a subset."""
    return lambda mask, confidence: drop_interval(drops[mask], confidence)


def planted(share: float, *, elsewhere: float = 0.0) -> NDArray[np.float64]:
    """A variant that loses `share` of the samples in pt, and of those elsewhere."""
    rank = np.random.default_rng(5).permutation(N) / N
    lost = rank < elsewhere
    there = np.flatnonzero(LANGUAGE == "pt")
    lost[there] = np.arange(len(there)) < round(share * len(there))
    return lost.astype(np.float64)


def test_every_group_has_its_drop_with_a_simultaneous_bound() -> None:
    """Six groups: Tango's bounds of each count at 1 - 0.05 / 6."""
    drops = slice_drops(SLICES, of(planted(0.3)), 0.95)
    assert [(drop.column, drop.group, drop.n) for drop in drops] == [
        ("language", "de", 1300),
        ("language", "en", 1300),
        ("language", "fr", 1300),
        ("language", "pt", 100),
        ("customer", "0", 2000),
        ("customer", "1", 2000),
    ]
    assert drops[3].drop == Estimate(0.3, *tango_interval(30, 0, 100, 1 - 0.05 / 6))


def test_a_bad_group_that_the_mean_of_all_does_not_show() -> None:
    """Thirty of a hundred wrong in one language are 0.75 points of all."""
    drops = planted(0.3)
    estimate, method = drop_interval(drops, 0.95)
    assert judge_drop(estimate, GATES, n=N, method=method).outcome == "pass"
    verdict = judge_slices(slice_drops(SLICES, of(drops), 0.95), GATES)
    assert verdict is not None
    assert (verdict.gate, verdict.outcome, verdict.value, verdict.n) == ("worst_slice", "fail", 0.3, 100)
    assert verdict.reason.startswith("language pt: +0.3 [") and "language pt" in verdict.method
    assert verdict.confidence == pytest.approx(1 - 0.05 / 6) and verdict.bound == 0.05


def test_a_small_group_says_how_many_of_it_would_tell() -> None:
    """Two lost of a hundred: inconclusive. Without any loss z^2 19 of a group are needed: 109 with six groups, 96 with four."""
    verdict = judge_slices(slice_drops(SLICES, of(planted(0.02)), 0.95), GATES)
    assert verdict is not None and (verdict.outcome, verdict.n) == ("inconclusive", 100)
    assert verdict.samples_needed is not None and verdict.samples_needed > 100
    assert "samples of language pt would settle it" in verdict.reason
    assert outcome_of(SLICES, np.zeros(N)) == "inconclusive"
    assert outcome_of({"language": LANGUAGE}, np.zeros(N)) == "pass"


def outcome_of(slices: dict[str, NDArray[np.generic]], drops: NDArray[np.float64]) -> Outcome | None:
    """The outcome on these groups."""
    verdict = judge_slices(slice_drops(slices, of(drops), 0.95), GATES)
    return None if verdict is None else verdict.outcome


def group(name: str, low: float | None, high: float | None, value: float = 0.04) -> SliceDrop:
    return SliceDrop("g", name, 50, Estimate(value, low, high), "m")


@pytest.mark.parametrize(
    ("drops", "worst", "outcome"),
    [
        ((group("a", 0.0, 0.05), group("b", -0.1, 0.04)), "a", "pass"),
        ((group("a", 0.0, 0.051), group("b", -0.1, 0.04)), "a", "inconclusive"),
        # A failure is worse than a doubt, however wide.
        ((group("a", 0.0, 0.9), group("b", 0.06, 0.08)), "b", "fail"),
        ((group("a", 0.07, 0.09), group("b", 0.06, 0.08)), "a", "fail"),
        # Without an interval anything may be; NaN is a failure.
        ((group("a", 0.0, 0.9), group("b", None, None)), "b", "inconclusive"),
        ((group("a", 0.06, 0.9), group("b", math.nan, math.nan, math.nan)), "b", "fail"),
    ],
)
def test_the_worst_of_all(drops: tuple[SliceDrop, ...], worst: str, outcome: Outcome) -> None:
    """Whatever the order."""
    for order in (drops, drops[::-1]):
        verdict = judge_slices(order, GATES)
        assert verdict is not None
        assert (verdict.outcome, verdict.method) == (outcome, f"g {worst}: m")


def test_no_gate_no_verdict() -> None:
    """A null gate, and a job without slices."""
    assert judge_slices((group("a", 0.0, 0.9),), Gates(max_slice_drop=None)) is None
    assert outcome_of({}, np.zeros(N)) is None


def test_all_bounds_hold_at_once_as_often_as_they_say() -> None:
    """Ten groups of 300 that each lose 5 %: in at most 5 % of 1,000 draws one of the ten bounds is wrong, and in some it is."""
    rng = np.random.default_rng(9)
    slices = {"g": np.arange(3000) // 300}
    wrong = []
    for _ in range(1000):
        drops = slice_drops(slices, of(np.where(rng.random(3000) < 0.05, 1.0, 0.0)), 0.95)
        wrong.append(any(found.drop.high is not None and found.drop.high < 0.05 for found in drops))
    assert 0 < np.mean(wrong) < 0.07
