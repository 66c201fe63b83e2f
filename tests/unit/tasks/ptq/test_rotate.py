"""Rotations of a decoder's residual stream: the float graph before and after, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from tiny_decoder import HEAD_WIDTH, KV_HEADS, TOKENS, WIDTH, tiny_weights, write_decoder

from tasks.ptq.build_variant import Materials, float_graph
from tasks.ptq.graph.rotate import make_rotated, random_rotation, rotate
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.run import DataFile
from validators.samples.datasets import Samples

LENGTH = 6
STREAMS = ("t0", "0.post.sum", "1.input.sum", "1.post.sum")


def outlying() -> dict[str, NDArray[np.float32]]:
    """Weights whose residual stream has a channel far louder than the others."""
    weights = tiny_weights(5)
    weights["embed"][:, 9] += 40
    return weights


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_decoder(tmp_path / "model.onnx", outlying())


def run(path: Path, outputs: tuple[str, ...]) -> list[NDArray[np.float32]]:
    """Compute tensors of a graph, also inner ones, for one window with empty caches."""
    proto = onnx.load(path)
    named = {value.name for value in proto.graph.output}
    proto.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs if name not in named
    )
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    batch: dict[str, Any] = {
        "input_ids": np.random.default_rng(2).integers(0, TOKENS, (1, LENGTH)),
        "seqlens": np.array([LENGTH - 1], np.int32),
        "total": np.array(LENGTH, np.int32),
    }
    empty = np.zeros((1, KV_HEADS, 0, HEAD_WIDTH), np.float32)
    batch |= {value.name: empty for value in session.get_inputs() if value.name.startswith("past.")}
    return list(session.run(list(outputs), batch))


def edited(path: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    proto = onnx.load(path)
    change(proto.graph)
    onnx.save(proto, path)
    return path


def node_of(graph: onnx.GraphProto, output: str) -> onnx.NodeProto:
    return next(node for node in graph.node if output in node.output)


def add_biases(graph: onnx.GraphProto) -> None:
    """Give a product that reads the stream, and one that writes to it, a bias."""
    for index, name in enumerate(("0.gate", "0.o")):
        product = node_of(graph, f"{name}.out")
        bias = np.random.default_rng(index).normal(size=96 if "gate" in name else WIDTH).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(bias, f"{name}.bias"))
        product.output[0] = f"{name}.product"
        added = helper.make_node("Add", [product.output[0], f"{name}.bias"], [f"{name}.out"], name=f"/{name}.bias")
        graph.node.insert(list(graph.node).index(product) + 1, added)


@pytest.mark.parametrize("size", [5, 64])
def test_a_random_rotation_is_orthogonal(size: int) -> None:
    rotation = random_rotation(size, 7)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(size), atol=1e-12)
    assert np.array_equal(rotation, random_rotation(size, 7))
    assert not np.allclose(rotation, random_rotation(size, 8))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_a_rotated_decoder_computes_the_same(tied: bool, biased: bool, tmp_path: Path) -> None:
    model = write_decoder(tmp_path / "model.onnx", outlying(), tied=tied)
    if biased:
        edited(model, add_biases)
    before, after = ("logits", *STREAMS), ("logits", *STREAMS)
    rotate(model, tmp_path / "rotated.onnx", 7)
    logits, *streams = run(model, before)
    found, *rotated = run(tmp_path / "rotated.onnx", after)
    np.testing.assert_allclose(found, logits, atol=1e-4 * np.abs(logits).max())
    # The stream itself is turned: an oracle for each layer.
    turn = random_rotation(WIDTH, 7)
    for one, other in zip(streams, rotated, strict=True):
        np.testing.assert_allclose(other, one.astype(np.float64) @ turn, atol=2e-4 * np.abs(one).max())


def test_outliers_of_the_stream_spread_and_gains_are_one(model: Path, tmp_path: Path) -> None:
    rotate(model, tmp_path / "rotated.onnx", 7)
    graph = onnx.load(tmp_path / "rotated.onnx").graph
    shape, constants = (WIDTH,), {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    gains = [array for array in constants.values() if array.shape == shape]
    assert len(gains) == 5 and all(np.array_equal(gain, np.ones(shape)) for gain in gains)

    def peak(stream: NDArray[np.float32]) -> float:
        return float(np.abs(stream).max() / np.sqrt(np.square(stream).mean()))

    (before,), (after,) = run(model, ("1.post.sum",)), run(tmp_path / "rotated.onnx", ("1.post.sum",))
    assert peak(before) > 6 > 4 > peak(after)
    # No operator more, where nothing is tied.
    assert [node.op_type for node in graph.node] == [node.op_type for node in onnx.load(model).graph.node]


def test_a_tied_table_stays_one_with_a_product_in_float(tmp_path: Path) -> None:
    model = write_decoder(tmp_path / "model.onnx", outlying(), tied=True)
    rotate(model, tmp_path / "rotated.onnx", 7)
    report = quantize_weights(tmp_path / "rotated.onnx", tmp_path / "int4.onnx", BlockWeights("rtn", 32, True))
    assert len(report.tied) == 1
    assert report.left["/head_gain"] == "its weight has 3 axes, not 2"


def sum_elsewhere(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Sigmoid", ["0.post.sum"], ["other"], name="/other"))


def norm_with_a_mean(graph: onnx.GraphProto) -> None:
    node = node_of(graph, "0.post.normal")
    node.op_type = "SkipLayerNormalization"


def second_table(graph: onnx.GraphProto) -> None:
    graph.initializer.append(numpy_helper.from_array(np.ones((TOKENS, WIDTH), np.float32), "types"))
    graph.node.insert(0, helper.make_node("Gather", ["types", "input_ids"], ["of_types"], name="/types"))


def stream_as_output(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("0.post.sum", onnx.TensorProto.FLOAT, None))


def sum_of_an_activation(graph: onnx.GraphProto) -> None:
    product = node_of(graph, "0.down.out")
    product.output[0] = "0.down.product"
    graph.node.insert(
        list(graph.node).index(product) + 1,
        helper.make_node("Tanh", ["0.down.product"], ["0.down.out"], name="/0.tanh"),
    )


def product_read_twice(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Relu", ["0.down.out"], ["other"], name="/other"))


def gate_without_a_product(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Relu", ["0.post.normal"], ["other"], name="/other"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sum_elsewhere, "/other: Sigmoid"),
        (norm_with_a_mean, "com.microsoft:SkipLayerNormalization"),
        (second_table, "2 embeddings"),
        (stream_as_output, "the output 0.post.sum"),
        (sum_of_an_activation, "0.down.out, which is added"),
        (product_read_twice, "0.down.out, which is added"),
        (gate_without_a_product, "/other: Relu"),
    ],
)
def test_another_graph_is_refused(
    change: Callable[[onnx.GraphProto], None], words: str, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(CandidateRefused) as caught:
        rotate(edited(model, change), tmp_path / "rotated.onnx", 7)
    assert caught.value.kind == "unsupported" and words in caught.value.found


def test_a_rotation_that_changes_the_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault: a matrix that is not orthogonal."""
    table = np.random.default_rng(0).normal(size=(TOKENS, 8)).astype(np.float32)
    constants = {"embed": table, "head": table.T.copy()}
    nodes = [
        helper.make_node("Gather", ["embed", "input_ids"], ["x"], name="/embed"),
        helper.make_node("MatMul", ["x", "head"], ["logits"], name="/head"),
    ]
    graph = helper.make_graph(
        nodes,
        "tokens",
        [helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", "length", TOKENS])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    tokens = np.random.default_rng(1).integers(0, TOKENS, (4, LENGTH))
    samples = Samples(DataFile(Path("calibration.npz"), "digest", 4), {"input_ids": tokens}, None)
    assert make_rotated(lambda: path, samples, None, 7, (), tmp_path).exists()
    monkeypatch.setattr("tasks.ptq.graph.rotate.random_rotation", lambda size, _seed: np.triu(np.ones((size, size))))
    with pytest.raises(CandidateRefused, match="after rotation"):
        make_rotated(lambda: path, samples, None, 7, (), tmp_path)


@pytest.mark.parametrize("recipe", ["int8-dynamic-pc-smooth-rot@ort-genai", "int4-g64-rtn-rot+fused@ort-genai"])
def test_a_rotation_goes_with_no_other_rewriting(recipe: str) -> None:
    absent: Any = [lambda *_: pytest.fail("made a material")] * 7
    with pytest.raises(CandidateRefused, match="a rotation with"):
        float_graph(decode(recipe), Materials(*absent, None))  # type: ignore[arg-type]  # no processor is read
