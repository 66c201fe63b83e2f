"""What an engine computes in: real builds of one pattern each, with multiply-accumulates counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from engine_models import (
    ACTIVATION,
    FLOAT16,
    FLOAT32,
    PER_CHANNEL,
    WEIGHT,
    build,
    codes,
    int4_product,
    int8_product,
    pair,
    save,
    scales,
)
from tensorrt_rules import draw, op

from tasks.engines.tensorrt.coverage import coverage_of_layers, kernel_of_layer, kernels_of_nodes
from tasks.engines.tensorrt.layers import layers_in_log
from validators.records.engines import EngineLayer
from validators.records.measurements import UNNAMED, Coverage

CALM = 3  # samples a request
HALF_WEIGHT = {"w": WEIGHT.astype(np.float16)}
IMAGE = {"shape": ["n", 16, 8, 8]}


def measured(path: Path, **inputs: Any) -> Coverage:
    """The coverage of its engine for a request of these inputs, or of `CALM` samples of 32 numbers."""
    pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt-aot is not installed")
    batch = inputs or {"x": draw(CALM, 32).astype(np.float16)}
    free = {value.name for value in onnx.load(path).graph.input if value.type.tensor_type.shape.dim[0].dim_param}
    profile = {
        name: tuple((size, *array.shape[1:]) if name in free else array.shape for size in (1, 4, 8))
        for name, array in batch.items()
    }
    plan = build(path, profile)
    assert plan.engine is not None, plan.errors
    return coverage_of_layers(path, layers_in_log(text for _, text in plan.messages), batch)


def half(path: Path) -> Path:
    return save(path, [op("MatMul", "x w", "o")], HALF_WEIGHT)


def single(path: Path) -> Path:
    return save(path, [op("MatMul", "x w", "o")], {"w": WEIGHT}, dtype=FLOAT32)


def one_side(path: Path) -> Path:
    return save(path, [*pair("x", "s", "z"), op("MatMul", "x_d w", "o")], ACTIVATION | HALF_WEIGHT)


def along_k(path: Path) -> Path:
    nodes = [*pair("x", "s", "z"), op("DequantizeLinear", "w ws wz", "w_d", axis=0), op("MatMul", "x_d w_d", "o")]
    return save(path, nodes, ACTIVATION | PER_CHANNEL | {"ws": scales(32), "wz": np.zeros(32, np.int8)})


def fp8(path: Path) -> Path:
    nodes = [*pair("x", "s", "z"), op("DequantizeLinear", "w ws", "w_d", axis=1), op("MatMul", "x_d w_d", "o")]
    stored = {"z": np.zeros((), ml_dtypes.float8_e4m3fn), "w": codes(ml_dtypes.float8_e4m3fn), "ws": scales(64)}
    return save(path, nodes, ACTIVATION | stored)


def per_channel_int4(path: Path) -> Path:
    nodes = [op("DequantizeLinear", "w ws", "w_d", axis=1), op("MatMul", "x w_d", "o")]
    return save(path, nodes, {"w": codes(ml_dtypes.int4), "ws": scales(64)})


@pytest.mark.parametrize(
    ("model", "kernel", "share", "half_share"),
    [
        (int8_product, "gemm in int8", 1, 1),
        (fp8, "gemm in fp8", 1, 1),
        (half, "gemm in float16", 0, 1),
        (single, "gemm in float32", 0, 0),
        # What compiles, and silently runs in float.
        (one_side, "gemm in float16", 0, 1),
        (along_k, "gemm in float16", 0, 1),
    ],
)
def test_a_product_is_what_its_layer_reads(
    tmp_path: Path, model: Callable[[Path], Path], kernel: str, share: float, half_share: float
) -> None:
    path = model(tmp_path / "model.onnx")
    dtype = np.float32 if model is single else np.float16
    found = measured(path, x=draw(CALM, 32).astype(dtype))
    assert found.macs_by_kernel == {kernel: CALM * 32 * 64}
    assert (found.share, found.half_share, found.unknown) == (share, half_share, 0)
    assert found.float_nodes == (("o",) if half_share == 0 else ())
    assert found.half_nodes == (("o",) if half_share > share else ())
    assert found.providers == ("TensorRT",) and found.us_by_kernel == {}


def test_int4_weights_count_where_they_go_into_the_product(tmp_path: Path) -> None:
    """In blocks they are read by the product; per channel they are made float16 before it, by a kernel of their own."""
    x = draw(CALM, 128).astype(np.float16)
    found = measured(int4_product(tmp_path / "model.onnx"), x=x)
    assert found.macs_by_kernel == {"gemm in float16, weights in int4": CALM * 128 * 64} and found.share == 1
    found = measured(per_channel_int4(tmp_path / "model.onnx"))
    assert found.share == 0 and found.half_share + found.unknown == 1


def test_products_of_activations(tmp_path: Path) -> None:
    y = {"inputs": {"y": (FLOAT16, ["n", 64, 32])}, "shape": ["n", 16, 64]}
    batch = {"x": draw(CALM, 16, 64).astype(np.float16), "y": draw(CALM, 64, 32).astype(np.float16)}
    plain = save(tmp_path / "plain.onnx", [op("MatMul", "x y", "o")], {}, **y)
    assert measured(plain, **batch).macs_by_kernel == {"gemm in float16": CALM * 16 * 64 * 32}
    nodes = [*pair("x", "s", "z"), *pair("y", "s", "z"), op("MatMul", "x_d y_d", "o")]
    quantized = save(tmp_path / "quantized.onnx", nodes, ACTIVATION, **y)
    assert measured(quantized, **batch).macs_by_kernel == {"gemm in int8": CALM * 16 * 64 * 32}


def test_convolutions(tmp_path: Path) -> None:
    """A depthwise one is laid out as groups of four channels by TensorRT; what counts is the model's own work."""
    x = draw(CALM, 16, 8, 8).astype(np.float16)
    weight = {"w": codes(np.int8, draw(16, 1, 3, 3)), "ws": scales(16), "wz": np.zeros(16, np.int8)}
    nodes = [
        *pair("x", "s", "z"),
        op("DequantizeLinear", "w ws wz", "w_d", axis=0),
        op("Conv", "x_d w_d", "c", group=16),
        op("Relu", "c", "r"),
        op("ConvTranspose", "r v", "o"),
    ]
    constants = ACTIVATION | weight | {"v": draw(16, 8, 3, 3).astype(np.float16)}
    found = measured(save(tmp_path / "model.onnx", nodes, constants, **IMAGE), x=x)
    depthwise, transposed = CALM * 16 * 6 * 6 * 9, CALM * 16 * 6 * 6 * 8 * 9
    assert found.macs_by_kernel == {"correlation in int8": depthwise, "deconv in float16": transposed}
    assert found.share == depthwise / (depthwise + transposed) and found.half_nodes == ("o",)


def attention(path: Path, *, quantized: bool) -> Path:
    """softmax(x k) v with keys and values of the same input: two heads of width 32, 16 tokens."""
    nodes = [op("Softmax", "scores", "p", axis=-1)]
    if quantized:
        nodes[:0] = [*pair("x", "s", "z"), *pair("k", "s", "z"), op("MatMul", "x_d k_d", "scores")]
        nodes += [*pair("p", "s", "z"), *pair("v", "s", "z"), op("MatMul", "p_d v_d", "o")]
    else:
        nodes[:0] = [op("MatMul", "x k", "scores")]
        nodes += [op("MatMul", "p v", "o")]
    others = {"k": (FLOAT16, ["n", 2, 32, 16]), "v": (FLOAT16, ["n", 2, 16, 32])}
    return save(path, nodes, ACTIVATION if quantized else {}, shape=["n", 2, 16, 32], inputs=others)


def test_attention(tmp_path: Path) -> None:
    """In float it is one layer with both products. In integers these are products of their own here; where they are fused
    (see `test_aot_models.py`), nothing tells what the second is computed in."""
    shapes = {"x": (CALM, 2, 16, 32), "k": (CALM, 2, 32, 16), "v": (CALM, 2, 16, 32)}
    batch = {name: draw(*shape).astype(np.float16) for name, shape in shapes.items()}
    macs = 2 * CALM * 2 * 16 * 16 * 32
    found = measured(attention(tmp_path / "half.onnx", quantized=False), **batch)
    assert found.macs_by_kernel == {"attention in float16": macs}
    found = measured(attention(tmp_path / "int8.onnx", quantized=True), **batch)
    assert found.macs_by_kernel == {"gemm in int8": macs}


def test_recurrent_layers_are_unrolled_under_no_name(tmp_path: Path) -> None:
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["", "o"], name="lstm", hidden_size=16)
    weights = {"w": draw(1, 64, 32), "r": draw(1, 64, 16)}
    path = save(tmp_path / "model.onnx", [node], weights, shape=[5, 2, 32], dtype=FLOAT32)
    found = measured(path, x=draw(5, 2, 32))
    assert found.macs_by_kernel == {UNNAMED: 5 * 2 * 64 * (32 + 16)} and found.unknown == 1
    assert found.float_nodes == found.half_nodes == ()


GEMM = EngineLayer("o_1", "gemm", ("int8",), ("int8", "float32"), ("float16",), "", ("o", "w_d"))


@pytest.mark.parametrize(
    ("layer", "kernel"),
    [
        (GEMM, "gemm in int8"),
        (replace(GEMM, inputs=("float16",)), "gemm in float16"),  # 8-bit weights alone are not what was asked for
        (replace(GEMM, inputs=("int8",), constants=("float16", "int8")), UNNAMED),
        (replace(GEMM, inputs=("int8",), constants=()), UNNAMED),
        (replace(GEMM, inputs=()), UNNAMED),
        (replace(GEMM, inputs=("int32",)), UNNAMED),
        (replace(GEMM, kind="CaskConvolution"), "CaskConvolution in int8"),
        (replace(GEMM, kind="kgen"), None),
        (replace(GEMM, kind="kgen", name="__myl_CastMulFc_1"), "gemm in float16"),
        (replace(GEMM, kind="kgen", name="__myl_FcMulCast_1"), UNNAMED),  # never seen: integers straight into a product
        (replace(GEMM, kind="kgen", name="__myl_CastFcMulFc_1"), UNNAMED),
        (replace(GEMM, kind="kgen", name="__myl_CastConc_1"), None),
        (replace(GEMM, kind="kgen", name="_gemm_mha_v2_1", inputs=("float16", "float32")), "attention in float32"),
        (replace(GEMM, kind="kgen", name="_gemm_mha_v2_1", inputs=("int8", "int8", "float16", "int8")), UNNAMED),
        (replace(GEMM, kind="kgen", name="_gemm_mha_v2_1", inputs=()), UNNAMED),
    ],
)
def test_what_a_layer_multiplies_in(layer: EngineLayer, kernel: str | None) -> None:
    found = kernel_of_layer(layer)
    assert (found.name if found else None) == kernel
    if found and found.name == UNNAMED:
        assert not found.is_low_precision and not found.is_half


def test_layers_that_differ_leave_a_node_unknown() -> None:
    twice = kernels_of_nodes([GEMM, replace(GEMM, name="o_2")])
    assert twice["o"].name == "gemm in int8"
    both = kernels_of_nodes([GEMM, replace(GEMM, inputs=("float16",), constants=("float16",))])
    assert both["o"].name == UNNAMED and not both["o"].is_low_precision


def test_times_are_those_of_layers(tmp_path: Path) -> None:
    layers = [
        replace(GEMM, microseconds=5.0),
        replace(GEMM, microseconds=1.0),
        replace(GEMM, kind="kgen", microseconds=2.0),
    ]
    found = coverage_of_layers(int8_product(tmp_path / "model.onnx"), layers, {"x": draw(CALM, 32).astype(np.float16)})
    assert found.us_by_kernel == {"gemm in int8": 6.0, "kgen": 2.0} and found.time_share == 0.75


def test_a_model_that_the_layers_do_not_name_is_unknown(tmp_path: Path) -> None:
    found = coverage_of_layers(int8_product(tmp_path / "model.onnx"), [], {"x": draw(CALM, 32).astype(np.float16)})
    assert found.macs_by_kernel == {UNNAMED: CALM * 32 * 64} and found.share == 0
