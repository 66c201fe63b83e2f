"""Statistics of samples against numpy, across the borders of blocks, and on a grid that hides rounding alone."""

from __future__ import annotations

import numpy as np

from validators.samples.drift import Vector, compare
from validators.samples.sample_statistics import (
    BLOCK_VALUES,
    MAGNITUDE_STATISTICS,
    align,
    count_nonfinite,
    differs_from_first,
    measure_samples,
)


def test_statistics_agree_with_numpy_across_blocks() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(70, BLOCK_VALUES // 32 + 3)).astype(np.float32)
    images[5, :100], images[9, 7], images[69, 8] = 0, np.inf, np.nan
    ids = rng.integers(0, 4, (70, 9))
    table = measure_samples({"x": images, "ids": ids, "words": np.array(["a"] * 70)})
    good = np.delete(np.arange(70), [9, 69])
    exact = images[good].astype(np.float64)
    expected = {
        "x.mean": exact.mean(1),
        "x.std": exact.std(1),
        "x.min": exact.min(1),
        "x.max": exact.max(1),
        "x.share of zeros": (exact == 0).mean(1),
        "ids.mean": ids.mean(1)[good],
        "ids.share of zeros": (ids == 0).mean(1)[good],
        "ids.length": (ids > 0).sum(1)[good],
    }
    assert list(table) == list(expected)
    for name, column in expected.items():
        np.testing.assert_allclose(table[name][good], column, rtol=1e-12, err_msg=name)
    assert all(np.isnan(table[f"x.{statistic}"][[9, 69]]).all() for statistic in MAGNITUDE_STATISTICS)
    assert np.flatnonzero(count_nonfinite(images)).tolist() == [9, 69]
    rows = np.array([3, 60, 64])
    np.testing.assert_array_equal(measure_samples({"x": images}, rows)["x.max"], table["x.max"][rows])
    same = np.broadcast_to(images[:1], images.shape).copy()
    same[66, -1] += 1
    assert np.flatnonzero(differs_from_first(same)).tolist() == [66]
    assert differs_from_first(same[::-1]).sum() == 1 and differs_from_first(same[66:]).sum() == 3


def test_rounding_is_no_drift() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(2100, 300))
    once = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    # Scaled and cast once more on the way to the calibration file: a standard deviation of 1 - 1e-7, not 1 - 1e-16.
    calibration = measure_samples({"x": (once[:100] * 1024).astype(np.float32) / np.float32(1024.0001)})
    reference = measure_samples({"x": once[100:]})
    assert smallest_p_value(calibration, reference) < 1e-9
    assert smallest_p_value(*align(calibration, reference)) > 0.01
    # What is larger than rounding stays.
    assert smallest_p_value(*align(measure_samples({"x": once[:100] * 1.001}), reference)) < 1e-9


def smallest_p_value(calibration: dict[str, Vector], reference: dict[str, Vector]) -> float:
    return min(comparison.p_value for comparison in compare(calibration, reference))
