"""INT4: the weights in the file, unpacked by hand, against round to nearest; the numbers that the kernel makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.int4 import ACCURACY_LEVEL, quantize_weights
from tasks.ptq.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.recipe import Candidate, decode
from validators.records import SessionSettings

Floats = NDArray[np.float64]


def candidate(block_size: int) -> Candidate:
    return decode(f"int4-g{block_size}-rtn@ort-cpu")


def save_product(path: Path, weight: NDArray[np.float32]) -> Path:
    """A model of one product, `x[batch, K] @ weight[K, N]`."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", weight.shape[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", weight.shape[1]])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def unpack(model: Path) -> dict[str, tuple[NDArray[np.int64], Floats, dict[str, Any]]]:
    """By weight: codes 0 to 15 of shape `(K, N)`, scales of shape `(K, N)`, and the node's attributes.

    The operator stores B as `(N, blocks, block_size / 2)` bytes, the earlier of two values in the low four bits, scales as
    `(N, blocks)`; without zero points, 8 stands for zero (com.microsoft.MatMulNBits in ONNX Runtime's ContribOperators.md).
    """
    graph = onnx.load(model).graph
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    found = {}
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            continue
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        k, n, block = attributes["K"], attributes["N"], attributes["block_size"]
        assert len(node.input) == 3, "a symmetric weight has no zero points"
        packed, scales = constants[node.input[1]], constants[node.input[2]].reshape(n, -1)
        assert packed.dtype == np.uint8 and packed.shape == (n, -(-k // block), block // 2)
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(n, -1)[:, :k]
        spread = np.repeat(scales, block, axis=1)[:, :k]
        found[node.input[1].removesuffix("_Q4")] = codes.T.astype(np.int64), spread.T.astype(np.float64), attributes
    return found


def round_to_nearest(weight: Floats, block: int) -> tuple[NDArray[np.int64], Floats]:
    """Codes and scales of shape `(K, N)`: in each block along K, -8 stands for the value of largest magnitude."""
    codes, scales = np.empty(weight.shape, np.int64), np.empty(weight.shape)
    for start in range(0, weight.shape[0], block):
        part = weight[start : start + block]
        for column in range(weight.shape[1]):
            low, high = part[:, column].min(), part[:, column].max()
            scale = float(np.float32((high if abs(high) > abs(low) else low) / -8))
            steps = part[:, column] / scale if scale else np.zeros(len(part))
            # Half away from zero, as C's roundf.
            rounded = np.sign(steps) * np.floor(np.abs(steps) + 0.5)
            codes[start : start + block, column] = np.clip(rounded + 8, 0, 15)
            scales[start : start + block, column] = scale
    return codes, scales


def test_a_table_by_hand(tmp_path: Path) -> None:
    """Two columns of one block: scale -0.5 from the largest value 4, and 0.25 from the largest value -2."""
    weight = np.zeros((16, 2), np.float32)
    weight[:6, 0] = [4.0, -3.5, 0.5, 0.2, 0.3, -3.9]
    weight[:6, 1] = [-2.0, 1.75, 2.0, 0.25, -0.1, -0.2]
    quantize_weights(save_product(tmp_path / "model.onnx", weight), candidate(16), tmp_path / "variant.onnx")
    codes, scales, _ = unpack(tmp_path / "variant.onnx")["w"]
    assert scales[0].tolist() == [-0.5, 0.25]
    # 4 / -0.5 = -8 -> 0; -3.5 -> 7 -> 15; 0.5 -> -1 -> 7; 0.2 -> -0.4 -> 8; 0.3 -> -0.6 -> 7; -3.9 -> 7.8 saturates at 15.
    assert codes[:6, 0].tolist() == [0, 15, 7, 8, 7, 15]
    # -2 / 0.25 = -8 -> 0; 1.75 -> 7 -> 15; 2 -> 8 saturates at 15; 0.25 -> 9; -0.1 -> -0.4 -> 8; -0.2 -> -0.8 -> 7.
    assert codes[:6, 1].tolist() == [0, 15, 15, 9, 8, 7]
    assert (codes[6:] == 8).all()


@pytest.mark.parametrize(("k", "block_size"), [(64, 16), (64, 32), (96, 64), (40, 32), (64, 128), (300, 256)])
def test_weights_are_rounded_to_nearest_by_block(tmp_path: Path, k: int, block_size: int) -> None:
    """Also where the last block is not full, and where one block holds all."""
    weight = np.random.default_rng(k + block_size).normal(size=(k, 24)).astype(np.float32)
    done = quantize_weights(save_product(tmp_path / "model.onnx", weight), candidate(block_size), tmp_path / "v.onnx")
    assert done == {"Gemm split into MatMul and Add": 0, "MatMul in INT4": 1}
    codes, scales, attributes = unpack(tmp_path / "v.onnx")["w"]
    expected_codes, expected_scales = round_to_nearest(weight.astype(np.float64), block_size)
    np.testing.assert_allclose(scales, expected_scales, rtol=1e-6)
    np.testing.assert_array_equal(codes, expected_codes)
    assert {key: attributes[key] for key in ("K", "N", "bits", "block_size", "accuracy_level")} == {
        "K": k,
        "N": 24,
        "bits": 4,
        "block_size": block_size,
        "accuracy_level": ACCURACY_LEVEL,
    }
    # What rounding may do: half a step, and a whole one for values near the end that has no code of its own.
    error = np.abs((codes - 8) * scales - weight)
    assert (error <= np.abs(scales) * 1.0001).all()
    assert (error <= np.abs(scales) * 0.5001).mean() > 0.9


@pytest.mark.parametrize("block_size", [32, 128])
def test_outputs_are_those_of_the_dequantized_weights(tiny: Tiny, tmp_path: Path, block_size: int) -> None:
    """The whole tiny model, its Gemm split: outputs as float arithmetic on the unpacked weights gives them.

    At accuracy level 4 the kernel quantizes activations to INT8 by block at run time: an error of at most half a step,
    amax / 254, in each of the K activations of a product, which the weights carry on.
    """
    prepare_graph(tiny.model, tmp_path / "prepared.onnx")
    assert "Gemm" in {node.op_type for node in onnx.load(tmp_path / "prepared.onnx").graph.node}
    done = quantize_weights(tmp_path / "prepared.onnx", candidate(block_size), tmp_path / "variant.onnx")
    assert done == {"Gemm split into MatMul and Add": 1, "MatMul in INT4": 2}

    weights = {name: (codes - 8) * scales for name, (codes, scales, _) in unpack(tmp_path / "variant.onnx").items()}
    x = np.load(tiny.evaluation)["x"][:300]
    hidden = np.maximum(x.astype(np.float64) @ weights["first"] + tiny.weights[1], 0)
    expected = hidden @ weights["second"]

    def carried(values: Floats, weight: Floats) -> Floats:
        """The largest error of a product whose left side is off by half a step of INT8 everywhere, shape `(n, N)`."""
        return np.abs(values).max(axis=1, keepdims=True) / 254 * np.abs(weight).sum(axis=0)

    first = carried(x.astype(np.float64), weights["first"])
    second = (np.maximum(hidden, 0) + first).max(axis=1, keepdims=True) / 254 * np.abs(weights["second"]).sum(axis=0)
    allowed = first @ np.abs(weights["second"]) + second + 1e-3
    with open_session(tmp_path / "variant.onnx", SessionSettings("CPUExecutionProvider", 1)) as session:
        outputs = run_batches(session, [{"x": x}], "logits").astype(np.float64)
    assert (np.abs(outputs - expected) <= allowed).all()
    # That bound is of the worst case, in which all errors have one sign; as random ones they are far smaller.
    typical = np.abs(outputs - expected).mean() / expected.std()
    assert typical < 0.01
    # And the float weights would not do: rounding to four bits shows.
    first_float, bias, second_float = tiny.weights
    floats = np.maximum(x @ first_float + bias, 0) @ second_float
    assert np.abs(floats - expected).mean() / expected.std() > 3 * typical


def test_a_model_without_constant_products_is_refused(tmp_path: Path) -> None:
    """Weight-only needs weights: a product of two activations is not made INT4, and no float file goes by that name."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "z"], ["y"], name="scores")],
        "scores",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in ("x", "z")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 8])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(CandidateRefused, match="no MatMul or Gemm with a constant weight") as caught:
        quantize_weights(tmp_path / "m.onnx", candidate(32), tmp_path / "variant.onnx")
    assert caught.value.kind == "unsupported" and caught.value.fix
    assert not (tmp_path / "variant.onnx").exists()
