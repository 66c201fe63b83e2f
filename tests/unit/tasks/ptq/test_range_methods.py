"""Ranges from statistics: against brute force over the values themselves, hand tables, and ONNX Runtime's calibrators."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tasks.ptq.calibrate.range_methods import METHODS, divergences, find_range, percentile_range
from tasks.ptq.calibrate.statistics import TensorStatistics, add, empty
from validators.errors import CandidateRefused

Values = NDArray[np.float32]


def made(name: str, count: int = 40_000) -> Values:
    """Values like those of a kind of layer."""
    rng = np.random.default_rng(5)
    normal = rng.normal(size=count)
    kinds: dict[str, Callable[[], NDArray[Any]]] = {
        "normal": lambda: normal * 3 + 1,
        "relu": lambda: np.maximum(normal - 0.5, 0),
        "negative": lambda: -np.abs(normal) - 0.1,
        "gelu": lambda: np.where(normal > 0, normal, -0.1 * np.abs(np.sin(normal * 3))) * 4,
        "heavy": lambda: rng.laplace(size=count) ** 3,
        "outlier": lambda: np.append(normal[1:], 60.0),
        "uniform": lambda: rng.uniform(-1, 3, count),
    }
    return kinds[name]().astype(np.float32)


KINDS = ("normal", "relu", "negative", "gelu", "heavy", "outlier", "uniform")


def of(values: NDArray[Any]) -> TensorStatistics:
    return add(empty(), values)


def squared_error(values: Values, low: float, high: float, levels: int) -> float:
    """The mean squared error of quantizing the values themselves, by ONNX's QuantizeLinear in float64."""
    step = (high - low) / (levels - 1)
    zero = np.round(-low / step)
    integers = np.clip(np.round(values.astype(np.float64) / step) + zero, 0, levels - 1)
    return float(np.mean(((integers - zero) * step - values) ** 2))


# What holds of every method.


@settings(max_examples=60)
@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
    st.sampled_from([*METHODS]),
    st.booleans(),
    st.sampled_from([15, 255, 256, 65536]),
)
def test_a_range_holds_zero_and_lies_inside_of_the_extremes(
    values: list[float], method: str, symmetric: bool, levels: int
) -> None:
    array = np.array(values, np.float32)
    low, high = find_range(of(array), method, levels=levels, symmetric=symmetric)
    largest = float(np.abs(array).max())
    least, most = (-largest, largest) if symmetric else (min(float(array.min()), 0.0), max(float(array.max()), 0.0))
    assert least <= low <= 0.0 <= high <= most
    assert low == -high or not symmetric
    assert (low < high) == bool(array.any())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("constant", [0.0, 5.0, -5.0, 1e-45, 3e38])
def test_a_constant_has_itself_as_its_range(method: str, symmetric: bool, constant: float) -> None:
    value = float(np.float32(constant))
    low, high = find_range(of(np.full(500, constant, np.float32)), method, levels=255, symmetric=symmetric)
    expected = (-abs(value), abs(value)) if symmetric else (min(value, 0.0), max(value, 0.0))
    width = of(np.array([value])).width  # what a percentile and a search cannot tell from it
    assert low == pytest.approx(expected[0], abs=width) and high == pytest.approx(expected[1], abs=width)


@pytest.mark.parametrize("method", METHODS)
def test_scaling_by_a_power_of_two_scales_the_range(method: str) -> None:
    values = made("gelu")
    low, high = find_range(of(values), method, levels=256, symmetric=False)
    scaled = find_range(of(values * np.float32(2.0**20)), method, levels=256, symmetric=False)
    assert scaled == (low * 2.0**20, high * 2.0**20)


def test_what_has_no_finite_value_has_no_range() -> None:
    with pytest.raises(CandidateRefused, match="2 values, none of them finite") as refused:
        find_range(of(np.array([np.nan, np.inf])), "minmax", levels=256, symmetric=False)
    assert refused.value.kind == "invalid"


def test_settings_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="2 levels"):
        find_range(of(made("normal")), "percentile", levels=2, symmetric=True)
    for percent in (49.0, 101.0):
        with pytest.raises(ValueError, match=f"percentile {percent}"):
            percentile_range(of(made("normal")), percent=percent, symmetric=True)


# Percentile.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("percent", [90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentiles_are_those_of_the_sorted_values_within_a_bin(kind: str, percent: float) -> None:
    values = made(kind)
    statistics = of(values)
    low, high = percentile_range(statistics, percent=percent, symmetric=True)
    assert is_quantile(high, np.abs(values), percent / 100, statistics.width) and low == -high
    low, high = percentile_range(statistics, percent=percent, symmetric=False)
    share = (1 + percent / 100) / 2
    assert high == 0 or is_quantile(high, values, share, statistics.width)
    assert low == 0 or is_quantile(-low, -values, share, statistics.width)
    assert (low == 0) == (values.min() >= 0) and (high == 0) == (values.max() <= 0)


def is_quantile(found: float, values: Values, share: float, width: float) -> bool:
    """Whether a share of the values lies below, give or take a width; a share of whole values leaves a gap to choose from."""
    ordered = np.sort(values)
    wanted = share * len(ordered)
    below, above = (ordered[min(math.ceil(wanted + shift), len(ordered)) - 1] for shift in (-1e-6, 1e-6))
    return bool(below - width <= found <= above + width)


# Squared error.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("levels", [15, 255])
def test_the_symmetric_range_loses_as_little_as_the_best_of_all(kind: str, levels: int) -> None:
    """The error is flat around its least, so that errors are compared and not ranges."""
    values = made(kind)
    low, high = find_range(of(values), "mse", levels=levels, symmetric=True)
    largest = float(np.abs(values).max())
    best = min(squared_error(values, -end, end, levels) for end in largest * np.linspace(0.01, 1, 250))
    assert squared_error(values, low, high, levels) <= 1.01 * best


@pytest.mark.parametrize("kind", KINDS)
def test_the_asymmetric_range_loses_as_little_as_the_best_of_all(kind: str) -> None:
    values = made(kind, 8000)
    low, high = find_range(of(values), "mse", levels=16, symmetric=False)
    least, most = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    shares = np.linspace(0.02, 1, 35)
    grid = [(least * a, most * b) for a in (shares if least else [0.0]) for b in (shares if most else [0.0])]
    best = min(squared_error(values, *ends, 16) for ends in grid)
    assert squared_error(values, low, high, 16) <= 1.02 * best


def test_the_best_end_of_laplace_values_is_that_of_the_formula() -> None:
    """R. Banner et al., "Post training 4-bit quantization" (2019), table of ACIQ: for Laplace, 5.03 b at 4 bits.

    16 levels over both signs; it holds for infinitely many values, and the error is flat: within a tenth.
    """
    values = np.random.default_rng(8).laplace(size=400_000).astype(np.float32)
    _, high = find_range(of(values), "mse", levels=16, symmetric=True)
    assert high == pytest.approx(5.03, rel=0.1)


# Entropy.


def direct_divergence(counts: NDArray[np.int64], start: int, end: int, groups: int) -> float:
    """As the source describes it, one step after the other."""
    p = counts[start:end].astype(np.float64)
    q = np.zeros_like(p)
    edges = [place * (end - start) // groups for place in range(groups + 1)]
    for left, right in itertools.pairwise(edges):
        group = p[left:right]
        q[left:right] = np.where(group > 0, group.sum() / max(np.count_nonzero(group), 1), 0)
    total = q.sum()
    p[0] += counts[:start].sum()
    p[-1] += counts[end:].sum()
    q[(q == 0) & (p > 0)] = 1e-4
    kept = p > 0
    return float(np.sum(p[kept] / p.sum() * np.log((p[kept] / p.sum()) / (q[kept] / total))))


def test_the_divergence_of_a_tiny_histogram_by_hand() -> None:
    """8 bins in 2 levels: P = 1 0 2 3 5 3 1 7, Q = 2 0 2 2 4 4 4 4, both of 22.

    6 bins in 2 levels: P = 1 0 2 3 5 11, with 8 outliers, of 22; Q = 1.5 0 1.5, 11/3 three times, of 14.
    """
    counts = np.array([1, 0, 2, 3, 5, 3, 1, 7])
    whole = (math.log(1 / 2) + 3 * math.log(3 / 2) + 5 * math.log(5 / 4) + 3 * math.log(3 / 4)) / 22
    whole += (math.log(1 / 4) + 7 * math.log(7 / 4)) / 22
    terms = [(1, 1.5), (2, 1.5), (3, 11 / 3), (5, 11 / 3), (11, 11 / 3)]
    cut = sum(p / 22 * math.log((p / 22) / (q / 14)) for p, q in terms)
    found = divergences(counts, np.array([0, 0, 0]), np.array([8, 6, 1]), 2)
    np.testing.assert_allclose(found, [whole, cut, np.inf], rtol=1e-12)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=12, max_size=40), st.data())
def test_divergences_are_those_of_the_definition(counts: list[int], data: st.DataObject) -> None:
    groups = data.draw(st.integers(2, 6))
    start = data.draw(st.integers(0, len(counts) - groups))
    end = data.draw(st.integers(start + groups, len(counts)))
    array = np.array(counts)
    found = float(divergences(array, np.array([start]), np.array([end]), groups)[0])
    if not array[start:end].any():
        assert found == np.inf
        return
    assert found == pytest.approx(direct_divergence(array, start, end, groups), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_symmetric_range_diverges_least_of_all_windows(kind: str) -> None:
    """But for a stride of the search: windows of neighbouring ends are tried only around the best."""
    values = made(kind)
    statistics = of(values)
    half = statistics.bins // 2
    magnitudes = statistics.counts[half:] + statistics.counts[:half][::-1]
    magnitudes[0] = magnitudes[1]
    _, high = find_range(statistics, "entropy", levels=255, symmetric=True)
    last = int(np.flatnonzero(magnitudes)[-1]) + 1
    ends = range(128, last + 1, 5)
    best = min(direct_divergence(magnitudes, 0, end, 128) for end in ends)
    chosen = min(round(high / statistics.width + 0.4999), last)
    assert direct_divergence(magnitudes, 0, chosen, 128) <= best * 1.05 + 1e-6


@pytest.mark.parametrize("kind", ["normal", "gelu", "uniform", "outlier"])
def test_asymmetric_range_diverges_little_more_than_best_window(kind: str) -> None:
    """The divergence is ragged, and the search need not meet the best of all; 17 levels, the reference takes its time."""
    statistics = of(made(kind))
    half = statistics.bins // 2
    counts = statistics.counts.copy()
    counts[half - 1 : half + 1] = counts[half - 2], counts[half + 1]
    low, high = find_range(statistics, "entropy", levels=17, symmetric=False)
    start = half - math.floor(-low / statistics.width) - 1
    chosen = direct_divergence(counts, start, half + math.floor(high / statistics.width) + 1, 17)
    first, last = np.flatnonzero(counts)[[0, -1]]
    shares = np.linspace(0.05, 1, 30)
    windows = [(half - round((half - first) * a), half + round((last + 1 - half) * b)) for a in shares for b in shares]
    best = min(direct_divergence(counts, *window, 17) for window in windows)
    assert chosen <= 1.05 * best


def test_entropy_is_blind_to_the_peak_of_zeros_that_a_relu_makes() -> None:
    values = made("relu")
    assert np.mean(values == 0) > 0.6
    positive = values[values > 0]
    for symmetric in (True, False):
        _, high = find_range(of(values), "entropy", levels=255, symmetric=symmetric)
        assert high == find_range(of(positive), "entropy", levels=255, symmetric=symmetric)[1]
        assert high > 0.7 * values.max()


def test_entropy_leaves_out_a_far_outlier_at_either_end() -> None:
    normal = np.random.default_rng(4).normal(size=100_000)
    for sign in (1.0, -1.0):
        values = (sign * np.append(normal, 40.0)).astype(np.float32)
        low, high = find_range(of(values), "entropy", levels=256, symmetric=False)
        assert 3 < max(-low, high) < 20
        assert 3 < find_range(of(values), "entropy", levels=255, symmetric=True)[1] < 20


def test_fewer_bins_than_levels_keep_the_whole_range() -> None:
    values = made("normal")
    largest = float(np.abs(values).max())
    assert find_range(of(values), "entropy", levels=65536, symmetric=True) == (-largest, largest)


# ONNX Runtime's calibrators on a model.


class Reader:
    """What ONNX Runtime calls a calibration data reader."""

    def __init__(self, batches: list[Values]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> dict[str, Values] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"x": batch}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of x: a Relu, a Sigmoid, and a product that is bounded like x."""
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("Sigmoid", ["x"], ["squashed"]),
        helper.make_node("Mul", ["x", "factor"], ["scaled"]),
        helper.make_node("Sum", ["positive", "squashed", "scaled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "some",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512])],
        [helper.make_tensor("factor", TensorProto.FLOAT, [1], [-3.7])],
    )
    path = tmp_path_factory.mktemp("ranges") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def calibrated(model: Path, kind: str, x: Values) -> dict[str, tuple[float, float, float]]:
    """Ends and width of a bin that ONNX Runtime finds, by tensor."""
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    calibrator = create_calibrator(
        model,
        augmented_model_path=str(model.with_name(f"{kind}.onnx")),
        calibrate_method=CalibrationMethod[kind],
        extra_options={"percentile": 99.9} if kind == "Percentile" else {},
    )
    with contextlib.redirect_stdout(io.StringIO()):
        calibrator.collect_data(Reader(np.split(x, 4)))
        ranges = calibrator.compute_data().data
    histograms = {} if kind == "MinMax" else calibrator.collector.histogram_dict
    widths = {name: float(found[1][1] - found[1][0]) for name, found in histograms.items()}
    return {
        name: (float(np.min(found.lowest)), float(np.max(found.highest)), widths.get(name, 0.0))
        for name, found in ranges.items()
    }


def tensors_of(x: Values) -> dict[str, Values]:
    positive, squashed, scaled = np.maximum(x, 0), (1 + np.tanh(x / 2)) / 2, x * np.float32(-3.7)
    return {"x": x, "positive": positive, "squashed": squashed, "scaled": scaled}


def test_minmax_is_that_of_onnxruntime(model: Path) -> None:
    x = made("normal", 16 * 512).reshape(16, 512)
    theirs = calibrated(model, "MinMax", x)
    for name, values in tensors_of(x).items():
        low, high = find_range(of(values), "minmax", levels=256, symmetric=False)
        expected = (min(theirs[name][0], 0.0), max(theirs[name][1], 0.0))
        # The sigmoid is another library's.
        assert (low, high) == pytest.approx(expected, rel=1e-6 if name == "squashed" else 0)


@pytest.mark.parametrize("kind", ["normal", "heavy", "uniform"])
def test_percentiles_are_those_of_onnxruntime_within_a_bin(model: Path, kind: str) -> None:
    """It reports the lower edge of its bin, cut to the extremes."""
    x = made(kind, 16 * 512).reshape(16, 512)
    theirs = calibrated(model, "Percentile", x)
    for name, values in tensors_of(x).items():
        statistics = of(values)
        low, high = find_range(statistics, "p99.9", levels=255, symmetric=True)
        their_low, their_high, width = theirs[name]
        apart = width + statistics.width
        assert max(low, min(statistics.minimum, 0.0)) == pytest.approx(min(their_low, 0.0), abs=apart)
        assert min(high, max(statistics.maximum, 0.0)) == pytest.approx(their_high, abs=apart)


def test_entropy_matches_onnxruntime_where_whole_range_is_best(model: Path) -> None:
    """It has 128 bins of both signs for 128 levels, so that it can choose only the whole range, cut to the extremes."""
    x = made("uniform", 16 * 512).reshape(16, 512)
    theirs = calibrated(model, "Entropy", x)
    for name in ("x", "scaled"):
        statistics = of(tensors_of(x)[name])
        low, high = find_range(statistics, "entropy", levels=127, symmetric=True)
        their_low, their_high, width = theirs[name]
        assert max(low, statistics.minimum) == pytest.approx(their_low, abs=max(width, statistics.width))
        assert min(high, statistics.maximum) == pytest.approx(their_high, abs=max(width, statistics.width))
