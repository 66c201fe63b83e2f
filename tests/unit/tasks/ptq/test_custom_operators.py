"""Operators of a library, of which ONNX and its tools know nothing, through every pass: left in float, and listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from odd import (
    CANDIDATES,
    FLOAT,
    HALF,
    GetOdd,
    check_pass,
    check_prepared,
    check_viewed,
    distance,
    draw,
    gathered,
    layers,
    model_of,
    node,
    run,
    weights,
)
from onnx import numpy_helper

from tasks.engines.variants import make_variant
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.float.fp16 import convert_to_float16
from tasks.ptq.graph.prepare import fuse_graph
from tasks.ptq.graph.upgrade import upgrade_opset
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.libraries import find_library
from tasks.runtimes.macs import MAC_RULES
from validators.errors import CandidateRefused, SourceError
from validators.graph.stored import save_model
from validators.job.candidate_name import decode
from validators.job.job_data import OperatorLibrary

DOMAIN = "ai.onnx.contrib"
LEFT = f"custom operator {DOMAIN}:NegPos"
LISTED = f"nodes left in float: {LEFT}"
with pytest.MonkeyPatch.context() as allowed:
    allowed.setenv("QUANTGATE_ALLOWED_HOOKS", "library=onnxruntime_extensions")
    LIBRARY = find_library(OperatorLibrary(package="onnxruntime_extensions"))


def leaky(tensor: str, end: str) -> list[onnx.NodeProto]:
    """A leaky Relu by NegPos, which gives what is below zero and what is above; a name of its own for each node."""
    return [
        node("NegPos", [tensor], [f"{tensor}_low", f"{tensor}_high"], domain=DOMAIN, name=f"{tensor}_split"),
        node("Mul", [f"{tensor}_low", "slope"], [f"{tensor}_less"], name=f"{tensor}_scale"),
        node("Add", [f"{tensor}_less", f"{tensor}_high"], [end], name=f"{tensor}_join"),
    ]


def custom() -> onnx.ModelProto:
    """Between two layers."""
    return model_of(layers(*leaky("s", "h")), weights() | {"slope": np.float32(0.25)}, domains=(DOMAIN,))


def custom_half() -> onnx.ModelProto:
    """In a float16 graph, between the casts that an operator of float32 alone needs there."""
    inside = [node("Cast", ["s"], ["t"], to=FLOAT), *leaky("t", "u"), node("Cast", ["u"], ["h"], to=HALF)]
    constants: dict[str, NDArray[Any]] = weights(np.float16) | {"slope": np.float32(0.25)}
    return model_of(layers(*inside), constants, kind=HALF, domains=(DOMAIN,))


def custom_at_the_ends() -> onnx.ModelProto:
    """Before the first layer and behind the last: what it reads is an input, and what it makes an output."""
    nodes = [
        *leaky("x", "a"),
        node("MatMul", ["a", "w1"], ["p"], name="first"),
        node("Add", ["p", "b1"], ["h"], name="add"),
        node("MatMul", ["h", "w2"], ["q"], name="second"),
        *leaky("q", "y"),
    ]
    return model_of(nodes, weights() | {"slope": np.float32(0.25)}, domains=(DOMAIN,))


ODD = {made.__name__: made for made in (custom, custom_half, custom_at_the_ends)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> GetOdd:
    return gathered(ODD, tmp_path_factory, (LIBRARY,))


@pytest.mark.parametrize("name", ODD)
def test_it_is_prepared_to_the_same_function(made: GetOdd, name: str) -> None:
    check_prepared(made(name))


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("name", ODD)
def test_it_goes_through_every_pass_and_is_listed(made: GetOdd, tmp_path: Path, name: str, candidate: str) -> None:
    """The variant has the node as it was, says why, and is to be loaded with the library."""
    variant = check_pass(made(name), candidate, tmp_path)
    kept = [one for one in onnx.load(variant.path).graph.node if one.domain == DOMAIN]
    assert variant.changes[LISTED] == len(kept) == (2 if name == "custom_at_the_ends" else 1)
    assert variant.session.libraries == (LIBRARY,)


@pytest.mark.parametrize("name", ODD)
def test_it_is_viewed(made: GetOdd, name: str) -> None:
    check_viewed(made(name))


def test_another_library_makes_another_variant(made: GetOdd, tmp_path: Path) -> None:
    """Of equal bytes: it is approved with the library, and computes something else with another."""
    odd = made("custom")
    with_it, without = (tmp_path / "a", tmp_path / "b")
    with_it.mkdir(), without.mkdir()
    one = make_variant(decode("int4-g32-rtn@ort-cpu"), odd.materials, with_it, threads=1)
    odd_materials = odd.materials.__class__(**{**odd.materials.__dict__, "libraries": ()})
    other = make_variant(decode("int4-g32-rtn@ort-cpu"), odd_materials, without, threads=1)
    assert one.path.read_bytes() == other.path.read_bytes() and one.digest != other.digest


def with_layer_norm(tmp_path: Path) -> Path:
    """A layer norm and a GELU written out, as exporters do, which the fusions put together; the custom operator between."""
    nodes = [
        node("ReduceMean", ["x"], ["mean"], name="mean", axes=[-1]),
        node("Sub", ["x", "mean"], ["d"], name="sub"),
        node("Pow", ["d", "two"], ["d2"], name="pow"),
        node("ReduceMean", ["d2"], ["v"], name="variance", axes=[-1]),
        node("Add", ["v", "small"], ["ve"], name="ve"),
        node("Sqrt", ["ve"], ["deviation"], name="sqrt"),
        node("Div", ["d", "deviation"], ["normal"], name="div"),
        node("Mul", ["normal", "gamma"], ["g"], name="gamma_mul"),
        node("Add", ["g", "beta"], ["n"], name="beta_add"),
        *leaky("n", "h"),
        node("Div", ["h", "root"], ["e"], name="gelu_div"),
        node("Erf", ["e"], ["f"], name="gelu_erf"),
        node("Add", ["f", "one"], ["o"], name="gelu_add"),
        node("Mul", ["h", "o"], ["m"], name="gelu_mul"),
        node("Mul", ["m", "half"], ["gelu"], name="gelu_half"),
        node("MatMul", ["gelu", "w"], ["y"], name="last_layer"),
    ]
    constants = {
        "gamma": draw(64, seed=4),
        "beta": draw(64, seed=5),
        "w": draw(64, 64, seed=6) / 8,
        "two": np.float32(2),
        "small": np.float32(1e-5),
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "slope": np.float32(0.25),
    }
    # Of an opset without GELU, which then becomes the runtime's own.
    save_model(model_of(nodes, constants, domains=(DOMAIN,), opset=17), tmp_path / "norm.onnx")
    return tmp_path / "norm.onnx"


@pytest.mark.parametrize("candidate", ["fp32-fused@ort-cpu", "int8-dynamic-pc+fused@ort-cpu"])
def test_it_stays_where_the_runtime_fuses(made: GetOdd, tmp_path: Path, candidate: str) -> None:
    """It is listed, and what the fusions made is so where it was there to be quantized and was not."""
    source, fused = with_layer_norm(tmp_path), tmp_path / "fused.onnx"
    assert fuse_graph(source, fused, (LIBRARY,)) == {"LayerNormalization": 1, "Gelu": 1}
    plain = made("custom").materials.__dict__ | {"prepared": lambda: source, "fused": lambda: fused}
    variant = make_variant(decode(candidate), made("custom").materials.__class__(**plain), tmp_path, threads=1)
    batch = {"x": draw(16, 64, seed=9)}
    lost = distance(*(run(model, batch, libraries=(LIBRARY,)) for model in (source, variant.path)))
    assert lost < (1e-6 if candidate.startswith("fp32") else 0.04)
    gelu = {} if candidate.startswith("fp32") else {"nodes left in float: custom operator com.microsoft:Gelu": 1}
    assert {what: count for what, count in variant.changes.items() if "left" in what} == {LISTED: 1} | gelu


def test_a_namesake_of_a_standard_operator_is_not_fused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fusions look at names alone; no library here has such an operator, so that one is taken for standard."""
    monkeypatch.setattr(onnx.defs, "has", lambda kind: kind == "NegPos")
    with pytest.raises(CandidateRefused, match="NegPos, which ONNX Runtime's fusions would take for NegPos"):
        fuse_graph(with_layer_norm(tmp_path), tmp_path / "fused.onnx", (LIBRARY,))


def test_tensorrt_refuses_it_with_the_reason(made: GetOdd, tmp_path: Path) -> None:
    with pytest.raises(CandidateRefused) as caught:
        convert_to_float16(made("custom").prepared, tmp_path / "half.onnx", {})
    assert caught.value.kind == "unsupported" and caught.value.found == LEFT
    assert "TensorRT builds no kernel of an ONNX Runtime library" in caught.value.expected


def test_the_dynamic_pass_returns_what_it_left(made: GetOdd, tmp_path: Path) -> None:
    """By the node's name."""
    report = quantize_dynamic(made("custom").prepared, tmp_path / "variant.onnx", weights=Int8Weights())
    assert report.left == {"s_split": LEFT}


def test_an_old_opset_is_upgraded_around_it(made: GetOdd, tmp_path: Path) -> None:
    """Both forms run with the library, and agree; without it neither does, and that is said."""
    old = custom()
    old.opset_import[0].version = 11
    onnx.save(old, tmp_path / "old.onnx")
    batch = next(made("custom").samples.batches(4))
    worst = upgrade_opset(tmp_path / "old.onnx", tmp_path / "new.onnx", lambda inputs: batch, (LIBRARY,))
    assert worst <= 1e-6
    assert {one.domain: one.version for one in onnx.load(tmp_path / "new.onnx").opset_import} == {"": 21, DOMAIN: 1}
    with pytest.raises(SourceError, match="NegPos"):
        upgrade_opset(tmp_path / "old.onnx", tmp_path / "new.onnx", lambda inputs: batch)


def test_what_it_multiplies_is_not_counted(made: GetOdd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even were there a rule for an operator of that name: it is of another domain, and may do anything."""
    odd = made("custom")
    monkeypatch.setitem(MAC_RULES, "NegPos", lambda node, inputs, weights, output: 10**9)
    macs = measure_coverage(odd.prepared, odd.settings, odd.batch(2, 0)).macs_by_kernel
    assert sum(macs.values()) == 2 * (64 * 128 + 128 * 64)


def test_the_operator_computes_what_these_tests_take_it_for() -> None:
    """The oracle of the above is the runtime on the source; here the source is numpy's."""
    values = weights()
    model = custom()
    path_values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    batch = draw(8, 64, seed=3)
    hidden = batch @ values["w1"] + values["b1"]
    hidden = np.where(hidden > 0, hidden, path_values["slope"] * hidden)
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.register_custom_ops_library(str(LIBRARY.path))
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": batch})[0], hidden @ values["w2"], rtol=1e-4, atol=1e-5)
