"""INT8 with ranges at run time: what is quantized and what is left, by graphs made by hand; numbers against float64.

`test_int8.py` has the numbers of plain products; here are biases, shared activations, attention, LSTM and tables.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE

from tasks.ptq.eight_bit.affine import WeightBits, fit_range, fit_weight, read_weight, store_weight
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.ort import open_session, run_outputs
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings

RNG = np.random.default_rng(7)
WIDTH, TOKENS = 32, 6


def weight(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def save(
    folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, NDArray[Any]], *, x: str = "float", name: str = "m"
) -> Path:
    """A model from `x` [batch, tokens, width] (or indices) to `y`."""
    kind = TensorProto.FLOAT if x == "float" else TensorProto.INT64
    shape = ["batch", "tokens", WIDTH] if x == "float" else ["batch", "tokens"]
    graph = helper.make_graph(
        nodes,
        "dynamic",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = folder / f"{name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def run(model: Path, x: NDArray[Any]) -> NDArray[Any]:
    with open_session(model, SessionSettings("CPUExecutionProvider", 1)) as session:
        return run_outputs(session, {"x": x}, ["y"])[0]


def operators(model: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(model).graph.node)


def product(x: NDArray[Any], matrix: NDArray[np.float32], bits: WeightBits) -> NDArray[np.float64]:
    """Of the numbers that UINT8 and INT8 stand for, in float64."""
    fit = fit_range(float(x.min()), float(x.max()), "uint8")
    scales = fit_weight(matrix, 1, bits)
    read = read_weight(store_weight(matrix, scales, 1, bits), scales, 1)
    return np.asarray(fit.read(fit.store(x)).astype(np.float64) @ read.astype(np.float64))


@pytest.mark.parametrize("bits", BITS_HERE)
def test_products_of_one_activation_share_its_quantization(tmp_path: Path, bits: WeightBits) -> None:
    """Bias by Add, bias of a Gemm's kind, and none: their sum is what the reference computes."""
    constants = {"q": weight(WIDTH, 16), "k": weight(WIDTH, 16), "v": weight(WIDTH, 16), "b": weight(16)}
    nodes = [
        helper.make_node("MatMul", ["x", "q"], ["xq"], name="query"),
        helper.make_node("Add", ["b", "xq"], ["queries"], name="query bias"),
        helper.make_node("MatMul", ["x", "k"], ["keys"], name="key"),
        helper.make_node("MatMul", ["x", "v"], ["values"], name="value"),
        helper.make_node("Sum", ["queries", "keys", "values"], ["y"], name="sum"),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    report = quantize_dynamic(model, variant, weights=Int8Weights(bits=bits))
    assert report.quantized == ("query", "key", "value") and report.left == {}
    assert operators(variant) == {"DynamicQuantizeLinear": 1, "MatMulIntegerToFloat": 3, "Sum": 1}
    x = weight(2, TOKENS, WIDTH)
    expected = sum(product(x, constants[name], bits) for name in "qkv") + constants["b"]
    np.testing.assert_allclose(run(variant, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("bias", [(16,), (1,), (TOKENS, 16)])
def test_a_bias_of_any_shape_is_added(tmp_path: Path, bias: tuple[int, ...], bits: WeightBits) -> None:
    """Only a row of as many numbers as the product is wide goes into the kernel."""
    constants = {"w": weight(16, WIDTH), "flat": np.array([-1, WIDTH], np.int64), "b": weight(*bias)}
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["rows"], name="flatten"),
        helper.make_node("Gemm", ["rows", "w", "b"], ["y"], name="layer", transB=1),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    quantize_dynamic(model, variant, weights=Int8Weights(bits=bits))
    assert operators(variant)["Add"] == (0 if bias == (16,) else 1)
    x = weight(1, TOKENS, WIDTH)
    expected = product(x[0], np.ascontiguousarray(constants["w"].T), bits) + constants["b"]
    np.testing.assert_allclose(run(variant, x), expected, rtol=1e-4, atol=1e-4)


def test_bias_stays_an_addition_if_others_read_the_bare_product(tmp_path: Path) -> None:
    constants = {"w": weight(WIDTH, WIDTH), "b": weight(WIDTH)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="layer"),
        helper.make_node("Add", ["p", "b"], ["s"], name="bias"),
        helper.make_node("Mul", ["p", "s"], ["y"], name="both"),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    quantize_dynamic(model, variant, weights=Int8Weights(per_channel=False))
    assert operators(variant) == {"DynamicQuantizeMatMul": 1, "Add": 1, "Mul": 1}


def test_kept_and_unquantizable_nodes_are_left_with_the_reason(tmp_path: Path) -> None:
    constants = {"w": weight(WIDTH, WIDTH), "batch": weight(2, WIDTH, WIDTH), "kernel": weight(TOKENS, TOKENS, 1)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="kept"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="layer"),
        helper.make_node("MatMul", ["b", "batch"], ["c"], name="matrices"),
        helper.make_node("Conv", ["c", "kernel"], ["d"], name="convolution"),
        helper.make_node("Transpose", ["d"], ["e"], name="turned", perm=[0, 2, 1]),
        helper.make_node("MatMul", ["d", "e"], ["y"], name="scores"),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    report = quantize_dynamic(model, variant, weights=Int8Weights(), keep_float=["kept"])
    assert report.quantized == ("layer",)
    assert report.left == {
        "kept": "kept in float as asked",
        "matrices": "the weight is no constant matrix of float32",
        "convolution": "convolutions are slower with ranges at run time",
        "scores": "the weight is no constant matrix of float32",
    }
    with pytest.raises(CandidateRefused, match="nothing to quantize") as caught:
        quantize_dynamic(model, variant, weights=Int8Weights(), keep_float=["kept", "layer"])
    assert caught.value.kind == "unsupported" and "kept" in caught.value.found


def test_foreign_domain_operator_with_known_name_is_left_alone(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="layer"),
        helper.make_node("MatMul", ["a", "w"], ["y"], name="theirs", domain="com.acme"),
    ]
    model = onnx.load(save(tmp_path, nodes, {"w": weight(WIDTH, WIDTH)}))
    model.opset_import.append(helper.make_opsetid("com.acme", 1))
    onnx.save(model, tmp_path / "m.onnx")
    report = quantize_dynamic(tmp_path / "m.onnx", tmp_path / "variant.onnx", weights=Int8Weights())
    assert report.quantized == ("layer",)


def test_embedding_is_stored_in_int8_unless_it_has_other_readers(tmp_path: Path) -> None:
    """A row of 48 in blocks of 16: each number within half a step of its block."""
    constants = {"table": weight(100, 48), "w": weight(48, 8)}
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["rows"], name="embedding"),
        helper.make_node("MatMul", ["rows", "w"], ["y"], name="layer"),
    ]
    model, variant = save(tmp_path, nodes, constants, x="indices"), tmp_path / "variant.onnx"
    assert quantize_dynamic(model, variant, weights=Int8Weights()).quantized == ("embedding", "layer")
    x = RNG.integers(0, 100, (2, TOKENS))
    blocks = constants["table"].reshape(100, 3, 16)
    step = np.abs(blocks).max() / 127
    rows = onnx.load(variant)
    rows.graph.output[0].name = "rows"
    del rows.graph.node[1:]
    onnx.save(rows, tmp_path / "rows.onnx")
    with open_session(tmp_path / "rows.onnx", SessionSettings("CPUExecutionProvider", 1)) as session:
        looked_up = run_outputs(session, {"x": x}, ["rows"])[0]
    assert 0 < np.abs(looked_up - constants["table"][x]).max() <= step / 2 * 1.001

    nodes.append(helper.make_node("MatMul", ["table", "w"], ["z"], name="all"))
    shared = save(tmp_path, nodes, constants, x="indices", name="shared")
    assert quantize_dynamic(shared, variant, weights=Int8Weights()).left == {
        "embedding": "a table that is read elsewhere, or by columns",
        "all": "the input is a constant",
    }


@pytest.mark.parametrize("bits", BITS_HERE)
def test_a_gather_of_a_shape_is_no_table(tmp_path: Path, bits: WeightBits) -> None:
    """As exporters write it to reshape by the batch: it stays, and is not listed."""
    constants = {"w": weight(WIDTH, WIDTH), "at": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="layer"),
        helper.make_node("Shape", ["x"], ["shape"], name="shape"),
        helper.make_node("Gather", ["shape", "at"], ["batch"], name="batch"),
        helper.make_node("Concat", ["batch", "rest"], ["flat"], name="flat", axis=0),
        helper.make_node("Reshape", ["p", "flat"], ["y"], name="reshape"),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    report = quantize_dynamic(model, variant, weights=Int8Weights(bits=bits))
    assert (report.quantized, report.left) == (("layer",), {})
    x = weight(2, TOKENS, WIDTH)
    np.testing.assert_allclose(run(variant, x), product(x, constants["w"], bits).reshape(2, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("per_channel", [False, True])
def test_fused_attention_has_a_quantized_form(tmp_path: Path, per_channel: bool, bits: WeightBits) -> None:
    constants = {"w": weight(WIDTH, 3 * WIDTH) / 6, "b": weight(3 * WIDTH)}
    nodes = [
        helper.make_node("Attention", ["x", "w", "b"], ["a"], name="attention", domain="com.microsoft", num_heads=4),
        helper.make_node("Identity", ["a"], ["y"], name="end"),
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    assert quantize_dynamic(model, variant, weights=Int8Weights(per_channel, bits)).quantized == ("attention",)
    assert operators(variant)["QAttention"] == 1
    x = weight(2, TOKENS, WIDTH)
    exact, quantized = run(model, x), run(variant, x)
    assert 1e-5 < np.square(quantized - exact).mean() / np.square(exact).mean() < 2e-3

    nodes[0].input.extend(["", "", "more"])
    biased = save(tmp_path, nodes, constants | {"more": weight(1, 1, TOKENS, TOKENS)}, name="biased")
    with pytest.raises(CandidateRefused, match="attention in a form"):
        quantize_dynamic(biased, variant, weights=Int8Weights(per_channel))


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_an_lstm_has_a_quantized_form(tmp_path: Path, per_channel: bool, direction: str, bits: WeightBits) -> None:
    ways, hidden = (2 if direction == "bidirectional" else 1), 16
    constants = {
        "W": weight(ways, 4 * hidden, WIDTH) / 6,
        "R": weight(ways, 4 * hidden, hidden) / 4,
        "B": weight(ways, 8 * hidden) / 8,
    }
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R", "B"], ["y"], name="lstm", hidden_size=hidden, direction=direction)
    ]
    model, variant = save(tmp_path, nodes, constants), tmp_path / "variant.onnx"
    assert quantize_dynamic(model, variant, weights=Int8Weights(per_channel, bits)).quantized == ("lstm",)
    x = weight(5, 3, WIDTH)
    macs = 5 * 3 * ways * 4 * hidden * (WIDTH + hidden)
    for path, kernel, share in ((model, "LSTM", 0.0), (variant, "DynamicQuantizeLSTM", 1.0)):
        coverage = measure_coverage(path, SessionSettings("CPUExecutionProvider", 1), {"x": x})
        assert (coverage.macs_by_kernel, coverage.share) == ({kernel: macs}, share)
    exact, quantized = run(model, x), run(variant, x)
    assert 1e-6 < np.square(quantized - exact).mean() / np.square(exact).mean() < 2e-3


def test_weights_of_seven_bits_leave_room_for_pairs(tmp_path: Path) -> None:
    model = save(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")], {"w": weight(WIDTH, 8)})
    for bits, limit in ((7, 64), (8, 127)):
        quantize_dynamic(model, tmp_path / "v.onnx", weights=Int8Weights(bits=bits))  # type: ignore[arg-type]  # 7 or 8
        constants = {
            item.name: numpy_helper.to_array(item) for item in onnx.load(tmp_path / "v.onnx").graph.initializer
        }
        assert np.abs(constants["w_int8"]).max() == limit
