"""Search for the forms of parts: the optimum where all assignments can be counted, and frontiers that only rise."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.ptq.search import STEPS, Form, Part, assign, find_frontier, find_point, point_of
from tasks.ptq.sensitivity import SensitivePart


def parts_of(noises: np.ndarray, costs: np.ndarray) -> list[Part]:
    """Parts with forms of these noises and costs, both `(parts, forms)`."""
    return [
        Part(
            SensitivePart(f"part {index}", (f"node {index}",)),
            tuple(
                Form(f"form {form}", float(noise), float(cost))
                for form, (noise, cost) in enumerate(zip(*row, strict=True))
            ),
        )
        for index, row in enumerate(zip(noises, costs, strict=True))
    ]


def least_cost(noises: np.ndarray, costs: np.ndarray, most_noise: float) -> float:
    """The least cost over all assignments, by trying each; Inf if none has so little noise."""
    indices = np.array(list(itertools.product(range(noises.shape[1]), repeat=len(noises))))
    rows = np.arange(len(noises))
    noise, cost = noises[rows, indices].sum(axis=1), costs[rows, indices].sum(axis=1)
    return float(cost[noise <= most_noise].min(initial=math.inf))


@pytest.mark.parametrize("forms", [2, 4])
def test_the_optimum_of_4096_assignments_is_found(forms: int) -> None:
    """Twelve parts of two forms, six of four; 50 budgets from the least noise to the most."""
    random = np.random.default_rng(7)
    count = round(12 / math.log2(forms))
    noises = np.sort(10 ** random.uniform(-6, -1, (count, forms)), axis=1)[:, ::-1]
    costs = np.sort(random.uniform(0, 100, (count, forms)), axis=1)
    parts = parts_of(noises, costs)
    least, most = noises.min(axis=1).sum(), noises.max(axis=1).sum()
    exact = 0
    for budget in np.geomspace(least * 1.001, most * 0.999, 50):
        best = least_cost(noises, costs, budget)
        found = assign(parts, budget)
        assert found is not None
        point = point_of(parts, found, 1)
        assert point.noise <= budget and point.cost <= 1.01 * best
        exact += point.cost <= best * (1 + 1e-9)
    assert exact >= 48


def test_a_bound_that_no_assignment_meets_has_no_solution() -> None:
    parts = parts_of(np.array([[0.1, 0.01], [0.2, 0.02]]), np.array([[0.0, 1.0], [0.0, 1.0]]))
    assert assign(parts, 0.029) is None  # each meets it alone, both together do not
    assert assign(parts, 0.015) is None
    assert assign(parts, 0.0301) == (1, 1)
    assert find_point(parts, 16) is None and find_point(parts, 15) is not None


def test_a_part_without_bounds_on_its_noise_takes_another_form() -> None:
    parts = parts_of(np.array([[math.inf, 0.0], [0.001, 0.0]]), np.array([[0.0, 9.0], [0.0, 1.0]]))
    assert assign(parts, 0.01) == (1, 0)
    assert [point.assignment for point in find_frontier(parts)] == [(1, 0), (1, 1)]


def test_free_forms_with_less_noise_are_taken() -> None:
    """Equal costs: the one with less noise, though the other meets the bound, too."""
    parts = parts_of(np.array([[0.01, 0.0001]]), np.array([[5.0, 5.0]]))
    assert assign(parts, 0.1) == (1,)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(2, 4), st.integers(0, 2**32 - 1))
def test_cost_rises_along_the_frontier_and_levels_hold(count: int, forms: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    noises = np.sort(10 ** random.uniform(-6, -1, (count, forms)), axis=1)[:, ::-1]
    costs = np.sort(random.uniform(0, 100, (count, forms)), axis=1)
    costs -= costs[:, :1]
    frontier = find_frontier(parts_of(noises, costs))
    assert [point.cost for point in frontier] == sorted(point.cost for point in frontier)
    assert len({point.assignment for point in frontier}) == len(frontier)
    for point in frontier:
        bound = 10 ** (-point.level_db / 10)
        assert point.noise <= bound
        assert point.cost <= least_cost(noises, costs, bound * (1 - count / STEPS)) + 1e-9


def test_a_model_in_float_ends_the_frontier() -> None:
    """Two parts in INT8 or float: one in float, never both; the noisier per cost is first."""
    part = [
        Part(SensitivePart(name, (name,)), (Form("int8", noise, 0.0), Form("float", 0.0, cost)))
        for name, noise, cost in (("a", 0.0099, 10.0), ("b", 0.002, 1.0))
    ]
    assert [(point.level_db, point.assignment) for point in find_frontier(part)] == [(20, (0, 1)), (21, (1, 0))]
