"""The clock: what ran at the same time counts once, and what is not work is overhead."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.run import clock as clock_module
from tasks.run.clock import Clock, Interval, union_seconds


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], 0.0),
        ([(1.0, 3.0)], 2.0),
        ([(1.0, 3.0), (3.0, 4.0)], 3.0),
        ([(1.0, 3.0), (5.0, 6.0)], 3.0),
        ([(5.0, 6.0), (1.0, 3.0), (2.0, 4.0)], 4.0),
        ([(0.0, 10.0), (2.0, 3.0), (4.0, 5.0)], 10.0),
        ([(0.0, 10.0), (0.0, 10.0)], 10.0),
        ([(2.0, 2.0)], 0.0),
        ([(-3.0, -1.0), (-2.0, 1.0)], 4.0),
    ],
)
def test_the_union_of_a_table(intervals: list[Interval], expected: float) -> None:
    """Apart, touching, overlapping, inside one another, empty."""
    assert union_seconds(intervals) == expected


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=8))
@settings(derandomize=True, database=None)
def test_the_union_is_the_number_of_seconds_covered(spans: list[tuple[int, int]]) -> None:
    """Counted second by second."""
    covered = {second for start, length in spans for second in range(start, start + length)}
    assert union_seconds([(float(start), float(start + length)) for start, length in spans]) == len(covered)


class Hands:
    """A clock's hands, moved by the test."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    hands = Hands()
    monkeypatch.setattr(clock_module, "time", SimpleNamespace(monotonic=hands.monotonic))
    return hands


def test_time_outside_of_work_is_overhead(hands: Hands) -> None:
    """Steps that follow, return and nest: 3 s before, 5 s load, 4 s judge of which 1 s load, 2 s after."""
    clock = Clock()
    hands.now += 3
    with clock.work("load"):
        hands.now += 5
    with clock.work("judge"):
        hands.now += 3
        with clock.work("load"):
            hands.now += 1
    hands.now += 2
    assert clock.elapsed_seconds == 14
    seconds = clock.seconds()
    assert (seconds.total, seconds.overhead) == (14, 5)
    assert seconds.by_step == {"load": 6, "judge": 4}


def test_a_step_that_fails_was_work_too(hands: Hands) -> None:
    """An error ends its interval and goes on."""
    clock = Clock()

    def fail() -> None:
        with clock.work("load"):
            hands.now += 4
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert clock.seconds().by_step == {"load": 4}


def test_steps_of_several_threads_count_once(hands: Hands) -> None:
    """Two threads work at the same time for 7 s: 7 s of work, not 14, and no overhead."""
    clock = Clock()
    inside, leave = threading.Barrier(3), threading.Event()

    def work() -> None:
        with clock.work("make"):
            inside.wait(60)
            leave.wait(60)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(60)
    hands.now += 7
    leave.set()
    for thread in threads:
        thread.join()
    seconds = clock.seconds()
    assert (seconds.total, seconds.overhead, seconds.by_step) == (7, 0, {"make": 7})
