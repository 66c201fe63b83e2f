"""Operators that are not ONNX's own through every pass: the runtime's, those of machine learning, functions of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from odd import CANDIDATES, GetOdd, check_pass, check_prepared, check_viewed, gathered, layers, model_of, node, weights
from onnx import helper

from tasks.ptq.build_variant import quantize_int8
from tasks.ptq.graph.edits import notes_of
from validators.job.candidate_name import decode


def contrib() -> onnx.ModelProto:
    """Operators of ONNX Runtime's own."""
    nodes = [
        node("MatMul", ["x", "w1"], ["p"], name="first"),
        node("BiasGelu", ["p", "b1"], ["g"], domain="com.microsoft", name="bias_gelu"),
        node("FastGelu", ["g"], ["h"], domain="com.microsoft", name="fast_gelu"),
        node("MatMul", ["h", "w2"], ["q"], name="second"),
        node("Unsqueeze", ["q", "axis"], ["q3"]),
        node("Unsqueeze", ["x", "axis"], ["x3"]),
        node("SkipLayerNormalization", ["q3", "x3", "gamma"], ["n3"], domain="com.microsoft", name="norm"),
        node("Squeeze", ["n3", "axis"], ["y"]),
    ]
    constants = weights() | {"gamma": np.ones(64, np.float32), "axis": np.array([1])}
    return model_of(nodes, constants, domains=("com.microsoft",))


def machine_learning() -> onnx.ModelProto:
    """An operator of ai.onnx.ml."""
    normalizer = node("Normalizer", ["s"], ["h0"], domain="ai.onnx.ml", name="normalizer", norm="MAX")
    return model_of(layers(normalizer, node("Relu", ["h0"], ["h"])), weights(), domains=("ai.onnx.ml",))


def functions() -> onnx.ModelProto:
    """Functions of the file's own domain; one has the name of a standard operator and does something else."""
    opsets = [helper.make_opsetid("", 21)]
    swish = helper.make_function(
        "acme", "Swish", ["a"], ["b"], [node("Sigmoid", ["a"], ["c"]), node("Mul", ["a", "c"], ["b"])], opsets
    )
    product = helper.make_function(
        "acme",
        "MatMul",
        ["a", "b"],
        ["c"],
        [node("Transpose", ["b"], ["t"]), node("MatMul", ["a", "t"], ["c"])],
        opsets,
    )
    nodes = [
        *layers(node("Swish", ["s"], ["h"], domain="acme", name="swish"))[:-1],
        node("MatMul", ["h", "w2_turned"], ["y"], domain="acme", name="second"),
    ]
    constants = weights()
    constants["w2_turned"] = np.ascontiguousarray(constants.pop("w2").T)
    return model_of(nodes, constants, domains=("acme",), functions=(swish, product))


ODD = {made.__name__: made for made in (contrib, machine_learning, functions)}


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


LEFT = {
    "contrib": {
        "bias_gelu": "custom operator com.microsoft:BiasGelu",
        "fast_gelu": "custom operator com.microsoft:FastGelu",
        "norm": "custom operator com.microsoft:SkipLayerNormalization",
    },
    "machine_learning": {"normalizer": "custom operator ai.onnx.ml:Normalizer"},
    "functions": {},  # the runtime puts their bodies in their place, and those are quantized
}


@pytest.mark.parametrize("name", LEFT)
def test_operators_of_other_domains_are_left_in_float_and_listed(made: GetOdd, name: str) -> None:
    """With what they are, beside the two layers that are quantized around them."""
    odd = made(name)
    candidate = decode("int8-static-minmax-pc@ort-cpu")
    report = quantize_int8(candidate, odd.materials_for(candidate), odd.prepared, odd.folder / "static.onnx")
    assert len(report.quantized) == 2
    assert report.left == LEFT[name]
    assert notes_of(odd.prepared) == {}
