"""Float16 forms: hand-made graphs with one trap each, types slot by slot, and numbers against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.float.fp16 import Float16Report, convert_to_float16
from tasks.ptq.float.fp16_rules import MASK, slots_of
from validators.errors import CandidateRefused

FLOAT, HALF, INT64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
Arrays = dict[str, NDArray[Any]]


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def op(kind: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    names = [name if name != "-" else "" for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), name=outputs.split()[0], **attributes)


def build(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: Arrays,
    shape: tuple[int, ...] = (4, 8),
    *,
    outputs: tuple[tuple[str, int], ...] = (("y", FLOAT),),
    opset: int = 21,
    domains: tuple[str, ...] = (),
) -> Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", FLOAT, list(shape))],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid(domain, 1) for domain in domains]
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *imports], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def convert(model: Path, ranges: dict[str, Range] | None = None) -> tuple[Path, Float16Report]:
    variant = model.with_name("half.onnx")
    return variant, convert_to_float16(model, variant, ranges or {})


def run(model: Path, x: NDArray[np.float32], outputs: list[str] | None = None) -> list[NDArray[Any]]:
    """By the reference implementation: ONNX Runtime's CPU provider drops casts between float16 nodes and runs in float32."""
    return [np.asarray(output) for output in ReferenceEvaluator(onnx.load(model)).run(outputs, {"x": x})]


def types_of(model: Path) -> dict[str, int]:
    """The element type of every tensor, by inference from what the file says of inputs and constants alone."""
    proto = onnx.load(model)
    del proto.graph.value_info[:]
    graph = onnx.shape_inference.infer_shapes(proto, strict_mode=True).graph
    values = [*graph.value_info, *graph.input, *graph.output]
    return {value.name: value.type.tensor_type.elem_type for value in values} | {
        tensor.name: tensor.data_type for tensor in graph.initializer
    }


def test_a_layer_is_float16_inside_and_float32_outside(tmp_path: Path) -> None:
    """One cast at each border, every weight half its size, and the result is what float16 arithmetic leaves of it."""
    constants = {"w": draw(8, 16) / 4, "b": draw(16), "w2": draw(16, 3) / 4}
    nodes = [op("MatMul", "x w", "m"), op("Add", "m b", "a"), op("Relu", "a", "r"), op("MatMul", "r w2", "y")]
    model = build(tmp_path / "m.onnx", nodes, constants, domains=("com.microsoft.nchwc",))
    variant, report = convert(model)
    assert report.converted == ("m", "a", "r", "y") and not report.left
    assert report.carries == {"x_float16": "x", "y_float16": "y"}
    types = types_of(variant)
    assert types["x"] == types["y"] == FLOAT
    assert {types[name] for name in ("w", "b", "w2", "m", "a", "r", "x_float16", "y_float16")} == {HALF}
    after = onnx.load(variant)
    assert sum(node.op_type == "Cast" for node in after.graph.node) == 2
    assert [item.domain for item in after.opset_import] == [""]
    assert list(after.graph.input) == list(onnx.load(model).graph.input)
    declared = {value.name: value.type.tensor_type.elem_type for value in after.graph.value_info}
    assert declared.items() <= types.items() and "m" in declared
    x = draw(4, 8, seed=1)
    wide = {name: array.astype(np.float16).astype(np.float64) for name, array in (constants | {"x": x}).items()}
    exact = np.maximum(wide["x"] @ wide["w"] + wide["b"], 0) @ wide["w2"]
    # A sum of 16 products of numbers near 1, each rounded to 11 bits.
    np.testing.assert_allclose(run(variant, x)[0], exact, atol=16 * 2.0**-10)
    assert np.abs(run(variant, x)[0] - run(model, x)[0]).max() > 0


OVERFLOW: dict[str, tuple[dict[str, Range], dict[str, str]]] = {
    "large": ({"m": (-20000.0, 5.0)}, {"m": "values up to 2e+04", "a": "values up to 2e+04"}),
    "large input": ({"x": (0.0, 1e6)}, {"m": "values up to 1e+06"}),
    "within headroom": ({"m": (-16000.0, 5.0)}, {}),
    "small": ({"r": (0.0, 1e-6)}, {"r": "values of at most 1e-06", "y": "values of at most 1e-06"}),
    "zeros": ({"r": (0.0, 0.0)}, {}),
}


@pytest.mark.parametrize("name", OVERFLOW)
def test_values_seen_outside_of_the_format_stay_in_float32(tmp_path: Path, name: str) -> None:
    """Both ends of the tensor: what makes it and what reads it; a cast before and behind."""
    nodes = [op("MatMul", "x w", "m"), op("Add", "m b", "a"), op("Relu", "a", "r"), op("MatMul", "r w2", "y")]
    constants = {"w": draw(8, 16), "b": draw(16), "w2": draw(16, 3)}
    ranges, expected = OVERFLOW[name]
    variant, report = convert(build(tmp_path / "m.onnx", nodes, constants), ranges)
    assert report.left.keys() == expected.keys()
    assert all(report.left[node].startswith(reason) for node, reason in expected.items())
    assert set(report.converted) == {"m", "a", "r", "y"} - expected.keys()
    types, nodes_after = types_of(variant), {node.name: node for node in onnx.load(variant).graph.node}
    for node in ("m", "a", "r", "y"):
        kinds = {types[name] for name in (*nodes_after[node].input, *nodes_after[node].output)}
        assert kinds == {FLOAT if node in expected else HALF}
    np.testing.assert_allclose(run(variant, draw(4, 8))[0], run(tmp_path / "m.onnx", draw(4, 8))[0], atol=0.2)


def test_value_beyond_the_format_survives_where_rule_keeps_it(tmp_path: Path) -> None:
    """1e5 squared in float32 between float16 layers; without ranges it is infinite, which shows that the rule does it."""
    nodes = [op("Mul", "x big", "b"), op("Mul", "b b", "s"), op("Mul", "s small", "y")]
    constants = {"big": np.float32(300), "small": np.float32(1e-3)}
    model = build(tmp_path / "m.onnx", nodes, constants)
    x = draw(4, 8)
    ranges = {"b": (-1200.0, 1200.0), "s": (0.0, 1e6)}
    variant, report = convert(model, ranges)
    assert list(report.left) == ["s", "y"]
    np.testing.assert_allclose(run(variant, x)[0], run(model, x)[0], rtol=0.01)
    with np.errstate(over="ignore"):
        assert np.isinf(run(convert(model)[0], x)[0]).any()


def test_a_guard_of_a_division_stays_with_what_divides(tmp_path: Path) -> None:
    """x / sqrt(var + 1e-12) of a row of zeros: 0, not the NaN of a guard that float16 rounds to zero."""
    constants = {"eps": np.float32(1e-12), "axes": np.array([-1]), "w": draw(8, 8), "two": np.float32(2)}
    nodes = [op("Mul", "x x", "p"), op("ReduceMean", "p axes", "v"), op("Add", "v eps", "e"), op("Sqrt", "e", "s")]
    nodes += [op("Div", "x s", "d"), op("MatMul", "d w", "y")]
    model = build(tmp_path / "m.onnx", nodes, constants)
    variant, report = convert(model)
    assert report.left.keys() == {"e", "s", "d"} and set(report.converted) == {"p", "v", "y"}
    assert "constant" in report.left["s"] and report.left["e"].startswith("values of at most 1e-12")
    x = draw(4, 8)
    x[1] = 0
    found = run(variant, x)[0]
    assert np.isfinite(found).all() and not found[1].any()
    np.testing.assert_allclose(found, run(model, x)[0], atol=0.05)


@pytest.mark.parametrize("loud", [1.8e4, 2.9e5])
def test_mask_hides_scores_louder_than_its_float16_copy(tmp_path: Path, loud: float) -> None:
    """Their sum stays in float32, with the mask as it was; and it is float16 where scores are below half of the mask."""
    mask = np.where(np.tril(np.ones((4, 4))), 0, -1e9).astype(np.float32)
    mask[3] = -1e9  # a row that is masked altogether
    nodes = [op("Sin", "x", "s"), op("Mul", "s loud", "q"), op("Add", "q mask", "l"), op("Softmax", "l", "p", axis=-1)]
    nodes += [op("Neg", "p", "y")]
    model = build(tmp_path / "m.onnx", nodes, {"mask": mask, "loud": np.float32(loud)}, (4, 4))
    x = -np.abs(draw(4, 4)) / 4
    x[:, 3] = 1.5
    variant, report = convert(model, {"q": (-loud, loud), "l": (-1e9, loud)})
    assert any("would not hide" in reason for reason in report.left.values())
    np.testing.assert_allclose(run(variant, x)[0], run(model, x)[0], atol=5e-3)


@pytest.mark.parametrize("least", [-1e9, float(np.finfo(np.float32).min)])
def test_a_mask_becomes_one_that_float16_has(tmp_path: Path, least: float) -> None:
    """Attention stays in float16, masked positions get exactly nothing; elsewhere such a constant stays in float32."""
    mask = np.where(np.tril(np.ones((4, 4))), 0, least).astype(np.float32)
    nodes = [op("Transpose", "x", "t", perm=[1, 0]), op("MatMul", "x t", "q"), op("Add", "q mask", "l")]
    nodes += [op("Softmax", "l", "y", axis=-1)]
    model = build(tmp_path / "m.onnx", nodes, {"mask": mask})
    variant, report = convert(model, {"q": (-20.0, 20.0), "l": (least, 20.0)})
    assert not report.left
    stored = {item.name: numpy_helper.to_array(item) for item in onnx.load(variant).graph.initializer}["mask"]
    assert stored.dtype == np.float16 and set(np.unique(stored)) == {MASK, 0}
    x = draw(4, 8)
    found = run(variant, x)[0]
    assert not found[np.triu_indices(4, 1)].any()
    np.testing.assert_allclose(found, run(model, x)[0], atol=5e-3)
    nodes[-1] = op("Tanh", "l", "y")
    _, report = convert(build(tmp_path / "m.onnx", nodes, {"mask": mask}), {"l": (least, 20.0)})
    assert report.left.keys() == {"l", "y"}


def test_numbers_that_become_integers_are_counted_in_float32(tmp_path: Path) -> None:
    """4,097 as float16 is 4,096: a position computed in floats would be another one."""
    constants = {"n": np.float32(4097), "w": np.arange(4099, dtype=np.float32)[:, None] / 4099}
    nodes = [op("ReduceMean", "x", "z", keepdims=0), op("Mul", "z n", "p"), op("Floor", "p", "f")]
    nodes += [op("Cast", "f", "i", to=INT64), op("Gather", "w i", "y")]
    model = build(tmp_path / "m.onnx", nodes, constants)
    variant, report = convert(model)
    assert report.left.keys() == {"p", "f", "i"} and set(report.left.values()) == {
        "its result becomes an integer or a size"
    }
    x = np.ones((4, 8), np.float32)
    assert run(variant, x)[0][0] == np.float16(4097 / 4099)


def test_resize_keeps_its_scales_and_casts_their_type(tmp_path: Path) -> None:
    """An input that is always float32 stays so beside a float16 image; ConstantOfShape and Cast give float16."""
    constants = {"scales": np.array([1, 1, 2, 2], np.float32), "shape": np.array([1]), "k": np.array([[3]])}
    nodes = [op("Resize", "x - scales", "r", mode="nearest"), op("ConstantOfShape", "shape", "zero")]
    nodes += [op("Cast", "k", "c", to=FLOAT), op("Add", "r zero", "a"), op("Mul", "a c", "y")]
    model = build(tmp_path / "m.onnx", nodes, constants, (1, 2, 3, 3))
    variant, report = convert(model)
    types = types_of(variant)
    assert (
        not report.left and types["scales_float32"] == FLOAT and {types[n] for n in ("r", "zero", "c", "a")} == {HALF}
    )
    x = draw(1, 2, 3, 3)
    np.testing.assert_allclose(run(variant, x)[0], run(model, x)[0], rtol=2e-3)


def test_bodies_stay_as_they_are(tmp_path: Path) -> None:
    """An If whose branches read outer tensors by name finds them in float32, whoever made them."""
    branches = [
        helper.make_graph([op(kind, "m w", out)], kind, [], [helper.make_tensor_value_info(out, FLOAT, None)])
        for kind, out in (("Add", "then"), ("Sub", "other"))
    ]
    nodes = [op("MatMul", "x w", "m"), op("ReduceSum", "x", "s", keepdims=0), op("Greater", "s zero", "g")]
    nodes += [op("If", "g", "i", then_branch=branches[0], else_branch=branches[1]), op("MatMul", "i w", "y")]
    model = build(tmp_path / "m.onnx", nodes, {"w": draw(8, 8), "zero": np.float32(0)}, (8, 8))
    variant, report = convert(model)
    assert report.left == {"i": "it has a body"} and set(report.converted) == {"m", "s", "g", "y"}
    assert {"m", "w"}.isdisjoint(name for name, kind in types_of(variant).items() if kind == HALF)
    for seed in range(4):
        x = draw(8, 8, seed=seed)
        np.testing.assert_allclose(run(variant, x)[0], run(model, x)[0], atol=0.2)


def test_outputs_that_other_nodes_read_keep_names_and_types(tmp_path: Path) -> None:
    nodes = [op("MatMul", "x w", "m"), op("Relu", "m", "y"), op("ArgMax", "m", "k", axis=1)]
    outputs = (("y", FLOAT), ("m", FLOAT), ("k", INT64))
    model = build(tmp_path / "m.onnx", nodes, {"w": draw(8, 8)}, outputs=outputs)
    variant, report = convert(model)
    assert report.carries == {"x_float16": "x", "m_float16": "m", "y_float16": "y"}
    found = run(variant, draw(4, 8), ["y", "m", "k"])
    assert [array.dtype for array in found] == [np.float32, np.float32, np.int64]
    np.testing.assert_allclose(found[1], draw(4, 8) @ draw(8, 8), atol=0.02)
    assert report.with_carried({"m": (-1.0, 2.0)}) == {"m": (-1.0, 2.0), "m_float16": (-1.0, 2.0)}


def test_operators_without_float16_stay(tmp_path: Path) -> None:
    """By the operators' schemas, which list the types that each takes."""
    assert slots_of(op("Add", "a b", "c"), 21).inputs == (True, True)
    assert slots_of(op("DequantizeLinear", "q s z", "d"), 21).inputs == (False, True, False)
    assert slots_of(op("SequenceConstruct", "a b", "s"), 21).inputs == (False, False)
    assert slots_of(op("LayerNormalization", "x s b", "y m i"), 21).outputs == (True, False, False)
    nodes = [op("RandomNormalLike", "x", "n", dtype=FLOAT), op("Add", "x n", "y")]
    _, report = convert(build(tmp_path / "m.onnx", nodes, {}))
    assert report.left == {"n": "RandomNormalLike has no float16"} and report.converted == ("y",)


REFUSED: dict[str, tuple[list[onnx.NodeProto], dict[str, Any], str]] = {
    "custom": ([op("FastGelu", "x", "y", domain="com.microsoft")], {"domains": ("com.microsoft",)}, "FastGelu"),
    "opset": ([op("Relu", "x", "y")], {"opset": 17}, "opset 17"),
    "nothing": ([op("RandomNormalLike", "x", "y", dtype=FLOAT)], {}, "nothing to compute"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_converted_is_refused(tmp_path: Path, name: str) -> None:
    nodes, options, words = REFUSED[name]
    model = build(tmp_path / "m.onnx", nodes, {}, **options)
    with pytest.raises(CandidateRefused, match=words) as caught:
        convert(model)
    assert caught.value.kind == "unsupported" and not (tmp_path / "half.onnx").exists()


def test_equal_sources_give_equal_bytes(tmp_path: Path) -> None:
    nodes = [op("MatMul", "x w", "m"), op("Relu", "m", "y")]
    model = build(tmp_path / "m.onnx", nodes, {"w": draw(8, 8)}, outputs=(("y", FLOAT), ("m", FLOAT)))
    first = convert(model)[0].read_bytes()
    assert convert(model)[0].read_bytes() == first
