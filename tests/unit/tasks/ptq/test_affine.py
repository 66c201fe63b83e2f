"""Scales, zero points and stored integers against tables made by hand, against the runtime's kernel, and as properties."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.eight_bit.affine import (
    BIAS_LIMIT,
    ActivationType,
    WeightBits,
    fit_e4m3,
    fit_range,
    fit_weight,
    read_weight,
    smallest_weight_scale,
    store_bias,
    store_weight,
)

ENDS = st.floats(-(2.0**100), 2.0**100, allow_nan=False, allow_subnormal=False, width=32)


@pytest.mark.parametrize(
    ("low", "high", "kind", "symmetric", "scale", "zero"),
    [
        (0.0, 255.0, "uint8", False, 1.0, 0),
        (-255.0, 0.0, "uint8", False, 1.0, 255),
        (-51.0, 204.0, "uint8", False, 1.0, 51),
        (-51.0, 204.0, "int8", False, 1.0, -77),
        (0.0, 127.5, "int8", False, 0.5, -128),
        (10.0, 510.0, "uint8", False, 2.0, 0),  # stretched to hold zero
        (-510.0, -10.0, "uint8", False, 2.0, 255),
        (-127.0, 50.0, "int8", True, 1.0, 0),
        (-127.0, 50.0, "uint8", True, 1.0, 128),
        (0.0, 254.0, "int8", True, 2.0, 0),
        (0.0, 0.0, "uint8", False, 1.0, 0),  # no width: no scale of zero
        (0.0, 0.0, "int8", False, 1.0, -128),
        (0.0, 0.0, "int8", True, 1.0, 0),
        (-2.5, 252.5, "uint8", False, 1.0, 2),  # the zero point is halfway: to the even one
        (-3.5, 251.5, "uint8", False, 1.0, 4),
    ],
)
def test_ranges_by_hand(
    low: float, high: float, kind: ActivationType, symmetric: bool, scale: float, zero: int
) -> None:
    fit = fit_range(low, high, kind, symmetric=symmetric)
    assert (float(fit.scale), fit.zero, fit.scale.dtype, fit.scale.shape) == (scale, zero, np.float32, ())


@pytest.mark.parametrize(
    ("kind", "stored"),
    [("uint8", [0, 0, 10, 10, 12, 12, 255, 255]), ("int8", [-128, -128, -118, -118, -116, -116, 127, 127])],
)
def test_numbers_by_hand(kind: ActivationType, stored: list[int]) -> None:
    """Scale 0.5, ten steps below zero; halves go to the even neighbour before the zero point is added; ends saturate."""
    fit = fit_range(-5.0, 122.5, kind)
    real = [-100.0, -5.0, -0.25, 0.25, 0.75, 1.25, 122.5, 1e9]
    assert fit.store(real).tolist() == stored
    assert fit.store(real).dtype == np.dtype(kind)
    assert fit.read(stored).tolist() == [-5.0, -5.0, 0.0, 0.0, 1.0, 1.0, 122.5, 122.5]


def test_weights_by_hand() -> None:
    weight = np.array([[127.0, -63.5, 0.5, 1.5], [-2.54, 0.0, 1.0, 0.01]], np.float32)
    assert fit_weight(weight, None).tolist() == 1.0
    np.testing.assert_allclose(fit_weight(weight, 0), [1.0, 0.02], rtol=1e-6)
    np.testing.assert_allclose(fit_weight(weight, 1), np.array([127.0, 63.5, 1.0, 1.5]) / 127, rtol=1e-6)
    assert store_weight(weight, fit_weight(weight, 0), 0).tolist() == [[127, -64, 0, 2], [-127, 0, 50, 0]]
    assert store_weight(weight, fit_weight(weight, None), None).tolist() == [[127, -64, 0, 2], [-3, 0, 1, 0]]
    seven = fit_weight(weight, 0, 7)
    np.testing.assert_allclose(seven, [127 / 64, 2.54 / 64], rtol=1e-6)
    assert store_weight(weight, seven, 0, 7).tolist() == [[64, -32, 0, 1], [-64, 0, 25, 0]]
    assert fit_weight(np.zeros((2, 3), np.float32), 0).tolist() == [1.0, 1.0]


def test_a_bias_fits_its_32_bits() -> None:
    """Weights of a channel that are all but zero would give a scale with which its bias does not."""
    bias, input_scale = np.array([3.0, -1.0, 0.0], np.float32), np.float32(0.01)
    weight = np.array([[1e-12, 0.0], [12.7, 1.0], [0.0, 0.0]], np.float32)
    smallest = smallest_weight_scale(bias, np.asarray(input_scale))
    scales = fit_weight(weight, 0, smallest=smallest)
    total = scales * input_scale
    stored = store_bias(bias, total)
    np.testing.assert_allclose(stored * total.astype(np.float64), bias, rtol=1e-3)
    assert np.abs(stored.astype(np.int64)).max() <= BIAS_LIMIT * 1.01
    np.testing.assert_allclose(scales[1], 0.1, rtol=1e-6)
    plain = fit_weight(weight, 0) * input_scale
    assert abs(store_bias(bias, plain)[0] * float(plain[0]) - 3.0) > 2.9


def test_pairs_of_seven_bit_products_fit_sixteen_bits() -> None:
    """The instruction adds two products of UINT8 and INT8 in INT16; with 8 bits they do not fit."""
    weight = np.array([1.0, -1.0], np.float32)
    worst = {}
    bits: WeightBits
    for bits in (7, 8):
        stored = store_weight(weight, fit_weight(weight, None, bits), None, bits)
        worst[bits] = 2 * 255 * int(np.abs(stored.astype(int)).max())
    assert worst[7] <= np.iinfo(np.int16).max < worst[8]


def test_fp8_scales_by_hand() -> None:
    assert fit_e4m3([448.0, 896.0, 0.0, 1.0]).tolist() == [1.0, 2.0, 1.0, np.float32(1 / 448)]
    assert fit_e4m3(1.0, np.float16).dtype == np.float16


@pytest.mark.parametrize("bad", [(float("nan"), 1.0), (0.0, float("inf")), (2.0, 1.0)])
def test_no_range_is_refused(bad: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="expected finite ends in order"):
        fit_range(*bad, "uint8")


@given(ENDS, ENDS, st.sampled_from(["uint8", "int8"]), st.booleans(), st.sampled_from([np.float32, np.float16]))
def test_any_range_holds_zero_exactly_and_values_to_half_a_step(
    one: float, other: float, kind: ActivationType, symmetric: bool, dtype: Any
) -> None:
    if dtype == np.float16:
        one, other = one / 2.0**86, other / 2.0**86
    low, high = sorted((one, other))
    fit = fit_range(low, high, kind, symmetric=symmetric, dtype=dtype)
    assert fit.scale.dtype == dtype and fit.scale > 0 and np.isfinite(fit.scale)
    assert fit.read(fit.store([0.0])).tolist() == [0.0]
    values = np.linspace(low, high, 50).astype(np.float32)
    # A float16 scale is right to 2**-11, which over 255 steps is an eighth of one.
    allowed = float(fit.scale) * (0.5 + (0.13 if dtype == np.float16 else 1e-3))
    assert np.abs(fit.read(fit.store(values)).astype(np.float64) - values).max() <= allowed


@given(st.integers(0, 2**32 - 1), st.sampled_from([None, 0, 1]), st.sampled_from([7, 8]))
def test_a_stored_weight_is_right_to_half_a_step(seed: int, axis: int | None, bits: WeightBits) -> None:
    weight = (np.random.default_rng(seed).normal(size=(5, 7)) * 10.0 ** np.arange(-3, 4)).astype(np.float32)
    scales = fit_weight(weight, axis, bits)
    step = scales if axis is None else scales.reshape([-1 if i == axis else 1 for i in range(2)])
    error = np.abs(read_weight(store_weight(weight, scales, axis, bits), scales, axis) - weight)
    assert (error <= step * 0.5001).all()


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_stored_numbers_are_those_of_the_runtime(kind: ActivationType) -> None:
    """ONNX Runtime's QuantizeLinear and DequantizeLinear, on halves as well, number for number."""
    fit = fit_range(-3.0, 13.0, kind)
    constants = [
        numpy_helper.from_array(fit.scale, "scale"),
        numpy_helper.from_array(np.array(fit.zero, kind), "zero"),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy"]
    stored_type = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    ends.append(helper.make_tensor_value_info("q", stored_type, ["n"]))
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = np.random.default_rng(0).normal(5, 8, 5000).astype(np.float32)
    x[:600] = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * fit.scale
    y, q = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(fit.store(x), q)
    np.testing.assert_array_equal(fit.read(fit.store(x)), y)


LARGE = """
import resource, sys
import numpy as np
from tasks.ptq.eight_bit import affine
from tasks.ptq.eight_bit.smooth import by_factors

weight = np.memmap(sys.argv[1], np.float32, "r", shape=(4096, 8192))
small = weight[:8]
affine.store_e4m3(small, affine.fit_e4m3_weight(small, 1), 1)
free = int(next(line for line in open("/proc/self/status") if line.startswith("VmData")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (free + 185_000_000,) * 2)
assert affine.store_weight(weight, affine.fit_weight(weight, 1), 1).nbytes == 4096 * 8192
assert affine.store_e4m3(weight, affine.fit_e4m3_weight(weight, 1), 1).nbytes == 4096 * 8192
assert by_factors(np.multiply, weight, np.ones((4096, 1))).nbytes == 4 * 4096 * 8192
"""


def test_a_large_weight_is_copied_once(tmp_path: Path) -> None:
    """134 MB that lie in a file, with room for 185 MB; the kernel counts what no file backs."""
    np.ones((4096, 8192), np.float32).tofile(tmp_path / "weight")
    words = [sys.executable, "-c", LARGE, str(tmp_path / "weight")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
