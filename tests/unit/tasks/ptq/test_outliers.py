"""Outlier ratios: hand-computed on small tensors, along the channels of each operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.outliers import Outliers, channel_amax, find_outliers, outlier_ratio


@pytest.mark.parametrize(
    ("channels", "ratio"),
    [
        ([2.0, 4.0, 8.0], 2.0),  # 8 / 4
        ([1.0, 1.0, 3.0, 100.0], 50.0),  # 100 / ((1 + 3) / 2)
        ([5.0], 1.0),
        ([0.0, 0.0, 7.0], None),  # more than half are zero: nothing to compare with
        ([1.0, np.inf, 2.0], None),
        ([1.0, np.nan, 2.0], None),
        ([], None),
    ],
)
def test_the_ratio_is_the_largest_over_the_median(channels: list[float], ratio: float | None) -> None:
    assert outlier_ratio(np.array(channels)) == ratio


@given(
    arrays(np.float32, 9, elements=st.floats(0.125, 1024, width=32)),
    st.sampled_from([0.25, 2.0, 512.0]),  # powers of two: exact
)
def test_the_ratio_is_at_least_one_and_knows_no_unit(channels: np.ndarray, unit: float) -> None:
    ratio = outlier_ratio(channels.astype(np.float64))
    assert ratio is not None and ratio >= 1 and outlier_ratio(channels.astype(np.float64) * unit) == ratio


def test_channels_lie_along_the_axes_that_are_kept() -> None:
    array = np.array([[[1, -9], [2, 3]], [[-4, 5], [6, -7]]], np.int8)
    assert channel_amax(array, (0,)).tolist() == [9, 7]
    assert channel_amax(array, (-1,)).tolist() == [6, 9]
    assert channel_amax(array, (0, 1)).tolist() == [9, 3, 5, 7]
    assert channel_amax(np.array([[-128]], np.int8), (0,)).tolist() == [128]  # not -128, as INT8 has no 128


def save(path: Path, nodes: list[onnx.NodeProto], inputs: dict[str, list[int]], weights: dict[str, np.ndarray]) -> Path:
    graph = helper.make_graph(
        nodes,
        "some",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_products_have_channels_along_the_last_axis_of_input(tmp_path: Path) -> None:
    """Of x the channels' largest are 2, 4 and 12 over both batches: 12 / 4. Weights by output channel."""
    weight = np.array([[1, 8], [-2, 0], [0, 1]])  # largest 2 and 8: 8 / 5
    gemm = np.array([[3, 1], [0, -1], [1, 0]])  # transposed: rows 3, 1, 1: 3 / 1
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Gemm", ["a", "g"], ["b"], name="gemm", transB=1),
        helper.make_node("Add", ["b", "c"], ["y"], name="sum"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, 3]}, {"w": weight, "g": gemm, "c": np.ones(3)})
    batches = [{"x": np.array([[1, -4, 0]], np.float32)}, {"x": np.array([[2, 3, -12]], np.float32)}]
    found = find_outliers(path, ("product", "gemm", "sum"), batches)
    # a = [1, -4, 0] w = [9, 8], and [2, 3, -12] w = [-4, 4]: largest 9 and 8, 9 / 8.5.
    assert found == {"product": Outliers(8 / 5, 3.0), "gemm": Outliers(3.0, 9 / 8.5)}
    assert find_outliers(path, ("gemm",), batches) == {"gemm": found["gemm"]}


def test_convolutions_have_channels_along_the_second_axis(tmp_path: Path) -> None:
    """Three input channels, largest 1, 2 and 20 wherever in the picture: 20 / 2. Two kernels, largest 6 and 2: 6 / 4."""
    kernel = np.zeros((2, 3, 1, 1))
    kernel[0, 1], kernel[1, 2] = -6, 2
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    path = save(tmp_path / "m.onnx", [node], {"x": [1, 3, 2, 2]}, {"w": kernel})
    x = np.array([[[[1, 0], [0, -1]], [[0, 2], [1, 1]], [[-20, 0], [0, 3]]]], np.float32)
    assert find_outliers(path, ("conv",), [{"x": x}]) == {"conv": Outliers(6 / 4, 10.0)}


def test_nodes_without_weights_have_no_ratio(tmp_path: Path) -> None:
    """A product of two activations, and a sum with a constant."""
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"], name="scores"),
        helper.make_node("Add", ["a", "c"], ["y"], name="sum"),
    ]
    path = save(tmp_path / "m.onnx", nodes, {"x": [3, 3]}, {"c": np.ones(3)})
    assert find_outliers(path, ("scores", "sum"), [{"x": np.eye(3, dtype=np.float32)}]) == {}
