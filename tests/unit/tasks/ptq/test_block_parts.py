"""Forms of weights that a search chooses from: their noise and bytes are those of the files with these forms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.eight_bit.tied import LEAST_NUMBERS
from tasks.ptq.search import find_frontier
from tasks.ptq.weight_only.block_parts import find_block_parts
from tasks.ptq.weight_only.matmul_nbits import BlockForm, BlockWeights, quantize_weights
from validators.errors import CandidateRefused

ROWS, COLUMNS = 192, 24
OWN = BlockWeights("rtn", 64, True, accuracy_level=0)


@pytest.fixture
def x() -> NDArray[np.float32]:
    """Activations with channels of different sizes, `(40, ROWS)`."""
    return (np.random.default_rng(1).normal(size=(40, ROWS)) * np.geomspace(0.1, 10, ROWS)).astype(np.float32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two products of `x`: `y` with even weights, `z` with a large row, which spoils the scales of its blocks."""
    random = np.random.default_rng(2)
    even, loud = random.normal(size=(2, ROWS, COLUMNS)).astype(np.float32)
    loud[5] *= 30
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", w], [y], name=f"make {y}") for w, y in (("even", "y"), ("loud", "z"))],
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", ROWS])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", COLUMNS]) for name in "yz"],
        [numpy_helper.from_array(even, "even"), numpy_helper.from_array(loud, "loud")],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def gram(x: NDArray[np.float32]) -> dict[str, Gram]:
    wide = x.astype(np.float64)
    return {"x": Gram(wide.T @ wide, np.abs(wide).mean(axis=0), len(wide))}


def run(path: Path, x: NDArray[np.float32]) -> list[NDArray[np.float64]]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [np.asarray(one, np.float64) for one in session.run(["y", "z"], {"x": x})]


@pytest.mark.parametrize("symmetric", [True, False])
def test_noise_and_bytes_are_those_of_the_file(
    model: Path, x: NDArray[np.float32], tmp_path: Path, symmetric: bool
) -> None:
    weights = BlockWeights("rtn", 64, symmetric, accuracy_level=0)
    parts = find_block_parts(model, weights, gram(x))
    assert [part.nodes.nodes for part in parts] == [("make y",), ("make z",)]
    names = [form.name for form in parts[0].forms]
    assert names == ["int4-g64", "int4-g32", "int8-g64"]
    for index, name in enumerate(names):
        forms = {f"make {y}": BlockForm.read(name) for y in "yz"}
        settings = BlockWeights("rtn", 64, symmetric, accuracy_level=0, forms=forms)
        quantize_weights(model, tmp_path / "made.onnx", settings)
        for part, before, after in zip(parts, run(model, x), run(tmp_path / "made.onnx", x), strict=True):
            assert part.forms[index].noise == pytest.approx(np.square(after - before).sum(), rel=2e-3)
        stored = onnx.load(tmp_path / "made.onnx").graph.initializer
        total = sum(numpy_helper.to_array(one).nbytes for one in stored)
        assert sum(part.forms[index].cost for part in parts) == total


def test_each_weight_has_its_form_in_the_file(model: Path, x: NDArray[np.float32], tmp_path: Path) -> None:
    """The loud weight gets more bits first; its node alone changes."""
    parts = find_block_parts(model, OWN, gram(x))
    power = sum(np.square(one).sum() for one in run(model, x))
    scaled = [
        type(part)(part.nodes, tuple(type(form)(form.name, form.noise / power, form.cost) for form in part.forms))
        for part in parts
    ]
    point = find_frontier(scaled)[-1]
    forms = {
        part.nodes.nodes[0]: BlockForm.read(part.forms[form].name)
        for part, form in zip(parts, point.assignment, strict=True)
    }
    assert forms["make z"] == BlockForm(8, 64)
    settings = BlockWeights("rtn", 64, True, accuracy_level=0, forms=forms)
    report = quantize_weights(model, tmp_path / "made.onnx", settings)
    assert report.quantized == {name: form.bits for name, form in forms.items()}
    nodes = {node.name: node for node in onnx.load(tmp_path / "made.onnx").graph.node}
    for name, form in forms.items():
        read = {one.name: one.i for one in nodes[name].attribute}
        assert (read["bits"], read["block_size"]) == (form.bits, form.block_size)
    noise = sum(
        np.square(after - before).sum()
        for before, after in zip(run(model, x), run(tmp_path / "made.onnx", x), strict=True)
    )
    assert noise / power == pytest.approx(point.noise, rel=2e-3)
    assert noise / power <= 10 ** (-point.level_db / 10)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (BlockWeights("awq", 64, True, forms={"make y": BlockForm(8, 128)}), "forms of weights from a search by awq"),
        (BlockWeights("hqq", 64, False, forms={"make y": BlockForm(4, 32)}), "forms of weights from a search by hqq"),
    ],
)
def test_forms_are_refused_where_methods_exclude_them(
    model: Path, tmp_path: Path, weights: BlockWeights, words: str
) -> None:
    with pytest.raises(CandidateRefused) as refused:
        quantize_weights(model, tmp_path / "made.onnx", weights)
    assert words in refused.value.found


def test_an_embedding_has_forms_too(tmp_path: Path) -> None:
    """Each row is looked up once: its noise and bytes are those of the file, and a second sample counts as often."""
    tokens = LEAST_NUMBERS // 256
    random = np.random.default_rng(3)
    table, weight = random.normal(size=(tokens, 256)).astype(np.float32), np.eye(256, COLUMNS, dtype=np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="look up"),
        helper.make_node("MatMul", ["rows", "weight"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", COLUMNS]),
            helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["n", 256]),
        ],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weight, "weight")],
    )
    model = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    wide = table.astype(np.float64)
    seen = {"rows": Gram(wide.T @ wide, np.abs(wide).mean(axis=0), tokens)}
    twice = {"rows": seen["rows"] + seen["rows"]}
    part = find_block_parts(model, OWN, seen)[-1]
    assert part.nodes.nodes == ("look up",)
    names = [form.name for form in part.forms]
    assert names == ["int8-g64", "int4-g128", "int4-g64", "int4-g32", "int8-g128"]
    for form in part.forms:
        weights = BlockWeights("rtn", 64, True, forms={"look up": BlockForm.read(form.name)})
        quantize_weights(model, tmp_path / "made.onnx", weights)
        session = ort.InferenceSession(str(tmp_path / "made.onnx"), providers=["CPUExecutionProvider"])
        (rows,) = session.run(["rows"], {"ids": np.arange(tokens)})
        assert form.noise == pytest.approx(np.square(np.asarray(rows, np.float64) - table).sum(), rel=1e-4)
        stored = onnx.load(tmp_path / "made.onnx").graph.initializer
        assert form.cost == sum(numpy_helper.to_array(one).nbytes for one in stored if one.name.startswith("table"))
    again = find_block_parts(model, OWN, twice, table_bits=(8,))[-1]
    assert [form.name for form in again.forms] == ["int8-g64", "int8-g128"]
    assert again.forms[0].noise == pytest.approx(2 * part.forms[0].noise)
