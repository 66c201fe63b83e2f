"""The INT4 weight-only pass: which nodes it takes, what it makes of shared weights, and that AWQ's factors cancel out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.weight_only.awq import AwqLayer, fold, search_factors
from tasks.ptq.weight_only.clipping import clipped
from tasks.ptq.weight_only.gptq import gptq
from tasks.ptq.weight_only.int4_grid import round_to_nearest
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.ptq.weight_only.sites import tensors_to_collect
from validators.errors import CandidateRefused
from validators.graph import stored as graph_module

Arrays = dict[str, NDArray[Any]]
K = 32
LOUD = np.geomspace(0.02, 20, K).astype(np.float32)


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def save(path: Path, nodes: list[onnx.NodeProto], constants: Arrays, *, kind: int = TensorProto.FLOAT) -> Path:
    """A graph from `x` (`[batch, 32]`) to `y`."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, ["batch", K])],
        [helper.make_tensor_value_info("y", kind, ["batch", "channels"])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"{output}_{kind}", **attributes)


def run(model: Path, x: NDArray[Any]) -> NDArray[np.float64]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0], np.float64)


def constants_of(path: Path) -> Arrays:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def quantized(
    model: Path, method: str = "rtn", *, x: NDArray[Any] | None = None, symmetric: bool = True, **options: Any
) -> tuple[Path, Any]:
    """The variant in blocks of 16 at accuracy level 0, with Gram matrices of x, and the report."""
    grams = None
    if x is not None:
        tensors = tensors_to_collect(model, block_size=16)
        grams = collect_grams(model, tensors, lambda: [{"x": x}], max_memory_mb=10)
    exclude = options.pop("exclude", ())
    weights = BlockWeights(method, symmetric=symmetric, **({"block_size": 16, "accuracy_level": 0} | options))
    variant = model.with_name("variant.onnx")
    report = quantize_weights(model, variant, weights, grams=grams, exclude=exclude)
    return variant, report


@pytest.mark.parametrize(
    ("method", "symmetric"),
    [
        ("rtn", True),
        ("rtn", False),
        ("hqq", False),
        ("gptq", True),
        ("gptq", False),
        ("awq", True),
        ("awq", False),
        ("learned", True),
    ],
)
def test_a_whole_model(tiny: Tiny, tmp_path: Path, method: str, symmetric: bool) -> None:
    """Its Gemm is split, both products run in INT4, outputs are near, and the report says what is in the file."""
    prepare_graph(tiny.model, tmp_path / "m.onnx")
    assert "Gemm" in operators(tmp_path / "m.onnx")
    x = np.load(tiny.evaluation)["x"]
    tensors = tensors_to_collect(tmp_path / "m.onnx", block_size=32)
    assert sorted(tensors.values()) == [64, 128]
    grams = collect_grams(tmp_path / "m.onnx", tensors, lambda: [{"x": x[:256]}], max_memory_mb=10)
    variant = tmp_path / "variant.onnx"
    report = quantize_weights(tmp_path / "m.onnx", variant, BlockWeights(method, 32, symmetric), grams=grams)
    kinds = operators(variant)
    assert kinds.count("MatMulNBits") == len(report.quantized) == 2 and "Gemm" not in kinds and "MatMul" not in kinds
    assert report.left == {} and report.gemm_split == 1
    assert kinds.count("Mul") == report.factors_inserted
    shapes = []
    for made in onnx.load(variant).graph.node:
        if made.op_type == "MatMulNBits":
            attributes = {item.name: helper.get_attribute_value(item) for item in made.attribute}
            shapes.append((attributes["K"], attributes["N"]))
            assert attributes["accuracy_level"] == (0 if method == "hqq" else 4)
            assert len(made.input) == (3 if symmetric else 4)
    assert shapes == [(64, 128), (128, 4)]
    session = ort.InferenceSession(str(variant), providers=["CPUExecutionProvider"])
    expected = ort.InferenceSession(str(tiny.model), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
    difference = session.run(None, {"x": x})[0] - expected
    assert 0 < (difference**2).mean() / expected.var() < 0.02


def test_the_codes_are_those_of_the_method(tmp_path: Path) -> None:
    """Rounding to nearest, GPTQ and AWQ, as the functions make them of the weight and its inputs."""
    weight, x = normal(K, 6), normal(100, K)
    x[:, 1:] += 2 * x[:, :1]
    x *= LOUD
    model = save(tmp_path / "m.onnx", [node("MatMul", "x w", "y")], {"w": weight})
    options: dict[str, Any] = {"block_size": 16, "symmetric": True, "dtype": np.float32}
    wide = x.astype(np.float64)
    gram = wide.T @ wide
    factors, alpha = search_factors([AwqLayer(weight, gram)], np.abs(wide).mean(axis=0), **options)
    assert alpha > 0
    scaled = AwqLayer(weight / factors[:, None], (wide * factors).T @ (wide * factors))
    expected = {
        "rtn": round_to_nearest(weight, **options).dequantized(),
        "gptq": gptq(weight, gram, **options).dequantized(),
        "awq": clipped(scaled.weight, scaled.gram, **options).dequantized() * factors[:, None],
    }
    for method, other in expected.items():
        variant, _ = quantized(model, method, x=x)  # type: ignore[arg-type]  # the parameters are literals
        outputs = wide @ other
        np.testing.assert_allclose(run(variant, x), outputs, atol=1e-5 * np.abs(outputs).max())


def test_nodes_left_alone_have_a_reason(tmp_path: Path) -> None:
    """One node for each reason, and one that is quantized."""
    nodes = [
        node("MatMul", "x good", "a"),
        node("MatMul", "x excluded", "b"),
        node("Transpose", "x", "t", perm=[1, 0]),
        node("MatMul", "t b", "products"),
        node("MatMul", "left x_t", "c"),
        node("MatMul", "x tiny_t", "d"),
        node("MatMul", "x stacked", "e"),
        node("Gemm", "x good", "f", alpha=2.0),
        node("MatMul", "x broken", "g"),
        node("Identity", "a", "y"),
    ]
    nodes[4].input[1] = "t"
    nodes[5].input[0], nodes[5].input[1] = "two", "tiny"
    constants = {
        "good": normal(K, 8),
        "excluded": normal(K, 8),
        "left": normal(4, K),
        "tiny": normal(2, 8),
        "two": normal(4, 2),
        "stacked": normal(2, K, 8),
        "broken": np.full((K, 8), np.nan, np.float32),
    }
    model = save(tmp_path / "m.onnx", nodes, constants)
    _, report = quantized(model, exclude=["b_MatMul"])
    assert list(report.quantized) == ["a_MatMul"]
    left = report.left
    assert len(left) == 7
    for name, reason in (
        ("b_MatMul", "excluded"),
        ("products_MatMul", "not constant"),
        ("c_MatMul", "not constant"),
        ("d_MatMul", "too small: a column of 2 weights takes 8 bytes, and 12"),
        ("e_MatMul", "3 axes"),
        ("f_Gemm", "alpha"),
        ("g_MatMul", "NaN"),
    ):
        assert reason in left[name], name


def test_a_weight_that_callers_may_replace_is_left_alone(tmp_path: Path) -> None:
    """An initializer that is an input as well is only its default."""
    model = onnx.load(
        save(
            tmp_path / "m.onnx",
            [node("MatMul", "x w", "a"), node("MatMul", "a v", "y")],
            {"w": normal(K, K), "v": normal(K, 8)},
        )
    )
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [K, K]))
    onnx.save(model, tmp_path / "m.onnx")
    _, report = quantized(tmp_path / "m.onnx")
    assert list(report.quantized) == ["y_MatMul"] and list(report.left) == ["a_MatMul"]


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_a_shared_weight_is_quantized_once(tmp_path: Path, method: str) -> None:
    """For both activations: GPTQ's codes are those of the sum of their Gram matrices; the other user reads the same bytes."""
    weight, x = normal(K, K), normal(200, K) * (LOUD if method == "awq" else 1)
    model = save(
        tmp_path / "m.onnx",
        [node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("MatMul", "b w", "y")],
        {"w": weight},
    )
    variant, report = quantized(model, method, x=x)
    made = [seen for seen in onnx.load(variant).graph.node if seen.op_type == "MatMulNBits"]
    assert len(made) == 2 and list(made[0].input[1:]) == list(made[1].input[1:])
    assert "w" not in constants_of(variant)
    assert (report.factors_folded, report.factors_inserted) == (0, 2 if method == "awq" else 0)
    expected = run(model, x)
    assert ((run(variant, x) - expected) ** 2).mean() / expected.var() < 0.05
    if method == "gptq":
        b = np.tanh(x.astype(np.float64) @ weight)
        both = gptq(weight, x.astype(np.float64).T @ x + b.T @ b, block_size=16, symmetric=True, dtype=np.float32)
        shared = np.tanh(x @ both.dequantized()) @ both.dequantized()
        # Sums over float32 activations and over float64 ones may choose another code where two are equally near.
        assert np.median(np.abs(run(variant, x) - shared)) < 1e-4


def test_a_table_that_is_not_only_a_tied_embedding(tmp_path: Path) -> None:
    """One whose mean is taken as well: gathered in float, multiplied in INT4."""
    table = normal(48, K)
    nodes = [
        node("Gather", "table ids", "rows"),
        node("Add", "x rows", "s"),
        node("ReduceMean", "table axes", "mean"),
        node("Add", "s mean", "a"),
        node("Transpose", "table", "head", perm=[1, 0]),
        node("MatMul", "a head", "y"),
    ]
    constants = {"table": table, "ids": np.array([7], np.int64), "axes": np.array([0], np.int64)}
    variant, report = quantized(save(tmp_path / "m.onnx", nodes, constants))
    assert operators(variant) == ["Gather", "Add", "ReduceMean", "Add", "MatMulNBits"] and report.tied == ()
    np.testing.assert_array_equal(constants_of(variant)["table"], table)
    x = normal(5, K)
    weight = round_to_nearest(table.T, block_size=16, symmetric=True, dtype=np.float32).dequantized()
    np.testing.assert_allclose(run(variant, x), (x + table[7] + table.mean(axis=0)) @ weight, atol=1e-4)


@pytest.mark.parametrize("method", ["rtn", "gptq", "awq"])
def test_float16(tmp_path: Path, method: str) -> None:
    """Scales, zero points' companions and AWQ's factors are float16 as well; the outputs are near."""
    x = (normal(100, K) * np.geomspace(0.05, 5, K)).astype(np.float16)
    nodes = [node("MatMul", "x w", "a"), node("Tanh", "a", "b"), node("MatMul", "b v", "y")]
    constants = {"w": normal(K, K).astype(np.float16) / 4, "v": normal(K, 8).astype(np.float16)}
    model = save(tmp_path / "m.onnx", nodes, constants, kind=TensorProto.FLOAT16)
    variant, report = quantized(model, method, x=x)
    kinds = {array.dtype.name for array in constants_of(variant).values()}
    assert kinds == {"uint8", "float16"}
    assert (report.factors_inserted > 0) == (method == "awq")
    expected = run(model, x)
    assert ((run(variant, x) - expected) ** 2).mean() / expected.var() < 0.05


@pytest.mark.parametrize(
    ("nodes", "folds"),
    [
        ([node("Mul", "x g", "a")], True),
        ([node("Mul", "x g", "p"), node("Add", "b p", "a")], True),
        ([node("LayerNormalization", "x g b", "a", axis=-1)], True),
        ([node("LayerNormalization", "x g", "a", axis=-1)], True),
        ([node("MatMul", "x v", "a")], True),
        ([node("MatMul", "x v", "p"), node("Add", "p b", "q"), node("Relu", "q", "a")], True),
        # A residual reads what the factors would change; an activation that is not linear; a constant that others read.
        ([node("Mul", "x g", "a"), node("Add", "a b", "residual")], False),
        ([node("MatMul", "x v", "p"), node("Tanh", "p", "a")], False),
        ([node("Mul", "x g", "p"), node("Add", "p g", "a")], False),
        ([node("MatMul", "x v", "p"), node("MatMul", "p v", "a")], False),
        ([node("Mul", "x x", "a")], False),
        ([node("Add", "x b", "a")], False),
        ([node("Identity", "x", "a")], False),
        ([node("MatMul", "x narrow", "p"), node("Add", "p b", "a")], False),
    ],
)
def test_factors_are_folded_only_where_that_is_exact(tmp_path: Path, nodes: list[onnx.NodeProto], folds: bool) -> None:
    """Folded into the constants and divided out of the weight, the float graph gives the same outputs; else it is as before."""
    residual = any("residual" in item.output for item in nodes)
    tail = [node("MatMul", "a w", "p2"), node("Add", "p2 residual", "y")] if residual else [node("MatMul", "a w", "y")]
    constants = {
        "g": LOUD,
        "b": normal(1, K),
        "v": normal(K, K),
        "narrow": normal(K, 1),
        "w": normal(K, K),
    }
    model = save(tmp_path / "m.onnx", [*nodes, *tail], constants)
    factors = np.random.default_rng(1).uniform(0.1, 10, K)
    changed = onnx.load(model)
    assert fold(changed.graph, "a", 1, factors) is folds
    if not folds:
        assert changed == onnx.load(model)
        return
    for tensor in changed.graph.initializer:
        if tensor.name == "w":
            divided = (constants["w"] / factors[:, None]).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(divided, "w"))
    onnx.save(changed, tmp_path / "changed.onnx")
    x = normal(50, K)
    expected = run(model, x)
    np.testing.assert_allclose(run(tmp_path / "changed.onnx", x), expected, atol=1e-4 * np.abs(expected).max())
    assert not fold(onnx.load(model).graph, "a", 2, factors), "one reader that does not expect the factors"


@pytest.mark.parametrize("residual", [False, True])
def test_awq_scales_what_several_nodes_read_once(tmp_path: Path, residual: bool) -> None:
    """Two products of one normalization: folded into it, or, where a residual reads it too, one Mul before both."""
    last = [node("Add", "sum a", "y")] if residual else [node("Identity", "sum", "y")]
    nodes = [
        node("LayerNormalization", "x g b", "a", axis=-1),
        node("MatMul", "a w", "p"),
        node("MatMul", "a v", "q"),
        node("Add", "p q", "sum"),
        *last,
    ]
    constants = {"g": LOUD, "b": np.zeros(K, np.float32), "w": normal(K, K), "v": normal(K + 1, K)[:K]}
    x = normal(300, K)
    model = save(tmp_path / "m.onnx", nodes, constants)
    variant, report = quantized(model, "awq", x=x)
    assert (report.factors_folded, report.factors_inserted) == ((0, 1) if residual else (1, 0))
    assert operators(variant).count("Mul") == int(residual)
    expected = run(model, x)
    error = ((run(variant, x) - expected) ** 2).mean()
    plain, _ = quantized(model, "rtn")
    assert error < 0.8 * ((run(plain, x) - expected) ** 2).mean()


def test_weights_in_a_second_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a model of more than 2 GB has them: read, and written."""
    nodes = [node("MatMul", "x w", "y")]
    model = save(tmp_path / "m.onnx", nodes, {"w": normal(K, 64)})
    x = normal(20, K)
    expected = run(quantized(model)[0], x)
    onnx.save_model(onnx.load(model), model, save_as_external_data=True, location="m.onnx.data", size_threshold=0)
    monkeypatch.setattr(graph_module, "EXTERNAL_DATA_BYTES", 10)
    variant, _ = quantized(model, x=x)
    assert variant.with_name("variant.onnx.data").exists()
    np.testing.assert_array_equal(run(variant, x), expected)


@pytest.mark.parametrize(
    ("options", "kind", "found"),
    [
        ({"block_size": 48}, "unsupported", "blocks of 48"),
        ({"method": "learned"}, "invalid", "Gram matrix of 'x': none"),
        ({"method": "awq", "grams": {"x": Gram(np.eye(3), np.ones(3), 3)}}, "invalid", "shape \\(3, 3\\)"),
        ({"method": "gptq", "grams": {"x": Gram(-np.eye(K), np.ones(K), 3)}}, "invalid", "without an inverse"),
        ({"exclude": ["y_matmul"]}, "invalid", "y_matmul"),
        ({"exclude": ["y_MatMul"]}, "unsupported", "y_MatMul: excluded"),
    ],
)
def test_what_cannot_be_done_is_refused(tmp_path: Path, options: dict[str, Any], kind: str, found: str) -> None:
    """With what was found and a fix, and without a file by the name of the variant."""
    model = save(tmp_path / "m.onnx", [node("MatMul", "x w", "y")], {"w": normal(K, 8)})
    settings: dict[str, Any] = {"block_size": 16, "symmetric": True, "method": "rtn"} | options
    others = {name: settings.pop(name) for name in ("grams", "exclude") if name in settings}
    with pytest.raises(CandidateRefused, match=found) as caught:
        quantize_weights(model, tmp_path / "variant.onnx", BlockWeights(**settings), **others)
    assert caught.value.kind == kind and caught.value.fix
    assert not (tmp_path / "variant.onnx").exists()


def test_an_excluded_gemm_goes_by_its_own_name(tmp_path: Path) -> None:
    model = save(
        tmp_path / "m.onnx",
        [node("Gemm", "x w b", "a"), node("Gemm", "a v", "y", transB=1)],
        {"w": normal(K, K), "b": normal(K), "v": normal(8, K)},
    )
    variant, report = quantized(model, exclude=["a_Gemm"])
    assert report.left == {"a_Gemm_MatMul": "excluded"} and len(report.quantized) == 1 and report.gemm_split == 2
    assert sorted(operators(variant)) == ["Add", "MatMul", "MatMulNBits"]


def bits_of(path: Path) -> list[int]:
    """The bits of each product, in the order of the graph."""
    made = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulNBits"]
    return [next(item.i for item in node.attribute if item.name == "bits") for node in made]


def test_int8_weights_are_the_nearest_of_254_steps(tmp_path: Path) -> None:
    """Blocks of 16 along K, each in steps of its largest magnitude over 127, one by one."""
    weight, x = normal(K, 6) * LOUD[:, None], normal(5, K)
    model = save(tmp_path / "m.onnx", [node("MatMul", "x w", "y")], {"w": weight})
    variant, report = quantized(model, bits=8)
    assert list(report.quantized) == ["y_MatMul"] and bits_of(variant) == [8]
    rounded = np.empty(weight.shape)
    for column in range(6):
        for start in (0, 16):
            block = weight[start : start + 16, column].astype(np.float64)
            step = float(np.float32(np.abs(block).max() / 127))
            rounded[start : start + 16, column] = [round(value / step) * step for value in block]
    np.testing.assert_allclose(run(variant, x), x @ rounded, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (BlockWeights("gptq", 16, True, bits=8), "INT8 weights by gptq"),
        (BlockWeights("rtn", 16, False, bits=8), "INT8 weights by rtn"),
    ],
)
def test_combinations_without_a_form_are_refused(settings: BlockWeights, words: str, tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [node("MatMul", "x w", "y")], {"w": normal(K, 6)})
    with pytest.raises(CandidateRefused) as caught:
        quantize_weights(model, tmp_path / "v.onnx", settings)
    assert words in caught.value.found
