"""The user's function as a metric: a score a sample or one number, of any rows; faults named before and after."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from sklearn import metrics as sk

from tasks.measure.metrics.drops import count_flips, estimate_drop
from tasks.measure.metrics.metric import Metric, are_scores
from tasks.measure.metrics.user_metric import Function, fold, unfold, user_metric
from validators.errors import JobError


def make(function: Function, *, higher: bool = True) -> Metric:
    return user_metric("mine:score", function, higher_is_better=higher, version="1")


def case(n: int = 200, noise: float = 0.5, seed: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, n)
    return (np.eye(3)[labels] + rng.normal(size=(n, 3)) * noise).astype(np.float32), labels


def kappa(outputs: NDArray[Any], labels: NDArray[Any]) -> float:
    return float(sk.cohen_kappa_score(labels, outputs.argmax(axis=1)))


def test_one_score_a_sample_is_a_mean() -> None:
    """Rows of one column, also of booleans and lists; where lower is better a rise is a loss."""
    outputs, labels = case()
    worse = outputs[:, ::-1]
    for function in (lambda o, y: o.argmax(1) == y, lambda o, y: (o.argmax(1) == y).astype(np.float32).tolist()):
        metric = make(function)
        rows = metric.rows(outputs, labels, None)
        assert are_scores(rows) and metric.value(rows) == pytest.approx(np.mean(outputs.argmax(1) == labels))
    lower = make(lambda o, y: np.abs(o).sum(1) + (o.argmax(1) != y), higher=False)
    before, after = (lower.rows(values, labels, None) for values in (outputs, worse))
    drop, _ = estimate_drop(lower, before, after, 0.95, seed=1)
    assert drop.value == pytest.approx(lower.value(after) - lower.value(before)) and drop.value > 0
    flips = count_flips(lower, before, after)
    assert flips is not None and flips.lost > flips.gained


def test_one_number_is_reckoned_of_any_rows() -> None:
    """Cohen's kappa, no mean of anything, of samples that were drawn, some of them twice; its drop has bounds."""
    outputs, labels = case()
    metric = make(kappa)
    rows = metric.rows(outputs, labels, None)
    drawn = np.random.default_rng(3).integers(0, len(rows), 70)
    assert metric.value(rows) == pytest.approx(kappa(outputs, labels))
    assert metric.value(rows[drawn]) == pytest.approx(kappa(outputs[drawn], labels[drawn]))


def test_a_number_has_a_drop_with_bounds() -> None:
    """The square of the accuracy: by hand 0.81 less 0.25, where lower is better with the other sign."""
    labels = np.arange(200) % 2
    good, bad = (np.eye(2)[np.where(np.arange(200) % 10 < wrong, 1 - labels, labels)] for wrong in (1, 5))
    for higher, sign in ((True, 1), (False, -1)):
        metric = make(lambda o, y: float((o.argmax(1) == y).mean()) ** 2, higher=higher)
        rows = [metric.rows(outputs, labels, None) for outputs in (good, bad)]
        drop, _ = estimate_drop(metric, *(rows if higher else rows[::-1]), 0.95, seed=1)
        assert drop.value == pytest.approx(0.56)
        assert metric.value(rows[0]) - metric.value(rows[1]) == pytest.approx(0.56)
        assert sign * estimate_drop(metric, *rows, 0.95, seed=1)[0].value > 0
    assert drop.low is not None and drop.high is not None and 0 < drop.low < drop.value < drop.high


def test_a_number_has_no_rows_that_are_good_or_bad() -> None:
    outputs, labels = case()
    metric = make(kappa)
    rows = metric.rows(outputs, labels, None)
    assert count_flips(metric, rows, rows) is None


def test_a_number_of_text_and_without_labels() -> None:
    """Any arrays: text as labels, none at all."""
    outputs = np.array(["yes", "no", "perhaps"])
    same = make(lambda o, y: sum(a == b for a, b in zip(o, y, strict=True)) / len(o))
    rows = same.rows(outputs, np.array(["yes", "yes", "perhaps"]), None)
    assert same.value(rows[[0, 1]]) == 0.5 and same.value(rows[[2]]) == 1.0
    spread = make(lambda o, y: float(o.std()) if y is None else -1.0)
    rows = spread.rows(np.arange(6.0), None, None)
    assert spread.value(rows[[1, 3]]) == 1.0


def test_a_selection_that_the_function_cannot_take_has_no_value() -> None:
    """It works on all samples, and raises on those of one class alone: NaN, which no gate lets pass."""

    def picky(outputs: NDArray[Any], labels: NDArray[Any]) -> float:
        if len(set(labels.tolist())) < 3:
            raise ValueError("a class is missing")
        return 1.0

    outputs, labels = case()
    metric = make(picky)
    rows = metric.rows(outputs, labels, None)
    assert metric.value(rows) == 1.0 and np.isnan(metric.value(rows[labels == 0]))


def raising(outputs: NDArray[Any], labels: NDArray[Any]) -> float:
    raise KeyError("that is not there")


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (raising, "raises KeyError on outputs (200, 3), labels (200,)"),
        (lambda o, y: o, "ndarray of shape (200, 3)"),
        (lambda o, y: np.ones(199), "ndarray of shape (199,)"),
        (lambda o, y: np.where(y == 1, np.nan, 1.0), "with NaN or Inf"),
        (lambda o, y: float("inf"), "returns inf"),
        (lambda o, y: None, "returns None"),
        (lambda o, y: "0.5 or so", "returns '0.5 or so'"),
        (lambda o: 1.0, "raises TypeError"),
    ],
)
def test_faulty_functions_are_named(function: Function, found: str) -> None:
    with pytest.raises(JobError) as caught:
        make(function).rows(*case(), None)
    assert "'mine:score'" in caught.value.found and found in caught.value.found


ARRAYS = st.one_of(
    hnp.arrays(
        st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint16, np.int32, np.bool_]),
        st.tuples(st.just(5), st.integers(0, 3)),
    ),
    hnp.arrays(np.float32, (5, 2, 3)),
    hnp.arrays(np.int64, 5, elements=st.integers(-(2**53), 2**53)),
    hnp.arrays("U6", 5, elements=st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)),
)


@given(ARRAYS, ARRAYS, st.lists(st.integers(0, 4), min_size=1, max_size=9))
def test_what_is_folded_unfolds(one: NDArray[Any], other: NDArray[Any], drawn: list[int]) -> None:
    """Value by value, dtype and shape and all, of any selection."""
    for folded, array in zip(unfold(fold(one, other)[drawn]), (one, other), strict=True):
        np.testing.assert_array_equal(folded, array[drawn], strict=True)


@pytest.mark.parametrize("array", [np.array([2**53 + 1]), np.array([1j]), np.array([None])])
def test_what_does_not_fold_is_refused(array: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match=r"complex|object|2\^53"):
        fold(array)
    with pytest.raises(JobError, match="returns one number"):
        make(lambda o, y: 1.0).rows(array, None, None)
