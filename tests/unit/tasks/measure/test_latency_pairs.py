"""Pairs of blocks, planted: measured again while disturbed or at odds with the others, given up after three tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tasks.measure.latency.disturbance import BlockConditions
from tasks.measure.latency.pairs import Launch, Pair, WarmUp, measure_launch, relative_spread, warm_up, why_odd
from tasks.measure.latency.process import Block
from validators.job.job_measurement import Measurement

STILL = BlockConditions(0.0, 0.0, (1.0, 1.0))
SLOWER = replace(STILL, canary_ms=(1.0, 2.0))
FOUR = Measurement(launches=1, blocks=4)


def block(median_ms: float, spread: float = 0.01) -> Block:
    """101 requests around a median, from `1 - spread` to `1 + spread` of it."""
    return Block("latency", median_ms * np.linspace(1 - spread, 1 + spread, 101))


def pair(ratio: float = 1.0, *, variant_ms: float = 2.0, conditions: BlockConditions = STILL) -> Pair:
    return Pair(block(ratio * variant_ms), block(variant_ms), (STILL, conditions))


class Machine:
    """Gives, for each index, planted pairs one after the other, the last for ever."""

    def __init__(self, *planted: list[Pair]) -> None:
        self._planted = [list(pairs) for pairs in planted]
        self.asked: list[int] = []

    def __call__(self, index: int) -> Pair:
        self.asked.append(index)
        left = self._planted[index]
        return left.pop(0) if len(left) > 1 else left[0]


def run(*planted: list[Pair], measurement: Measurement = FOUR, earlier: list[list[float]] | None = None) -> Launch:
    return measure_launch(Machine(*planted), measurement, earlier or [], lambda _: None)


QUIET = [pair()]


def test_a_quiet_machine_is_measured_once() -> None:
    machine = Machine([pair(1.3)], [pair(1.31)], [pair(1.29)], [pair(1.3)])
    launch = measure_launch(machine, FOUR)
    assert [one.ratio for one in launch.pairs] == pytest.approx([1.3, 1.31, 1.29, 1.3])
    assert (machine.asked, launch.repeated, launch.disturbance) == ([0, 1, 2, 3], 0, "")


def test_a_disturbance_that_ends_gives_a_clean_result() -> None:
    """The first try of the second pair, and the first two of the third: none of their times is kept."""
    bad = pair(2.4, conditions=SLOWER)
    launch = run(QUIET, [bad, pair(1.01)], [bad, bad, pair(0.99)], QUIET)
    assert [one.ratio for one in launch.pairs] == pytest.approx([1.0, 1.01, 0.99, 1.0])
    assert (launch.repeated, launch.disturbance) == (3, "")


def test_a_disturbance_that_lasts_ends_the_launch_with_its_reason() -> None:
    """Three tries, and no pair after it."""
    bad = pair(2.4, conditions=SLOWER)
    machine = Machine(QUIET, [bad], QUIET, QUIET)
    pauses: list[float] = []
    launch = measure_launch(machine, FOUR, pause=pauses.append)
    assert pauses == [0.5, 2.0]
    assert launch.disturbance.startswith("a fixed piece of work took 2.00 times")
    assert launch.disturbance.endswith("in each of 3 tries")
    assert (machine.asked, len(launch.pairs), launch.repeated) == ([0, 1, 1, 1], 2, 2)


def test_a_job_may_measure_whatever_else_runs() -> None:
    lenient = FOUR.model_copy(update={"max_other_load": None})
    bad = pair(2.4, conditions=SLOWER)
    launch = run(QUIET, [bad], QUIET, QUIET, measurement=lenient)
    assert (len(launch.pairs), launch.repeated, launch.disturbance) == (4, 0, "")


def test_a_pair_at_odds_with_the_others_is_measured_again() -> None:
    """Nothing in the accounts, and a ratio of 1.5 beside three of 1: once by chance, or each time."""
    launch = run(QUIET, [pair(1.5), pair(1.01)], QUIET, QUIET)
    assert [one.ratio for one in launch.pairs] == pytest.approx([1.0, 1.01, 1.0, 1.0])
    assert (launch.repeated, launch.disturbance) == (1, "")
    always = run(QUIET, [pair(1.5)], QUIET, QUIET)
    assert always.disturbance == "a pair of blocks has the ratio 1.50, while the others have 1.00, in each of 3 tries"
    assert always.repeated == 2


def test_a_pair_that_is_disturbed_when_measured_again_is_not_counted() -> None:
    """At odds first, then disturbed, though its ratio looks right."""
    launch = run(QUIET, [pair(1.5), pair(1.0, conditions=SLOWER)], QUIET, QUIET)
    assert launch.disturbance.startswith("a fixed piece of work")


def test_earlier_launches_tell_what_is_at_odds() -> None:
    """Of the two pairs of a launch neither is the odd one, until the launch before says it."""
    pairs = [pair(1.0), pair(1.32)]
    assert why_odd(pairs) == {}
    assert list(why_odd(pairs, [[1.0, 1.01, 0.99]])) == [1]
    assert why_odd(pairs, [[1.0, 1.32, 1.16]]) == {}


def test_a_noisy_model_may_vary_more() -> None:
    """Six spreads are allowed: of ratios that scatter by 10 % none of these is at odds, of those that scatter by 1 % one is."""
    noisy = [float(ratio) for ratio in np.exp(np.linspace(-0.2, 0.2, 9))]
    steady = [float(ratio) for ratio in np.exp(np.linspace(-0.02, 0.02, 9))]
    pairs = [pair(1.0), pair(1.32), pair(1.0)]
    assert why_odd(pairs, [noisy]) == {} and list(why_odd(pairs, [steady])) == [1]


def test_both_sides_slower_at_once_are_at_odds_with_their_own_side() -> None:
    """The ratio holds, and the machine was another one: 5 ms where the launch has 2. Wide blocks may differ by so much."""
    pairs = [pair(), pair(variant_ms=5.0), pair(), pair()]
    assert list(why_odd(pairs)) == [1] and "took 5 ms per request, while the others took 2 ms" in why_odd(pairs)[1]
    wide = [replace(one, baseline=block(one.baseline.value_ms, 0.9)) for one in pairs]
    assert relative_spread(wide[0].baseline) == pytest.approx(0.7413 * 0.9)
    assert all("baseline" not in said for said in why_odd(wide).values())


# Warm-up


def pieces(*medians: float) -> Callable[[float, int], np.ndarray]:
    """Pieces of ten requests with these medians in milliseconds, the last for ever."""
    left = list(medians)
    return lambda seconds, count: np.full(10, left.pop(0) if len(left) > 1 else left[0])


def test_warm_up_ends_when_three_pieces_agree() -> None:
    """30, 20, 10.9, 10.2, 10 ms: the last three agree within 10 %; 10 requests each, 0.811 s in all."""
    assert warm_up(pieces(30, 20, 10.9, 10.2, 10), 0.0, 5.0) == WarmUp(pytest.approx(0.811), True)
    assert warm_up(pieces(10), 0.0, 5.0) == WarmUp(pytest.approx(0.3), True)


def test_warm_up_lasts_as_long_as_the_job_says_at_least() -> None:
    assert warm_up(pieces(10), 0.75, 5.0) == WarmUp(pytest.approx(0.8), True)


def test_warm_up_that_never_settles_ends_and_says_so() -> None:
    """Alternating 10 and 20 ms for ever: ended at the first piece beyond the limit."""
    alternating = iter([10.0, 20.0] * 100)
    warm = warm_up(lambda seconds, count: np.full(10, next(alternating)), 0.1, 1.0)
    assert warm == WarmUp(pytest.approx(1.0), False)
