"""Odd models through every pass: branches, loops, sizes that depend on the data, constants that are inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import static_int8
from odd import (
    CANDIDATES,
    FLOAT,
    GetOdd,
    check_pass,
    check_prepared,
    check_viewed,
    distance,
    draw,
    gathered,
    info,
    layers,
    model_of,
    node,
    run,
    weights,
)
from onnx import TensorProto, helper
from processors import BITS_HERE

from tasks.ptq.calibrate.collect import collect_statistics
from tasks.ptq.calibrate.grams import collect_grams
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.bias_correction import correct_bias
from tasks.ptq.graph.prepare import prepare_graph


def branch() -> onnx.ModelProto:
    """An If whose bodies have products of their own and read tensors and weights of the graph."""
    yes = helper.make_graph([node("MatMul", ["s", "square"], ["yes_out"])], "yes", [], [info("yes_out")])
    no = helper.make_graph([node("Neg", ["s"], ["no_out"])], "no", [], [info("no_out")])
    nodes = layers(
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["c"], name="branch", then_branch=yes, else_branch=no),
        node("Relu", ["c"], ["h"]),
    )
    return model_of(nodes, weights() | {"square": draw(128, 128, seed=4) / 11, "zero": np.float32(0)})


def loop() -> onnx.ModelProto:
    """A Loop of three turns with a product in its body."""
    body = helper.make_graph(
        [
            node("MatMul", ["state", "square"], ["turned"]),
            node("Tanh", ["turned"], ["next"]),
            node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [info("turn", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state")],
        [info("go_on", TensorProto.BOOL, []), info("next")],
    )
    nodes = layers(node("Loop", ["three", "", "s"], ["h"], name="loop", body=body))
    return model_of(nodes, weights() | {"square": draw(128, 128, seed=4) / 11, "three": np.array(3)})


def dependent() -> onnx.ModelProto:
    """Rows of tokens that are picked by their values, as many as there are, and whose mean is added to all."""
    nodes = layers(
        node("ReduceMax", ["s", "last"], ["most"], keepdims=0),
        node("Greater", ["most", "half"], ["large"]),
        node("Compress", ["s", "large"], ["picked"], axis=0),
        node("MatMul", ["picked", "square"], ["product"], name="picked"),
        node("ReduceMean", ["product", "first_axis"], ["mean"], keepdims=1),
        node("Add", ["s", "mean"], ["a"]),
        node("Relu", ["a"], ["h"]),
    )
    constants = {
        "square": draw(128, 128, seed=4) / 11,
        "half": np.float32(0.5),
        "last": np.array([1]),
        "first_axis": np.array([0]),
    }
    return model_of(nodes, weights() | constants)


def constants_as_inputs() -> onnx.ModelProto:
    """Weights that the file lists as inputs too, as old exporters do: a caller may replace them."""
    model = model_of(layers(node("Relu", ["s"], ["h"])), weights())
    model.graph.input.extend(info(name, FLOAT, list(array.shape)) for name, array in weights().items())
    return model


ODD = {made.__name__: made for made in (branch, loop, dependent, constants_as_inputs)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GetOdd:
    return gathered(ODD, tmp_path_factory)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_prepared_to_the_same_function(made: GetOdd, name: str) -> None:
    check_prepared(made(name))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_goes_through_every_pass(made: GetOdd, tmp_path: Path, name: str, candidate: str) -> None:
    check_pass(made(name), candidate, tmp_path)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_viewed(made: GetOdd, name: str) -> None:
    check_viewed(made(name))


def test_constants_that_are_inputs_are_constants_alone(made: GetOdd) -> None:
    """In what step 1 makes of the source, so that every pass may store them as it likes."""
    assert [value.name for value in onnx.load(made("constants_as_inputs").source).graph.input] == ["x"]


@pytest.mark.parametrize("bits", BITS_HERE)
def test_samples_of_differing_length_calibrate_and_correct(tmp_path: Path, bits: WeightBits) -> None:
    """Tokens by the batch: each batch has a length of its own, and means count every token once."""
    nodes = layers(node("Relu", ["s"], ["h"]))
    model = model_of(nodes, weights())
    for value in (model.graph.input[0], model.graph.output[0]):
        value.CopyFrom(info(value.name, FLOAT, ["batch", "length", 64]))
    onnx.save(model, tmp_path / "source.onnx")
    batches = [{"x": draw(2, length, 64, seed=length)} for length in (3, 17, 1, 40)]
    prepare_graph(tmp_path / "source.onnx", tmp_path / "prepared.onnx")
    seen = collect_statistics(
        tmp_path / "prepared.onnx", lambda size: iter(batches), threads=1, max_memory_mb=100, fixed_batch=None
    ).statistics
    ranges = {name: (float(one.minimum), float(one.maximum)) for name, one in seen.items()}
    assert seen["x"].finite == 2 * 61 * 64 and ranges["x"][1] == max(batch["x"].max() for batch in batches)
    static_int8(tmp_path / "prepared.onnx", ranges, tmp_path / "variant.onnx", bits=bits)
    done = correct_bias(tmp_path / "prepared.onnx", tmp_path / "variant.onnx", tmp_path / "corrected.onnx", batches)
    assert list(done.largest) == ["first"]
    grams = collect_grams(tmp_path / "prepared.onnx", {"x": 64}, lambda: batches, max_memory_mb=100)
    tokens = np.concatenate([batch["x"].reshape(-1, 64) for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(grams["x"].matrix, tokens.T @ tokens, rtol=1e-9)
    for batch in batches:
        lost = distance(run(tmp_path / "source.onnx", batch), run(tmp_path / "corrected.onnx", batch))
        assert 1e-4 < lost < 0.04
