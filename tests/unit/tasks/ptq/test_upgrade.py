"""Old operators brought to the opset that passes read: the same function, or a refusal that says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.graph.edits import gather_weights, notes_of
from tasks.ptq.graph.upgrade import OPSET, upgrade_opset
from validators.errors import SourceError
from validators.graph.source_graph import check_source_graph, opset_of
from validators.samples.datasets import Arrays, TensorSpec

node = helper.make_node
Array = NDArray[Any]


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def samples(*shape: int) -> Callable[[tuple[TensorSpec, ...]], Arrays]:
    return lambda inputs: {"x": draw(*shape, seed=7)}


def save(
    path: Path,
    opset: int,
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    shape: list[Any],
    ir_version: int = 6,
) -> Path:
    """A model of `x` to `y` in old operators, its constants listed as inputs where the format wanted that."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    if ir_version < 4:
        inputs += [helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in tensors]
    graph = helper.make_graph(
        nodes, "old", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))], tensors
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version), path)
    return path


def run(model: Path, x: Array) -> Array:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    outputs: Array = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(["y"], {"x": x})[0]
    return outputs


def branch(name: str, shift: float) -> onnx.GraphProto:
    """A body with an operator that has its axes as an attribute in opset 11 and as an input from 13 on."""
    nodes = [
        node("Squeeze", ["u"], [f"{name}_s"], axes=[0]),
        node("Constant", [], [f"{name}_c"], value=numpy_helper.from_array(np.float32(shift))),
        node("Add", [f"{name}_s", f"{name}_c"], [f"{name}_out"]),
    ]
    return helper.make_graph(
        nodes, name, [], [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, [None, 6])]
    )


OLD: dict[str, tuple[int, list[onnx.NodeProto], dict[str, Array], list[Any], tuple[int, ...], int]] = {
    "image, opset 7": (
        7,
        [
            node("Conv", ["x", "w"], ["a"]),
            node("BatchNormalization", ["a", "s", "s", "s", "v"], ["b"]),
            node("Relu", ["b"], ["c"]),
            node("Upsample", ["c"], ["d"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]),
            node("AveragePool", ["d"], ["y"], kernel_shape=[2, 2]),
        ],
        {"w": draw(4, 3, 3, 3), "s": draw(4), "v": np.abs(draw(4))},
        ["n", 3, 8, 8],
        (5, 3, 8, 8),
        3,
    ),
    "softmax of opset 11 over several axes": (
        11,
        [node("MatMul", ["x", "w"], ["a"]), node("Softmax", ["a"], ["y"], axis=1)],
        {"w": draw(6, 5)},
        ["n", 4, 6],
        (5, 4, 6),
        6,
    ),
    "clip with attributes, opset 9": (
        9,
        [node("Gemm", ["x", "w", "b"], ["a"]), node("Clip", ["a"], ["y"], min=0.0, max=1.0)],
        {"w": draw(6, 5), "b": draw(5)},
        ["n", 6],
        (5, 6),
        4,
    ),
    "branches, opset 11": (
        11,
        [
            node("Unsqueeze", ["x"], ["u"], axes=[0]),
            node("ReduceSum", ["x"], ["total"], keepdims=0),
            node("Greater", ["total", "zero"], ["positive"]),
            node("If", ["positive"], ["y"], then_branch=branch("yes", 1), else_branch=branch("no", -1)),
        ],
        {"zero": np.array(0, np.float32)},
        ["n", 6],
        (5, 6),
        6,
    ),
}


@pytest.mark.parametrize("name", OLD)
def test_old_operators_become_new_ones_that_compute_the_same(tmp_path: Path, name: str) -> None:
    """On other samples than were compared; the file says what was done to it."""
    opset, nodes, constants, shape, given, ir_version = OLD[name]
    old = save(tmp_path / "old.onnx", opset, nodes, constants, shape, ir_version)
    check_source_graph(old)
    gather_weights(old, tmp_path / "gathered.onnx")
    distance = upgrade_opset(tmp_path / "gathered.onnx", tmp_path / "new.onnx", samples(*given))
    model = check_source_graph(tmp_path / "new.onnx")
    assert opset_of(model) == OPSET and [value.name for value in model.graph.input] == ["x"]
    assert 0 <= distance < 1e-5
    x = draw(*given, seed=8)
    np.testing.assert_allclose(run(tmp_path / "new.onnx", x), run(old, x), rtol=1e-5, atol=1e-6)
    assert notes_of(tmp_path / "new.onnx") == {"upgraded": f"from opset {opset} to {OPSET}, which the passes need"}


def test_weights_in_another_file_are_upgraded_too(tiny: Tiny, tmp_path: Path) -> None:
    model = tiny_model(*tiny.weights)
    model.opset_import[0].version, model.ir_version = 11, 6
    onnx.save(model, tmp_path / "old.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    upgrade_opset(tmp_path / "old.onnx", tmp_path / "new.onnx", samples(5, 64))
    assert not onnx.load(tmp_path / "new.onnx", load_external_data=False).graph.initializer[0].external_data


def test_what_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    """Hardmax of opset 11 takes all axes from the given one on as one; onnx 1.23 makes that one axis."""
    old = save(tmp_path / "old.onnx", 11, [node("Hardmax", ["x"], ["y"], axis=1)], {}, ["n", 3, 4])
    with pytest.raises(SourceError, match="its output 'y' differs by 1") as caught:
        upgrade_opset(old, tmp_path / "new.onnx", samples(5, 3, 4))
    assert "opset 11" in caught.value.found and f"opset {OPSET}" in caught.value.fix


def test_what_cannot_be_upgraded_or_run_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """The reason is that of the converter, or that of the runtime."""
    old = save(tmp_path / "old.onnx", 9, [node("MatMul", ["x", "w"], ["y"])], {"w": draw(6, 5)}, ["n", 7])
    with pytest.raises(SourceError, match="opset 9"):
        upgrade_opset(old, tmp_path / "new.onnx", samples(5, 7))
    model = onnx.load(old)
    model.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(model, tmp_path / "unknown.onnx")
    with pytest.raises(SourceError, match="opset 9"):
        upgrade_opset(tmp_path / "unknown.onnx", tmp_path / "new.onnx", samples(5, 7))


def test_values_that_are_no_numbers_are_compared_too(tmp_path: Path) -> None:
    """NaN where the source has NaN is the same; samples with faults are for the checks of the data to find."""
    old = save(tmp_path / "old.onnx", 9, [node("Log", ["x"], ["y"])], {}, ["n", 6])
    assert upgrade_opset(old, tmp_path / "new.onnx", samples(5, 6)) == 0
