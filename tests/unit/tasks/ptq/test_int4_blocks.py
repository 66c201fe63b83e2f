"""INT4 in blocks as TensorRT reads it: the numbers against ONNX's own reader, the file against its rules."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tensorrt_rules import check_form, draw, op

from tasks.ptq.graph.edits import model_bytes
from tasks.ptq.weight_only.int4_blocks import dequantize_blocks, positive_scales, quantize_blocks, round_blocks


@pytest.mark.parametrize(
    ("low", "high", "scale"),
    [(-8.0, 7.0, 1.0), (-8.0, 14.0, 2.0), (-16.0, 7.0, 2.0), (-1.0, 0.0, 0.125), (3.0, 3.5, 0.5), (0.0, 0.0, 0.0)],
)
def test_positive_scales_by_hand(low: float, high: float, scale: float) -> None:
    assert positive_scales(np.array(low), np.array(high)).tolist() == scale


@settings(derandomize=True, database=None, max_examples=50)
@given(st.integers(0, 2**32 - 1), st.sampled_from([np.float16, np.float32]), st.sampled_from([64, 128]))
def test_blocks_read_back_as_the_nearest_numbers_of_their_grid(seed: int, dtype: Any, block_size: int) -> None:
    """The file's bytes through ONNX's own reader and DequantizeLinear, against rounding in float64."""
    rng = np.random.default_rng(seed)
    weight = (rng.normal(size=(256, 5)) * rng.lognormal(size=5)).astype(dtype)
    weight[:block_size, 0] = 0
    blocked = dequantize_blocks(round_blocks(weight, block_size), dtype, ("q", "s", "w"), "dq")
    scales = numpy_helper.to_array(blocked.scales)
    assert scales.dtype == dtype and (scales > 0).all() and blocked.codes.data_type == TensorProto.INT4
    by_row = np.repeat(scales.astype(np.float64), block_size, axis=0)
    expected = np.clip(np.rint(weight.astype(np.float64) / by_row), -8, 7)
    np.testing.assert_array_equal(numpy_helper.to_array(blocked.codes).astype(np.float64), expected)
    # No value is cut, but by what the scale lost in its own rounding.
    loss = np.abs(expected * by_row - weight.astype(np.float64))
    assert (loss <= by_row * (0.5 + 8 * np.finfo(dtype).eps)).all()
    graph = helper.make_graph(
        [blocked.node],
        "g",
        [],
        [helper.make_tensor_value_info("w", blocked.scales.data_type, [256, 5])],
        [blocked.codes, blocked.scales],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    read = np.asarray(ReferenceEvaluator(model).run(None, {})[0])
    np.testing.assert_array_equal(read, (expected * by_row).astype(dtype))


def test_blocks_that_the_format_cannot_hold_are_an_error() -> None:
    """Scales below zero, as MatMulNBits has them, and blocks that K does not fill."""
    good = round_blocks(draw(128, 4), 64)
    negative = replace(good, grid=replace(good.grid, scales=-good.grid.scales))
    for bad in (negative, replace(good, codes=good.codes[:100]), replace(good, symmetric=False)):
        with pytest.raises(ValueError, match="expected symmetric ones"):
            dequantize_blocks(bad, np.float32, ("q", "s", "w"), "dq")


def test_shared_weight_is_stored_once_and_transposed_one_dropped(tmp_path: Path) -> None:
    constants = {"w": draw(128, 128), "t": draw(64, 128)}
    nodes = [op("MatMul", "x w", "a"), op("MatMul", "a w", "b"), op("Transpose", "t", "k", perm=[1, 0])]
    nodes += [op("MatMul", "b k", "y")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 128])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    report = quantize_blocks(tmp_path / "m.onnx", tmp_path / "v.onnx", block_size=64)
    kinds = check_form(tmp_path / "v.onnx", "int4")
    assert len(report.quantized) == 3 and kinds == {"MatMul": 3, "DequantizeLinear": 2}
    assert model_bytes(tmp_path / "v.onnx") < model_bytes(tmp_path / "m.onnx") / 5
