"""Calibration statistics: against counts of exact rational bins, and the same bits however the values came in."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tasks.ptq.calibrate import statistics as module
from tasks.ptq.calibrate.statistics import (
    FORMAT_VERSION,
    MIN_BINS,
    MIN_EXPONENT,
    TensorStatistics,
    add,
    empty,
    load_statistics,
    save_statistics,
)
from validators.errors import CandidateRefused

FLOATS32 = st.one_of(
    st.floats(width=32),
    st.floats(-8, 8, width=32),
    st.sampled_from([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 2.0, 3.4028234663852886e38, -3.4028234663852886e38, 1024.0]),
)
VALUES = st.lists(FLOATS32, max_size=40).map(lambda values: np.array(values, np.float32))


def bits(statistics: TensorStatistics) -> tuple[Any, ...]:
    """All of a record, told apart to the sign of a zero."""
    ends = (statistics.minimum.hex(), statistics.maximum.hex())
    rest = (statistics.finite, statistics.non_finite, statistics.exponent, statistics.counts.tobytes())
    return ends + rest


def of(values: NDArray[Any], bins: int = MIN_BINS) -> TensorStatistics:
    return add(empty(bins), values)


def occupied(statistics: TensorStatistics) -> dict[int, int]:
    """The counts of bins that have any; bin 0 begins at zero."""
    half = statistics.bins // 2
    return {int(place) - half: int(statistics.counts[place]) for place in np.flatnonzero(statistics.counts)}


def reference(values: NDArray[Any], bins: int) -> tuple[int, dict[int, int]]:
    """The exponent and the occupied bins, in exact arithmetic by their definition."""
    exact = [Fraction(float(value)) for value in values.reshape(-1) if math.isfinite(value)]
    exponent = MIN_EXPONENT
    while any(abs(value) >= Fraction(2) ** exponent * (bins // 2) for value in exact):
        exponent += 1
    width = Fraction(2) ** exponent
    places = [value // width if value >= 0 else -1 - (-value // width) for value in exact]
    return exponent, dict(Counter(int(place) for place in places))


# What is counted.


@settings(max_examples=60)
@given(VALUES)
def test_extremes_and_bins_are_those_of_exact_arithmetic(values: NDArray[np.float32]) -> None:
    found = of(values)
    finite = values[np.isfinite(values)]
    assert (found.exponent, occupied(found)) == reference(values, MIN_BINS)
    assert found.finite == len(finite) == found.counts.sum() and found.non_finite == len(values) - len(finite)
    if len(finite):
        assert (found.minimum, found.maximum) == (finite.min(), finite.max())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_other_floats_are_counted_as_exactly(dtype: type[np.floating[Any]]) -> None:
    rng = np.random.default_rng(1)
    values = (rng.normal(size=3000) * 10.0 ** rng.integers(-7, 5, 3000)).clip(-6e4, 6e4).astype(dtype)
    values[:4] = [65504, -65504, 6e-8, -6e-8]  # the largest and least of float16
    found = of(values)
    assert (found.exponent, occupied(found)) == reference(values, MIN_BINS)


def test_a_hand_computed_table() -> None:
    """Bins of 2**-8: 1024 of them to each side reach to 4.0, which 3.5 needs and 4.0 would pass."""
    found = of(np.array([3.5, 0.0, -0.0, 0.001, -0.001, 1 / 256, -1 / 256, -1 / 128], np.float32))
    assert (found.exponent, found.width) == (-8, 1 / 256)
    assert occupied(found) == {896: 1, 1: 1, 0: 3, -1: 1, -2: 1, -3: 1}
    assert of(np.array([4.0], np.float32)).exponent == -7


@pytest.mark.parametrize(
    ("value", "exponent", "place"),
    [
        (0.0, MIN_EXPONENT, 0),
        (-0.0, MIN_EXPONENT, 0),
        (1e-45, MIN_EXPONENT, 0),
        (-1e-45, MIN_EXPONENT, -1),
        (7.0, -7, 896),
        (3.4e38, 118, 1023),
        (-3.4e38, 118, -1024),
    ],
)
def test_constants_from_nothing_to_the_largest(value: float, exponent: int, place: int) -> None:
    values = np.full(1000, value, np.float32)
    found = of(values)
    assert (found.exponent, occupied(found)) == (exponent, {place: 1000})
    assert found.minimum == found.maximum == values[0]


def test_both_zeros_are_one_minimum() -> None:
    negative, positive = of(np.array([-0.0], np.float32)), of(np.array([0.0], np.float32))
    assert bits(negative) == bits(positive)
    assert bits(add(negative, np.zeros(1, np.float32))) == bits(add(positive, np.array([-0.0], np.float32)))


@pytest.mark.parametrize("scale", [0.0, 6e-8, 1e-4, 1.0])
def test_small_float16_values_count_like_the_same_in_float32(scale: float) -> None:
    values = (np.random.default_rng(7).normal(size=500) * scale).astype(np.float16)
    assert bits(of(values)) == bits(of(values.astype(np.float32)))


def test_what_vanishes_when_scaled_keeps_its_side_of_zero() -> None:
    found = of(np.array([3e38, 1e-45, -1e-45, -1e-30, 0.0], np.float32))
    assert occupied(found) == {0: 2, -1: 2, 902: 1}


def test_non_finite_values_are_counted_and_nothing_else() -> None:
    found = of(np.array([np.nan, np.inf, -np.inf, 2.0], np.float32))
    assert (found.finite, found.non_finite, found.minimum, found.maximum) == (1, 3, 2.0, 2.0)
    nothing = of(np.full(5, np.nan, np.float32))
    assert (nothing.finite, nothing.non_finite, nothing.largest) == (0, 5, 0.0)
    assert (nothing.minimum, nothing.maximum) == (math.inf, -math.inf) and not nothing.counts.any()


def test_shape_and_layout_do_not_matter_and_values_are_unchanged() -> None:
    values = np.random.default_rng(2).normal(size=(6, 8, 10)).astype(np.float32)
    before = values.copy()
    views = [values.reshape(-1), values.transpose(2, 0, 1), np.asfortranarray(values), values[::-1]]
    assert {bits(of(view)) for view in views} == {bits(of(values))}
    assert bits(of(np.array(3.0, np.float32))) == bits(of(np.array([3.0], np.float32)))
    np.testing.assert_array_equal(values, before)


def test_what_is_no_float_is_refused() -> None:
    with pytest.raises(TypeError, match="int64"):
        of(np.arange(3))


@pytest.mark.parametrize("bins", [1024, 2049, 3000, 0])
def test_the_number_of_bins_is_a_power_of_two(bins: int) -> None:
    with pytest.raises(ValueError, match=f"{bins} bins: expected a power of two"):
        empty(bins)


# The same bits, whatever the order.


@settings(max_examples=60)
@given(VALUES, st.data())
def test_parts_add_up_to_the_whole_in_any_split_and_order(values: NDArray[np.float32], data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(len(values)))), np.intp)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), min_size=2, max_size=2)))
    added = empty(MIN_BINS)
    for part in np.split(values[order], cuts):
        added = add(added, part)
    assert bits(added) == bits(of(values))


@settings(max_examples=30)
@given(VALUES)
def test_adding_nothing_changes_nothing(values: NDArray[np.float32]) -> None:
    some = of(values)
    nothing = np.zeros((3, 0), np.float32)
    assert bits(add(some, nothing)) == bits(some)


def test_blocks_give_what_one_block_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    values = (np.random.default_rng(3).standard_t(2, 5000) * 1000).astype(np.float32)
    values[17] = np.nan
    whole = bits(of(values))
    monkeypatch.setattr(module, "BLOCK_VALUES", 64)
    assert bits(of(values)) == whole


def test_record_is_immutable_and_adding_leaves_it_as_it_was() -> None:
    some = of(np.array([1.0], np.float32))
    before = bits(some)
    add(some, np.array([1e9], np.float32))
    assert bits(some) == before
    with pytest.raises(ValueError, match="read-only"):
        some.counts[0] = 1


# The file.


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    found = {"x": of(np.array([-1.5, 2.0, np.inf], np.float32)), "größe/0": empty(MIN_BINS)}
    save_statistics(tmp_path / "statistics.npz", found)
    return tmp_path / "statistics.npz"


def test_a_file_gives_back_what_was_written(stored: Path, tmp_path: Path) -> None:
    found = load_statistics(stored)
    assert list(found) == ["x", "größe/0"]
    assert bits(found["x"]) == bits(of(np.array([-1.5, 2.0, np.inf], np.float32)))
    assert bits(found["größe/0"]) == bits(empty(MIN_BINS))
    assert bits(add(found["x"], np.ones(2, np.float32))) != bits(found["x"])  # and can be added to
    save_statistics(tmp_path / "none.npz", {})
    assert load_statistics(tmp_path / "none.npz") == {}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": np.int64(FORMAT_VERSION + 1)}, f"is of version {FORMAT_VERSION + 1}"),
        ({"version": None}, "is of version 0"),
        ({"counts": None}, "has the arrays"),
        ({"more": np.zeros(2)}, "has the arrays"),
        ({"minimum": np.zeros(3)}, "'minimum' as float64 of shape \\(3,\\) for 2 tensors"),
        ({"finite": np.array([2.0, 0.0])}, "'finite' as float64"),
        ({"counts": np.zeros((2, 100), np.int64)}, "counts of shape \\(2, 100\\)"),
        ({"counts": np.zeros(2, np.int64)}, "counts"),
        ({"finite": np.array([3, 0])}, "do not add up"),
        ({"non_finite": np.array([-1, 0])}, "do not add up"),
        ({"exponent": np.array([0, MIN_EXPONENT])}, "bins of 2\\*\\*0 for values from -1.5 to 2.0"),
        ({"minimum": np.array([np.nan, np.inf])}, "values from nan"),
        ({"minimum": np.array([-np.inf, np.inf])}, "values from -inf"),
        ({"tensors": np.array(["x", "x"])}, "names a tensor twice"),
        ({"tensors": np.array("x")}, "'tensors'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(stored: Path, changes: dict[str, Any], match: str) -> None:
    with np.load(stored) as archive:
        arrays = {name: archive[name] for name in archive.files} | changes
    np.savez(stored, **{name: array for name, array in arrays.items() if array is not None})
    with pytest.raises(CandidateRefused, match=match) as refused:
        load_statistics(stored)
    assert refused.value.kind == "invalid" and "statistics.npz" in refused.value.found


def test_damaged_file_is_refused_and_missing_one_is_no_refusal(stored: Path, tmp_path: Path) -> None:
    stored.write_bytes(stored.read_bytes()[:400])
    with pytest.raises(CandidateRefused, match="cannot be read"):
        load_statistics(stored)
    with pytest.raises(FileNotFoundError):
        load_statistics(tmp_path / "nowhere.npz")


def test_a_pickle_is_not_read(stored: Path) -> None:
    np.savez(stored, version=np.int64(FORMAT_VERSION), tensors=np.array([{}], object), allow_pickle=True)
    with pytest.raises(CandidateRefused, match="cannot be read"):
        load_statistics(stored)
