"""Pairs of blocks, planted: measured again while disturbed or at odds with the others, given up in the end."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tasks.measure.latency import patience as module
from tasks.measure.latency.disturbance import BlockConditions
from tasks.measure.latency.pairs import Launch, Pair, WarmUp, measure_launch, odd_pairs, relative_spread, warm_up
from tasks.measure.latency.patience import RunPatience
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
    return measure_launch(Machine(*planted), measurement, earlier or [])


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


def test_lasting_disturbance_ends_the_launch_with_its_reason() -> None:
    """Three tries without patience, and no pair after it."""
    bad = pair(2.4, conditions=SLOWER)
    machine = Machine(QUIET, [bad], QUIET, QUIET)
    launch = measure_launch(machine, FOUR)
    assert launch.disturbance.startswith("a fixed piece of work took 2.00 times")
    assert launch.disturbance.endswith("in 3 tries")
    assert (machine.asked, len(launch.pairs), launch.repeated) == ([0, 1, 1, 1], 2, 2)


def test_patience_waits_for_a_disturbance_to_end() -> None:
    """Seven disturbed tries in a row; the pauses grow to two seconds, and all of them are counted."""
    bad = pair(2.4, conditions=SLOWER)
    pauses: list[float] = []
    patience = RunPatience(300.0, pause=pauses.append)
    launch = measure_launch(Machine(QUIET, [*[bad] * 7, pair(1.01)], QUIET, QUIET), FOUR, patience=patience)
    assert (launch.repeated, launch.disturbance) == (7, "")
    assert pauses == [0.2, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0]
    assert patience.waited_seconds == pytest.approx(9.7, abs=0.1)
    assert patience.left_seconds == pytest.approx(290.3, abs=0.1)


def test_patience_of_a_run_is_spent_once() -> None:
    """The first measurement takes all of it, and the next one gets its three tries."""
    bad = pair(2.4, conditions=SLOWER)
    patience = RunPatience(10.0, pause=lambda _: None)
    first, second = Machine([bad], QUIET, QUIET, QUIET), Machine([bad], QUIET, QUIET, QUIET)
    assert measure_launch(first, FOUR, patience=patience).disturbance.endswith("in 9 tries")
    assert patience.left_seconds <= 0
    assert measure_launch(second, FOUR, patience=patience).disturbance.endswith("in 3 tries")


def test_a_wait_is_told_with_who_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when it begins and then every 15 s, with the time that is left. A browser uses 0.8 cores in each pause."""
    told: list[str] = []
    used = 7.0

    def pause(seconds: float) -> None:
        nonlocal used
        used += 0.8 * seconds

    monkeypatch.setattr(module, "processor_use", lambda: {"7 of 1": ("browser", used)})
    bad = pair(2.4, conditions=SLOWER)
    patience = RunPatience(300.0, told.append, pause)
    measure_launch(Machine([*[bad] * 12, pair()], QUIET, QUIET, QUIET), FOUR, patience=patience)
    ended = measure_launch(Machine([bad]), FOUR, patience=RunPatience(0.1, told.append, pause))
    assert ended.disturbance.endswith("as beside the other (browser 0.8 cores), in 3 tries")
    assert told[0] == "machine busy: browser 0.8 cores; waiting, 5:00 left"
    assert re.fullmatch(r"machine busy: browser 0.8 cores; waiting, 4:4[0-9] left", told[1])
    assert told[2:] == ["machine busy: browser 0.8 cores; waiting, 0:00 left"]


def test_a_job_may_measure_whatever_else_runs() -> None:
    lenient = FOUR.model_copy(update={"max_other_load": None})
    bad = pair(2.4, conditions=SLOWER)
    launch = run(QUIET, [bad], QUIET, QUIET, measurement=lenient)
    assert (len(launch.pairs), launch.repeated, launch.disturbance) == (4, 0, "")


def test_a_pair_at_odds_with_the_others_is_measured_again() -> None:
    """Nothing in the accounts, and a ratio of 1.5 beside three of 1: once by chance, or each time, when it counts."""
    launch = run(QUIET, [pair(1.5), pair(1.01)], QUIET, QUIET)
    assert [one.ratio for one in launch.pairs] == pytest.approx([1.0, 1.01, 1.0, 1.0])
    assert (launch.repeated, launch.disturbance) == (1, "")
    always = run(QUIET, [pair(1.5)], QUIET, QUIET)
    assert (always.repeated, always.disturbance) == (2, "")
    assert [one.ratio for one in always.pairs] == pytest.approx([1.0, 1.5, 1.0, 1.0])


def test_the_first_measurement_of_a_pair_at_odds_is_kept() -> None:
    """The second pair disagrees twice; percentiles and means read its first measurement, the speedup its last."""
    launch = run(QUIET, [pair(0.4), pair(0.5), pair(1.01)], QUIET, QUIET)
    assert [one.ratio for one in launch.pairs] == pytest.approx([1.0, 1.01, 1.0, 1.0])
    assert [one.ratio for one in launch.first] == pytest.approx([1.0, 0.4, 1.0, 1.0])
    disturbed = pair(2.4, conditions=SLOWER)
    after = run(QUIET, [disturbed, pair(0.4), pair(1.01)], QUIET, QUIET)
    assert [one.ratio for one in after.first] == pytest.approx([1.0, 0.4, 1.0, 1.0]), "a disturbed one is never kept"


def test_pair_disturbed_again_when_remeasured_is_not_counted() -> None:
    """At odds first, then disturbed, though its ratio looks right."""
    launch = run(QUIET, [pair(1.5), pair(1.0, conditions=SLOWER)], QUIET, QUIET)
    assert launch.disturbance.startswith("a fixed piece of work")


def test_earlier_launches_tell_what_is_at_odds() -> None:
    """Of the two pairs of a launch neither is the odd one, until the launch before says it."""
    pairs = [pair(1.0), pair(1.32)]
    assert odd_pairs(pairs) == []
    assert odd_pairs(pairs, [[1.0, 1.01, 0.99]]) == [1]
    assert odd_pairs(pairs, [[1.0, 1.32, 1.16]]) == []


def test_a_noisy_model_may_vary_more() -> None:
    """Six spreads are allowed: of ratios that scatter by 10 % none of these is at odds, of those that scatter by 1 % one is."""
    noisy = [float(ratio) for ratio in np.exp(np.linspace(-0.2, 0.2, 9))]
    steady = [float(ratio) for ratio in np.exp(np.linspace(-0.02, 0.02, 9))]
    pairs = [pair(1.0), pair(1.32), pair(1.0)]
    assert odd_pairs(pairs, [noisy]) == [] and odd_pairs(pairs, [steady]) == [1]


def test_both_sides_slower_at_once_disagree_with_their_launch() -> None:
    """The ratio holds, and the machine was another one: 5 ms where the launch has 2. Wide blocks may differ by so much."""
    pairs = [pair(), pair(variant_ms=5.0), pair(), pair()]
    assert odd_pairs(pairs) == [1]
    wide = [Pair(*(block(side.value_ms, 0.9) for side in (one.baseline, one.variant)), one.conditions) for one in pairs]
    assert relative_spread(wide[0].baseline) == pytest.approx(0.7413 * 0.9)
    assert odd_pairs(wide) == []


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
