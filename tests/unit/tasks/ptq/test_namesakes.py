"""Operators of another domain that are called like ONNX's own: no pass takes them for those, whatever they may do.

Each is held against its twin, the same graph with the operator of ONNX, of which the pass does what it should.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from odd import FLOAT, draw, info, model_of, node, weights
from onnx import helper, numpy_helper

from tasks.engines.ort.pairs import PAIRS, place_for_ort
from tasks.measure.taps import find_taps
from tasks.ptq.calibrate.fixed_ranges import read_fixed_ranges
from tasks.ptq.calibrate.grams import Gram
from tasks.ptq.eight_bit.bias_correction import correct_bias
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import GraphView, PlacementTask
from tasks.ptq.eight_bit.qdq_checks import refuse_model, weight_type
from tasks.ptq.eight_bit.smooth import ChannelStatistics, smooth
from tasks.ptq.eight_bit.tied import find_tables, retie
from tasks.ptq.graph.edits import custom_operators, split_gemm, weighted_nodes
from tasks.ptq.graph.pool_means import pool_means
from tasks.ptq.sensitivity import find_parts
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.ptq.weight_only.sites import find_sites
from validators.errors import CandidateRefused

BOTH = pytest.mark.parametrize("domain", ["", "acme"])
WHY = "custom operator acme:"


def two_layers(domain: str, kind: str = "Relu") -> onnx.ModelProto:
    """MatMul, an operator between, MatMul."""
    nodes = [
        node("MatMul", ["x", "w1"], ["s"], name="first"),
        node(kind, ["s"], ["h"], name="between", domain=domain),
        node("MatMul", ["h", "w2"], ["y"], name="second"),
    ]
    return model_of(nodes, {name: weights()[name] for name in ("w1", "w2")}, domains=(domain,) if domain else ())


def products(domain: str) -> onnx.ModelProto:
    """A MatMul and a Gemm that have constant weights."""
    nodes = [
        node("MatMul", ["x", "w1"], ["p"], domain=domain, name="first"),
        node("Gemm", ["p", "w2"], ["y"], domain=domain, name="second", transB=0),
    ]
    constants = {name: weights()[name] for name in ("w1", "w2")}
    return model_of(nodes, constants, domains=(domain,) if domain else ())


@BOTH
def test_products(domain: str) -> None:
    """Neither split, nor rounded, nor given a range, nor taken for a layer, nor for what tells the type of weights."""
    model = products(domain)
    graph = model.graph
    assert len(weighted_nodes(graph)) == len(find_taps(graph, "y", None).watched) == (0 if domain else 2)
    assert weight_type(GraphView(graph)) == FLOAT
    ranges = dict.fromkeys(("x", "p", "y"), (-1.0, 1.0))
    plan = place_for_ort(PlacementTask(GraphView(graph), ranges, every_operator=True))
    assert plan.nodes == (() if domain else ("first", "second"))
    assert plan.left == ({"first": f"{WHY}MatMul", "second": f"{WHY}Gemm"} if domain else {})
    sites = find_sites(graph, block_size=32, exclude=())
    assert [site.node.name for site in sites.sites] == ([] if domain else ["first", "second_MatMul"])
    assert sites.left == ({"first": f"{WHY}MatMul", "second": f"{WHY}Gemm"} if domain else {})
    assert len(split_gemm(products(domain).graph)) == (0 if domain else 1)


def test_the_type_of_weights_is_that_of_layers() -> None:
    """A constant that an acme:MatMul reads says nothing."""
    model = products("acme")
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    assert weight_type(GraphView(model.graph)) == FLOAT


def test_ranges_at_run_time(tmp_path: Path) -> None:
    """The weight of an acme:MatMul stays as it is."""
    model = products("")
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.node[0].domain = "acme"
    onnx.save(model, tmp_path / "model.onnx")
    left = quantize_dynamic(tmp_path / "model.onnx", tmp_path / "variant.onnx", weights=Int8Weights()).left
    assert left == {"first": f"{WHY}MatMul"}
    graph = onnx.load(tmp_path / "variant.onnx").graph
    kinds = [(one.domain, one.op_type) for one in graph.node]
    assert ("acme", "MatMul") in kinds and ("com.microsoft", "DynamicQuantizeMatMul") in kinds
    (kept,) = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == "w1"]
    np.testing.assert_array_equal(kept, weights()["w1"])


@BOTH
def test_parts(domain: str) -> None:
    """A part of its own is a layer with weights alone; others are known by their operators and those beside them."""
    parts = find_parts(products(domain).graph, ["first", "second"])
    names = [part.name for part in parts]
    assert names == (
        ["acme:MatMul (input to acme:Gemm)", "acme:Gemm (acme:MatMul to output)"] if domain else ["first", "second"]
    )


@BOTH
def test_smoothing_is_not_folded_through(tmp_path: Path, domain: str) -> None:
    """Relu commutes with positive factors, acme:Relu may not: there the division is a Mul."""
    onnx.save(two_layers(domain), tmp_path / "model.onnx")
    rows = draw(64, 128, seed=8)
    rows[:, 3] *= 1000
    half = ChannelStatistics(rows.min(axis=0), rows.max(axis=0), rows)
    seen = {"h": ChannelStatistics(half.low, half.high, rows, (half, half))}
    done = smooth(tmp_path / "model.onnx", tmp_path / "smoothed.onnx", seen, symmetric=False)
    assert done["h"].way == ("multiplied" if domain else "folded")
    first = {one.name: numpy_helper.to_array(one) for one in onnx.load(tmp_path / "smoothed.onnx").graph.initializer}
    assert ("w1" in first) == bool(domain)


@BOTH
def test_only_layers_are_smoothed(tmp_path: Path, domain: str) -> None:
    model = products(domain)
    onnx.save(model, tmp_path / "model.onnx")
    rows = draw(64, 64, seed=8) * np.where(np.arange(64) == 3, 1000, 1).astype(np.float32)
    half = ChannelStatistics(rows.min(axis=0), rows.max(axis=0), rows)
    seen = {"x": ChannelStatistics(half.low, half.high, rows, (half, half))}
    assert list(smooth(tmp_path / "model.onnx", tmp_path / "s.onnx", seen, symmetric=False)) == (
        [] if domain else ["x"]
    )


@BOTH
def test_factors_of_awq_are_not_folded_through(tmp_path: Path, domain: str) -> None:
    onnx.save(two_layers(domain), tmp_path / "model.onnx")
    grams = {}
    for name, width, seed in (("x", 64, 8), ("h", 128, 9)):
        rows = draw(256, width, seed=seed).astype(np.float64) * np.geomspace(1, 300, width)
        grams[name] = Gram(rows.T @ rows, np.abs(rows).mean(axis=0), len(rows))
    weights = BlockWeights("awq", 32, True)
    report = quantize_weights(tmp_path / "model.onnx", tmp_path / "v.onnx", weights, grams=grams)
    assert (report.factors_folded, report.factors_inserted) == ((0, 2) if domain else (1, 1))
    assert report.left == ({"between": f"{WHY}Relu"} if domain else {})


@BOTH
def test_means_are_not_pooled(domain: str) -> None:
    pool = node("MaxPool", ["x"], ["p"], kernel_shape=[1, 1], name="pool")
    mean = node("ReduceMean", ["p", "axes"], ["y"], domain=domain, name="mean")
    graph = helper.make_graph(
        [pool, mean],
        "g",
        [info("x", FLOAT, [1, 3, 8, 8])],
        [info("y", FLOAT, [1, 3, 1, 1])],
        [numpy_helper.from_array(np.array([2, 3]), "axes")],
        value_info=[info("p", FLOAT, [1, 3, 8, 8])],
    )
    assert pool_means(graph) == (0 if domain else 1)


@pytest.mark.parametrize("kind", ["Gather", "Transpose"])
@BOTH
def test_a_table_is_tied_by_a_look_up_and_a_transposition(domain: str, kind: str) -> None:
    """Of ONNX's own: an acme:Gather may look up anything, and an acme:Transpose is no product with the table."""
    nodes = [
        node("Gather", ["table", "x"], ["e"], name="look_up"),
        node("Transpose", ["table"], ["turned"], name="turn", perm=[1, 0]),
        node("MatMul", ["e", "turned"], ["y"], name="head"),
    ]
    next(one for one in nodes if one.op_type == kind).domain = domain
    graph = model_of(nodes, {"table": draw(96, 64)}, domains=("acme",)).graph
    sites = find_sites(graph, block_size=32, exclude=()).sites
    tables = find_tables(graph, sites, block_size=32)
    assert len(tables) == (0 if domain else 1)
    assert (kind, len(sites)) == (kind, 0 if domain and kind == "Transpose" else 1)


@BOTH
def test_a_head_is_tied_again_to_what_a_look_up_reads(domain: str) -> None:
    nodes = [
        node("Gather", ["table", "x"], ["e"], name="look_up", domain=domain),
        node("MatMul", ["e", "head"], ["y"], name="product"),
    ]
    table = draw(96, 64)
    graph = model_of(nodes, {"table": table, "head": np.ascontiguousarray(table.T)}, domains=("acme",)).graph
    assert retie(graph) == (0 if domain else 1)


@BOTH
def test_a_model_with_such_an_operator_is_no_quantized_one(domain: str) -> None:
    model = two_layers(domain, "QLinearSomething")
    if domain:
        refuse_model(model, PAIRS, "uint8", ())
    else:
        with pytest.raises(CandidateRefused, match="quantized already"):
            refuse_model(model, PAIRS, "uint8", ())


@BOTH
def test_a_range_is_fixed_by_the_standard_operator(tmp_path: Path, domain: str) -> None:
    """INT8 of scale 0.5: from -128.5 to 127.5 steps."""
    nodes = [node("QuantizeLinear", ["x", "scale", "zero"], ["y"], domain=domain, name="q")]
    constants = {"scale": np.float32(0.5), "zero": np.int8(0)}
    onnx.save(model_of(nodes, constants, domains=("acme",)), tmp_path / "model.onnx")
    assert read_fixed_ranges(tmp_path / "model.onnx") == ({} if domain else {"x": (-64.25, 63.75)})


def test_channels_before_a_convolution_are_those_of_standard_one() -> None:
    """Axis 1 for what a Conv reads, the last for what an acme:Conv reads."""
    for domain, axis in (("", 1), ("acme", -1)):
        nodes = [node("Conv", ["x", "w1"], ["y"], domain=domain, name="c")]
        graph = model_of(nodes, {"w1": draw(4, 64, 1)}, domains=("acme",)).graph
        assert find_taps(graph, "y", "x").channel_axis == axis


def test_operators_are_listed_by_node_and_domain() -> None:
    """ONNX's own domain has two names."""
    model = two_layers("acme")
    model.graph.node[0].domain = "ai.onnx"
    assert custom_operators(model.graph) == {"between": f"{WHY}Relu"}
    assert [one.name for one, _ in weighted_nodes(model.graph)] == ["first", "second"]


@BOTH
def test_only_a_transposition_that_nobody_reads_is_taken_away(tmp_path: Path, domain: str) -> None:
    """One that the quantized weight came through before; an acme:Transpose may do more than it gives back."""
    model = two_layers("")
    model.opset_import.append(helper.make_opsetid("acme", 1))
    model.graph.node.append(node("Transpose", ["h"], ["unread"], domain=domain, name="turn"))
    onnx.save(model, tmp_path / "model.onnx")
    quantize_weights(tmp_path / "model.onnx", tmp_path / "v.onnx", BlockWeights("rtn", 32, True))
    names = [one.name for one in onnx.load(tmp_path / "v.onnx").graph.node]
    assert ("turn" in names) == bool(domain)


def test_layer_behind_a_namesake_has_no_corrected_bias(tmp_path: Path) -> None:
    """An acme:DequantizeLinear before a weight is no sign of a quantized layer; no session could run it here."""
    nodes = [
        node("DequantizeLinear", ["w1", "scale"], ["weight"], domain="acme", name="acme"),
        node("MatMul", ["x", "weight"], ["p"], name="first"),
        node("Add", ["p", "b1"], ["y"], name="add"),
    ]
    constants = {name: weights()[name] for name in ("w1", "b1")} | {"scale": np.float32(1)}
    onnx.save(model_of(nodes, constants, domains=("acme",)), tmp_path / "model.onnx")
    done = correct_bias(tmp_path / "model.onnx", tmp_path / "model.onnx", tmp_path / "corrected.onnx", [])
    assert done.largest == {}
