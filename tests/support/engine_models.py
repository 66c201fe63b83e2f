"""Small ONNX models of one pattern each, for builds with TensorRT-RTX: no GPU, a fraction of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tensorrt_rules import Array, draw, op

from tasks.engines.tensorrt.shipped.build import Plan, build_plan

FLOAT16, FLOAT32 = TensorProto.FLOAT16, TensorProto.FLOAT
# Samples of 32 numbers, as the inputs of all models here unless they say otherwise.
PROFILE = {"x": ((1, 32), (4, 32), (8, 32))}
WEIGHT = draw(32, 64)


def save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], **kind: Any) -> Path:
    """A model of input `x`, `[n, 32]`, and output `o`; `kind` gives another `shape`, `dtype`, `gives` or further `inputs`."""
    dtype, shape = kind.get("dtype", FLOAT16), kind.get("shape", ["n", 32])
    inputs = {"x": (dtype, shape), **kind.get("inputs", {})}
    graph = helper.make_graph(
        nodes,
        "pattern",
        [helper.make_tensor_value_info(name, *of) for name, of in inputs.items()],
        [helper.make_tensor_value_info("o", kind.get("gives", dtype), None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    domains = [helper.make_opsetid("", 21), *(helper.make_opsetid(name, 1) for name in kind.get("domains", []))]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=10), path)
    return path


def pair(tensor: str, scale: str, zero: str, **attributes: Any) -> list[onnx.NodeProto]:
    """Q and DQ of a tensor: `<tensor>_d` is what comes out."""
    return [
        op("QuantizeLinear", f"{tensor} {scale} {zero}", f"{tensor}_q", **attributes),
        op("DequantizeLinear", f"{tensor}_q {scale} {zero}", f"{tensor}_d", **attributes),
    ]


def codes(dtype: Any, weight: Array = WEIGHT) -> Array:
    """Whole numbers from 0 to 7, which every type holds."""
    return np.abs(np.round(weight * 2)).clip(0, 7).astype(dtype)


def scales(size: int | tuple[int, ...], dtype: Any = np.float16) -> Array:
    return np.full(size, 0.1, dtype)


# What a product of INT8 on both sides needs.
ACTIVATION = {"s": np.array(0.02, np.float16), "z": np.array(0, np.int8)}
PER_CHANNEL = {"w": codes(np.int8), "ws": scales(64), "wz": np.zeros(64, np.int8)}


def int8_product(path: Path, name: str = "o") -> Path:
    """INT8 on both sides; the product's node has this name."""
    product = helper.make_node("MatMul", ["x_d", "w_d"], ["o"], name=name)
    nodes = [*pair("x", "s", "z"), op("DequantizeLinear", "w ws wz", "w_d", axis=1), product]
    return save(path, nodes, ACTIVATION | PER_CHANNEL)


def int4_product(path: Path) -> Path:
    """INT4 weights in two blocks of 64, float16 activations `[n, 128]`."""
    nodes = [op("DequantizeLinear", "w ws", "w_d", axis=0, block_size=64), op("MatMul", "x w_d", "o")]
    constants = {"w": codes(ml_dtypes.int4, draw(128, 64)), "ws": scales((2, 64))}
    return save(path, nodes, constants, shape=["n", 128])


def build(path: Path, profile: dict[str, Any] = PROFILE, compute_capability: str = "8.9", **options: Any) -> Plan:
    """Its engine, ahead of time, in this process."""
    return build_plan(str(path), profile=profile, compute_capabilities=(compute_capability,), **options)
