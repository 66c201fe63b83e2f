"""Small edits of a graph: names, constants, channels, Gemm; each against what it says or the numbers before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.graph.edits import (
    attribute,
    drop_unused_initializers,
    gather_weights,
    initializers,
    model_bytes,
    name_nodes,
    output_channel_axis,
    split_gemm,
    weighted_nodes,
)
from validators.errors import SourceError
from validators.graph.stored import save_model

FLOAT = TensorProto.FLOAT
Array = NDArray[Any]


def make_model(
    nodes: list[onnx.NodeProto], inputs: dict[str, list[Any]], outputs: list[str], constants: dict[str, Array]
) -> onnx.ModelProto:
    """A float model of opset 21."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def run(model: onnx.ModelProto, **inputs: Array) -> list[Array]:
    """All outputs, computed without any optimization."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("names", "expected", "renamed"),
    [
        (["a", "b", "c"], ["a", "b", "c"], 0),
        (["", "", ""], ["Relu_0", "Relu_1", "Relu_2"], 3),
        (["a", "a", "a"], ["a", "Relu_1", "Relu_2"], 2),
    ],
)
def test_every_node_gets_a_name_of_its_own(names: list[str], expected: list[str], renamed: int) -> None:
    """Names given stay where they are free, and the count says how many did not."""
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    graph = helper.make_graph(nodes, "graph", [], [])
    assert name_nodes(graph) == renamed
    assert [node.name for node in graph.node] == expected


def test_constants_that_nothing_reads_are_dropped() -> None:
    """One read by a node, by a node of a nested branch, or by an output stays; the rest goes, and is counted."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(name, FLOAT, None)])

    deep = helper.make_node("Add", ["x", "in_deep_branch"], ["deep"], name="deep")
    inner = helper.make_node(
        "If",
        ["yes"],
        ["then"],
        name="inner",
        then_branch=branch("deep", deep),
        else_branch=branch("plain", helper.make_node("Identity", ["x"], ["plain"], name="plain")),
    )
    outer = helper.make_node(
        "If",
        ["yes"],
        ["chosen"],
        name="outer",
        then_branch=branch("then", inner),
        else_branch=branch("else", helper.make_node("Add", ["x", "in_branch"], ["else"], name="else")),
    )
    kept = ["yes", "in_node", "in_branch", "in_deep_branch", "as_output"]
    constants = {name: draw(2) for name in [*kept[1:], "nobody", "nobody_either"]} | {"yes": np.array(True)}
    nodes = [outer, helper.make_node("Add", ["chosen", "in_node"], ["y"], name="add")]
    model = make_model(nodes, {"x": [2]}, ["y", "as_output"], constants)
    before = run(model, x=draw(2, seed=1))
    assert drop_unused_initializers(model.graph) == 2
    assert sorted(initializers(model.graph)) == sorted(kept)
    for one, other in zip(run(model, x=draw(2, seed=1)), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert drop_unused_initializers(model.graph) == 0


@pytest.mark.parametrize(
    ("kind", "attributes", "shape", "axis"),
    [
        ("MatMul", {}, (8, 5), 1),
        ("MatMul", {}, (2, 3, 8, 5), 3),
        ("Gemm", {}, (8, 5), 1),
        ("Gemm", {"transB": 0}, (8, 5), 1),
        ("Gemm", {"transB": 1}, (5, 8), 0),
        ("Conv", {}, (5, 8, 3), 0),
        ("Conv", {"group": 4}, (8, 2, 3, 3), 0),
    ],
)
def test_output_channels_lie_along_the_axis_that_is_not_summed(
    kind: str, attributes: dict[str, Any], shape: tuple[int, ...], axis: int
) -> None:
    """By the table, and by what it is for: scaling the weight there scales the channels of the output."""
    weight = draw(*shape)
    node = helper.make_node(kind, ["x", "w"], ["y"], name="n", **attributes)
    tensor = numpy_helper.from_array(weight, "w")
    assert output_channel_axis(node, tensor) == axis
    x = {"MatMul": draw(6, 8), "Gemm": draw(6, 8), "Conv": draw(2, 8, *[7] * (len(shape) - 2))}[kind]
    scales = np.linspace(1, 4, shape[axis], dtype=np.float32)
    spread = scales.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    plain, scaled = (
        run(make_model([node], {"x": list(x.shape)}, ["y"], {"w": values}), x=x)[0]
        for values in (weight, weight * spread)
    )
    channels = 1 if kind == "Conv" else plain.ndim - 1
    outward = scales.reshape([-1 if i == channels else 1 for i in range(plain.ndim)])
    np.testing.assert_allclose(scaled, plain * outward, rtol=1e-5, atol=1e-5)


def test_only_constant_float_matrices_are_weights(tiny: Tiny) -> None:
    """Products of activations, integer weights, vectors and weights on the left are left out, in graph order."""
    found = [(node.name, weight.name) for node, weight in weighted_nodes(tiny_model(*tiny.weights).graph)]
    assert found == [("first_matmul", "first"), ("second_matmul", "second")]
    constants = {"w": draw(4, 4), "vector": draw(4), "double": draw(4, 4).astype(np.float64)}
    nodes = [
        helper.make_node("MatMul", ["x", "x"], ["a"], name="two_activations"),
        helper.make_node("MatMul", ["w", "x"], ["b"], name="weight_on_the_left"),
        helper.make_node("MatMul", ["x", "vector"], ["c"], name="vector"),
        helper.make_node("MatMul", ["x", "double"], ["d"], name="double"),
        helper.make_node("Gemm", ["x", "w"], ["e"], name="gemm"),
        helper.make_node("MatMul", ["x", "w"], ["f"], name="matmul"),
    ]
    graph = make_model(nodes, {"x": [4, 4]}, ["f"], constants).graph
    assert [(node.name, weight.name) for node, weight in weighted_nodes(graph)] == [("gemm", "w"), ("matmul", "w")]


def test_attributes_are_read_or_their_default() -> None:
    """A value that is set, and one that is not."""
    node = helper.make_node("Gemm", ["x", "w"], ["y"], alpha=0.5)
    assert attribute(node, "alpha", 1.0) == 0.5
    assert attribute(node, "beta", 1.0) == 1.0


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("bias", [None, (5,), (1,), (6, 5), ()])
def test_a_split_gemm_gives_the_same_numbers(transposed: int, bias: tuple[int, ...] | None) -> None:
    """With and without transB, with biases of every shape that Gemm takes, and without one."""
    x, weight = draw(6, 8), draw(5, 8, seed=1) if transposed else draw(8, 5, seed=1)
    constants = {"w": weight} | ({} if bias is None else {"b": draw(*bias, seed=2)})
    inputs = ["x", "w"] + ([] if bias is None else ["b"])
    gemm = helper.make_node("Gemm", inputs, ["y"], name="gemm", transB=transposed)
    model = make_model([gemm], {"x": ["batch", 8]}, ["y"], constants)
    before = run(model, x=x)[0]
    assert len(split_gemm(model.graph)) == 1
    assert [node.op_type for node in model.graph.node] == ["MatMul"] + ["Add"] * (bias is not None)
    assert "w" not in initializers(model.graph) if transposed else "w" in initializers(model.graph)
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-5)
    expected = x.astype(np.float64) @ (weight.T if transposed else weight)
    np.testing.assert_allclose(before, expected + (0 if bias is None else constants["b"]), rtol=1e-5, atol=1e-5)


def test_a_weight_of_two_gemms_is_transposed_once() -> None:
    """One weight that is read both ways: both products stay right, and each form is there once."""
    weight, x = draw(8, 8), draw(3, 8, seed=1)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], name="one", transB=1),
        helper.make_node("Gemm", ["a", "w"], ["b"], name="two", transB=1),
        helper.make_node("Gemm", ["b", "w"], ["y"], name="three"),
    ]
    model = make_model(nodes, {"x": [3, 8]}, ["y"], {"w": weight})
    assert len(split_gemm(model.graph)) == 3
    assert len(model.graph.initializer) == 2
    np.testing.assert_allclose(run(model, x=x)[0], x @ weight.T @ weight.T @ weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attributes", [{"alpha": 0.5}, {"beta": 2.0}, {"transA": 1}])
def test_a_gemm_that_is_more_than_a_product_stays(attributes: dict[str, Any]) -> None:
    """Alpha, beta and transA have no place in MatMul and Add."""
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm", **attributes)
    model = make_model([gemm], {"x": [8, 8]}, ["y"], {"w": draw(8, 5), "b": draw(5)})
    whole = model.SerializeToString()
    assert len(split_gemm(model.graph)) == 0
    assert model.SerializeToString() == whole


def test_weights_are_gathered_into_one_file(tiny: Tiny, tmp_path: Path) -> None:
    """Equal models give equal bytes, whatever file their weights came in, and the numbers stay."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        onnx.save(
            tiny_model(*tiny.weights),
            tmp_path / name / "model.onnx",
            save_as_external_data=True,
            location=f"{name}.bin",
            size_threshold=0,
        )
        gather_weights(tmp_path / name / "model.onnx", tmp_path / f"{name}.onnx")
    assert (tmp_path / "one.onnx").read_bytes() == (tmp_path / "two.onnx").read_bytes()
    x = draw(5, 64)
    gathered, source = (run(onnx.load(path), x=x)[0] for path in (tmp_path / "one.onnx", tiny.model))
    np.testing.assert_array_equal(gathered, source)


def test_a_source_without_its_weights_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """Nothing is written for it."""
    path = tmp_path / "model.onnx"
    onnx.save(tiny_model(*tiny.weights), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").write_bytes(b"too short")
    with pytest.raises(SourceError, match=r"model\.onnx"):
        gather_weights(path, tmp_path / "gathered.onnx")
    assert not (tmp_path / "gathered.onnx").exists()


def test_a_large_model_is_saved_in_two_files(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit of a message the weights lie beside the model, and both count as its bytes."""
    small = tmp_path / "small.onnx"
    save_model(tiny_model(*tiny.weights), small)
    assert model_bytes(small) == small.stat().st_size
    monkeypatch.setattr("validators.graph.stored.EXTERNAL_DATA_BYTES", 1000)
    large = tmp_path / "large.onnx"
    save_model(tiny_model(*tiny.weights), large)
    weights = (tmp_path / "large.onnx.data").stat().st_size
    assert weights >= sum(array.nbytes for array in tiny.weights if array.nbytes > 1024)
    assert model_bytes(large) == large.stat().st_size + weights
    x = draw(5, 64)
    np.testing.assert_array_equal(run(onnx.load(large), x=x)[0], run(onnx.load(small), x=x)[0])


@pytest.mark.parametrize(
    "names", [["Relu_2", "k", ""], ["Relu_1", "", ""], ["", "Relu_0", "Relu_0"], ["", "a", "Relu_0"]]
)
def test_a_made_name_is_never_one_that_is_there(names: list[str]) -> None:
    """ONNX Runtime does not load a graph in which two nodes share a name."""
    nodes = [helper.make_node("Relu", [f"t{i}"], [f"t{i + 1}"], name=name) for i, name in enumerate(names)]
    graph = helper.make_graph(nodes, "graph", [], [])
    name_nodes(graph)
    made = [node.name for node in graph.node]
    assert len(set(made)) == 3 and all(made)
    assert all(new == old for new, old in zip(made, names, strict=True) if names.count(old) == 1 and old)


def test_constant_with_name_of_transposed_weight_is_told_apart() -> None:
    """The numbers stay, whatever the model's constants are called."""
    weight, other = draw(5, 8), draw(5, seed=1)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["p"], name="gemm", transB=1),
        helper.make_node("Add", ["p", "w_transposed"], ["y"], name="add"),
    ]
    model = make_model(nodes, {"x": [3, 8]}, ["y"], {"w": weight, "w_transposed": other})
    x = draw(3, 8, seed=2)
    before = run(model, x=x)[0]
    assert len(split_gemm(model.graph)) == 1
    np.testing.assert_allclose(run(model, x=x)[0], before, rtol=1e-5, atol=1e-5)
