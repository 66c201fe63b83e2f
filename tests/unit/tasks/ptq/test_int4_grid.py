"""The INT4 grid: scales, zero points, rounding and bytes by tables made by hand, and what the kernel makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tasks.ptq.weight_only.int4_grid import (
    COLUMNS_AT_ONCE,
    Grid,
    QuantizedWeight,
    as_blocks,
    encode,
    fit_grid,
    pack,
    quantize_on,
    round_to_nearest,
)

Floats = NDArray[np.float64]


def column(values: list[float], rows: int = 16) -> Floats:
    """One output channel: these weights, then zeros."""
    return np.array([*values, *[0.0] * (rows - len(values))])[:, None]


@pytest.mark.parametrize(
    ("values", "scale", "codes"),
    [
        # 4 has the code 0: the scale is 4 / -8. -3.5 -> 7 -> 15; -3.9 -> 7.8 -> 8 saturates; 0.5 -> -1 -> 7.
        ([4.0, -3.5, -3.9, 0.5, 0.0], -0.5, [0, 15, 15, 7, 8]),
        # Halves go to the even step: 0.25 -> -0.5 -> 0 -> 8; 0.75 -> -1.5 -> -2 -> 6; 1.25 -> -2.5 -> -2; -0.75 -> 1.5 -> 2.
        ([4.0, 0.25, 0.75, 1.25, -0.75], -0.5, [0, 8, 6, 6, 10]),
        # The greatest magnitude is negative (a draw goes to it): the scale is positive. 1.75 -> 7 -> 15; 2 -> 8 saturates.
        ([-2.0, 1.75, 2.0, -0.3], 0.25, [0, 15, 15, 7]),
        # Nothing but zeros.
        ([0.0], 1.0, [8]),
    ],
)
def test_symmetric_by_hand(values: list[float], scale: float, codes: list[int]) -> None:
    """The greatest magnitude over -8, with its sign; the zero point is 8."""
    weight = round_to_nearest(column(values), block_size=16, symmetric=True, dtype=np.float32)
    assert weight.grid.scales.tolist() == [[scale]] and weight.grid.zero_points.tolist() == [[8.0]]
    assert weight.codes[: len(codes), 0].tolist() == codes and (weight.codes[len(codes) :] == 8).all()


@pytest.mark.parametrize(
    ("values", "scale", "zero", "codes"),
    [
        # -3 to 12 in fifteen steps of 1. Halves: 0.5 -> 0 -> 3; 1.5 -> 2 -> 5; -0.5 -> 0 -> 3; 2.5 -> 2 -> 5.
        ([-3.0, 12.0, 0.5, 1.5, -0.5, 2.5], 1.0, 3, [0, 15, 3, 5, 3, 5]),
        # All positive, the whole block: the range starts at zero.
        ([15.0, *[7.5] * 14, 11.2], 1.0, 0, [15, *[8] * 14, 11]),
        ([15.0, 7.5, 3.75, 11.2], 1.0, 0, [15, 8, 4, 11]),
        # All negative: it ends at zero.
        ([-30.0, *[-3.0] * 15], 2.0, 15, [0, *[13] * 15]),
        ([-30.0, -3.0, -1.0], 2.0, 15, [0, 13, 15]),
        # The zero point is rounded: 1 / (16 / 15) = 0.9375 -> 1; then 15 / (16 / 15) = 14.06 -> 14 + 1.
        ([-1.0, 15.0], 16 / 15, 1, [0, 15]),
        # As here, to even: -7.5 / -1 = 7.5 -> 8; 7.5 -> 8 + 8 saturates, -7.5 -> -8 + 8.
        ([-7.5, 7.5], 1.0, 8, [0, 15]),
        ([0.0], 1.0, 0, [0]),
    ],
)
def test_asymmetric_by_hand(values: list[float], scale: float, zero: int, codes: list[int]) -> None:
    """Fifteen steps over the range, zero included, and a zero point that is a code."""
    weight = round_to_nearest(column(values), block_size=16, symmetric=False, dtype=np.float32)
    assert weight.grid.scales.tolist() == [[float(np.float32(scale))]]
    assert weight.grid.zero_points.tolist() == [[float(zero)]]
    assert weight.codes[: len(codes), 0].tolist() == codes
    assert (weight.codes[len(codes) :] == zero).all(), "zeros are exact"


def test_fractions_of_zero_points_shift_the_rounding() -> None:
    """Code = round(w / scale + zero): 0.2 + 3.4 -> 4, -0.2 + 3.4 -> 3; on tens of codes it is clipped."""
    values, scale, zero = np.array([0.2, -0.2, 1.2, 20.0, -20.0]), np.ones(5), np.full(5, 3.4)
    assert encode(values, scale, zero).tolist() == [4, 3, 5, 15, 0]


def test_each_block_of_each_column_has_its_own_range() -> None:
    """Two columns, 20 rows in blocks of 16: the second block holds four rows."""
    weight = np.zeros((20, 2))
    weight[0], weight[16] = [8.0, -4.0], [-1.0, 2.0]
    done = round_to_nearest(weight, block_size=16, symmetric=True, dtype=np.float32)
    assert done.grid.scales.tolist() == [[-1.0, 0.5], [0.125, -0.25]]
    assert done.codes.shape == (20, 2) and (done.codes[[0, 16]] == 0).all()
    np.testing.assert_array_equal(done.dequantized(), weight)


def test_a_narrower_range_saturates() -> None:
    """Half of the range: -3..12 becomes -1.5..6, steps of 0.5, zero at 3; 12 ends at (15 - 3) / 2 = 6."""
    grid = fit_grid(as_blocks(column([-3.0, 12.0]), 16), symmetric=False, dtype=np.float32, shrink=0.5)
    assert (grid.scales.item(), grid.zero_points.item()) == (0.5, 3.0)
    assert quantize_on(grid, column([-3.0, 12.0]), 16, symmetric=False).dequantized()[:2, 0].tolist() == [-1.5, 6.0]


def test_scales_are_those_that_are_stored() -> None:
    """Codes are chosen for the float16 scale, not for the exact one; one that float16 rounds to zero becomes 1."""
    grid = fit_grid(as_blocks(column([0.7]), 16), symmetric=True, dtype=np.float16)
    assert grid.scales.item() == float(np.float16(-0.0875)) != -0.0875
    tiny = fit_grid(as_blocks(column([1e-9]), 16), symmetric=True, dtype=np.float16)
    assert tiny.scales.item() == 1.0


def test_packing_by_hand() -> None:
    """K = 40 in three blocks of 16, N = 2: the low four bits come first, padding is the zero point, rows end on a byte."""
    codes = np.zeros((40, 2), np.uint8)
    codes[:4, 0], codes[38:, 0] = [1, 2, 3, 15], [9, 10]
    codes[16:18, 1] = [7, 8]
    zeros = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    scales = np.array([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    packed = pack(QuantizedWeight(codes, Grid(scales, zeros), 16, symmetric=False), np.float32)
    assert packed.codes.dtype == np.uint8 and packed.codes.shape == (2, 3, 8)
    assert packed.codes[0].tolist() == [
        [0x21, 0xF3, 0, 0, 0, 0, 0, 0],
        [0] * 8,
        [0, 0, 0, 0xA9, 0x33, 0x33, 0x33, 0x33],
    ]
    assert packed.codes[1].tolist() == [[0] * 8, [0x87, *[0] * 7], [0, 0, 0, 0, 0x66, 0x66, 0x66, 0x66]]
    assert packed.scales.dtype == np.float32 and packed.scales.tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.zero_points is not None and packed.zero_points.dtype == np.uint8
    assert packed.zero_points.tolist() == [0x21, 0x03, 0x54, 0x06]


def test_zero_points_that_are_fractions_stay_floats() -> None:
    """One fraction is enough; a symmetric weight has no zero points."""
    codes, scales = np.zeros((16, 2), np.uint8), np.ones((1, 2))
    packed = pack(QuantizedWeight(codes, Grid(scales, np.array([[3.0, 4.5]])), 16, symmetric=False), np.float16)
    assert packed.zero_points is not None and packed.zero_points.dtype == np.float16
    assert packed.zero_points.tolist() == [3.0, 4.5]
    assert (
        pack(QuantizedWeight(codes, Grid(scales, np.full((1, 2), 8.0)), 16, symmetric=True), np.float16).zero_points
        is None
    )


def run_kernel(weight: QuantizedWeight, x: NDArray[Any]) -> Floats:
    """`x @ weight` by the MatMulNBits kernel at accuracy level 0, float64."""
    packed = pack(weight, x.dtype)
    arrays = {"b": packed.codes, "scales": packed.scales}
    if packed.zero_points is not None:
        arrays["zeros"] = packed.zero_points
    (k, n), kind = weight.codes.shape, helper.np_dtype_to_tensor_dtype(x.dtype)
    options = {"K": k, "N": n, "bits": 4, "block_size": weight.block_size, "accuracy_level": 0}
    graph = helper.make_graph(
        [helper.make_node("MatMulNBits", ["x", *arrays], ["y"], domain="com.microsoft", **options)],
        "product",
        [helper.make_tensor_value_info("x", kind, ["rows", k])],
        [helper.make_tensor_value_info("y", kind, ["rows", n])],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.checker.check_model(model)
    run = ort.SessionOptions()
    run.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), run, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0], np.float64)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("zeros", ["none", "codes", "fractions"])
@pytest.mark.parametrize(("k", "block_size"), [(64, 16), (96, 32), (40, 32), (128, 128), (200, 64), (20, 32)])
def test_the_kernel_reads_the_same_weight(dtype: Any, zeros: str, k: int, block_size: int) -> None:
    """Its product is that of the dequantized weight in float64, to the rounding of its own arithmetic."""
    rng = np.random.default_rng(k + block_size)
    weight, x = rng.normal(size=(k, 9)), rng.normal(size=(5, k)).astype(dtype)
    done = round_to_nearest(weight, block_size=block_size, symmetric=zeros == "none", dtype=dtype)
    if zeros == "fractions":
        shifted = (done.grid.zero_points + rng.uniform(-0.4, 0.4, done.grid.zero_points.shape)).astype(dtype)
        done = quantize_on(Grid(done.grid.scales, shifted.astype(np.float64)), weight, block_size, symmetric=False)
    expected = x.astype(np.float64) @ done.dequantized()
    tolerance = 2e-5 if dtype == np.float32 else 2e-2
    np.testing.assert_allclose(run_kernel(done, x), expected, rtol=0, atol=tolerance * np.abs(expected).max())


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=40),
    st.sampled_from([16, 32]),
    st.booleans(),
    st.sampled_from([np.float32, np.float16]),
)
@settings(max_examples=200)
def test_no_code_is_nearer(values: list[float], block_size: int, symmetric: bool, dtype: Any) -> None:
    """Of the sixteen values that a block can stand for, each weight has the nearest; zero stays zero."""
    weight = np.array(values)[:, None]
    done = round_to_nearest(weight, block_size=block_size, symmetric=symmetric, dtype=dtype)
    for row, value in enumerate(values):
        scale, zero = done.grid.scales[row // block_size, 0], done.grid.zero_points[row // block_size, 0]
        reachable = (np.arange(16) - zero) * scale
        seen = done.dequantized()[row, 0]
        assert abs(seen - value) <= np.abs(reachable - value).min() + abs(scale) * 1e-9
        assert value != 0 or seen == 0
        # Half a step, but for the end that has no code: the symmetric one, or a zero point that was rounded.
        assert abs(seen - value) <= abs(scale) * 1.01 + 1e-6


def test_columns_in_several_chunks_are_those_of_one() -> None:
    """The last chunk is not full, and no column comes twice or in another place."""
    weight = np.random.default_rng(0).normal(size=(32, COLUMNS_AT_ONCE + 3))
    whole = round_to_nearest(weight, block_size=32, symmetric=False, dtype=np.float32)
    for columns in (slice(0, 5), slice(COLUMNS_AT_ONCE - 2, COLUMNS_AT_ONCE + 3)):
        part = round_to_nearest(weight[:, columns], block_size=32, symmetric=False, dtype=np.float32)
        np.testing.assert_array_equal(whole.codes[:, columns], part.codes)
        np.testing.assert_array_equal(whole.grid.scales[:, columns], part.grid.scales)
