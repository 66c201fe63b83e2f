"""Outputs of two implementations of one model: NaN and Inf agree in the same places, and hide nothing elsewhere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tasks.evidence.torch_export import PARITY_TOLERANCE, compare_outputs
from tasks.runtimes.parity import largest_difference, largest_magnitude
from validators.errors import SourceError

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ([1.0, 2.0], [1.0, 2.25], 0.25),
        ([NAN, 2.0], [NAN, 2.25], 0.25),
        ([NAN, 2.0], [1.0, 2.0], INF),
        ([1.0, 2.0], [NAN, 2.0], INF),
        ([INF, -INF], [INF, -INF], 0.0),
        ([INF, 0.0], [-INF, 0.0], INF),
        ([INF, 0.0], [NAN, 0.0], INF),
        ([[1.0, 2.0]], [1.0, 2.0], INF),
        ([], [], 0.0),
    ],
)
def test_difference_of_a_table(one: Any, other: Any, expected: float) -> None:
    for dtype in (np.float16, np.float32, np.float64):
        assert largest_difference(np.array(one, dtype), np.array(other, dtype)) == expected


def test_integers_and_text_differ_by_value() -> None:
    assert largest_difference(np.array([3, 5]), np.array([3, 1])) == 4.0
    assert largest_difference(np.array(["a"]), np.array(["a"])) == 0.0
    assert largest_difference(np.array(["a"], object), np.array(["b"], object)) == INF
    assert largest_magnitude(np.array([-7, 2])) == 7.0 and largest_magnitude(np.array(["a"])) == 0.0
    assert largest_magnitude(np.array([NAN, INF, -2.0])) == 2.0


def test_export_with_nan_beside_a_difference_is_refused() -> None:
    """The first value is NaN on both sides; the second differs by 0.5."""
    ours, originals = [np.array([[NAN, 1.0]], np.float32)], [np.array([[NAN, 1.5]], np.float32)]
    with pytest.raises(SourceError) as caught:
        compare_outputs(["y"], ours, originals)
    assert caught.value.found == "output 'y' of the ONNX export differs from the original model's by 0.5"


def test_export_that_is_nan_on_one_side_is_refused() -> None:
    ours, originals = [np.array([[NAN, 1.0]], np.float32)], [np.array([[1.0, 1.0]], np.float32)]
    for one, other in ((ours, originals), (originals, ours)):
        with pytest.raises(SourceError) as caught:
            compare_outputs(["y"], one, other)
        assert "1 of 2 values are finite in one of the two only" in caught.value.found


def test_export_with_infinities_has_a_finite_tolerance() -> None:
    """Masked logits of -inf on both sides leave the tolerance to the finite values."""
    ours, originals = [np.array([[-INF, 1.0]], np.float32)], [np.array([[-INF, 1.5]], np.float32)]
    with pytest.raises(SourceError) as caught:
        compare_outputs(["y"], ours, originals)
    assert caught.value.expected.startswith(f"a difference of at most {PARITY_TOLERANCE:.3g} ")


def test_export_with_nan_in_the_same_places_agrees() -> None:
    ours = [np.array([[NAN, 1.0]], np.float32), np.array([3, 4])]
    originals = [np.array([[NAN, 1.0005]], np.float32), np.array([3, 4])]
    assert compare_outputs(["y", "n"], ours, originals) == pytest.approx(0.0005, rel=1e-3)


def test_export_of_another_shape_is_refused() -> None:
    with pytest.raises(SourceError, match=r"differs .* in shape: \(1, 2\) instead of \(2,\)"):
        compare_outputs(["y"], [np.zeros((1, 2), np.float32)], [np.zeros(2, np.float32)])
