"""Fallbacks of the CUDA provider, as profiles written by hand: the events and fields that the runtime writes, no GPU needed.

They hold what is documented of that provider (it has no QLinearMatMul), not what was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from models.graphs import model_of
from onnx import helper

CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"
INT8, INT4, FP16 = "int8-static-minmax-pc@ort-cuda", "int4-g32-rtn@ort-cuda", "fp16@ort-cuda"
ROWS, DEPTH, COLUMNS = 4, 64, 32
LEFT, WEIGHT, OUT = [ROWS, DEPTH], [DEPTH, COLUMNS], [ROWS, COLUMNS]


@dataclass(frozen=True)
class Planted:
    """A graph as the runtime optimized it, the events of so many requests, and the share of operators that are quantized."""

    name: str
    label: str
    graph: onnx.GraphProto
    events: list[dict[str, Any]]
    counted: float = 1.0
    requests: int = 1


def ran(name: str, kind: str, provider: str, inputs: list[Any], outputs: list[Any], us: int = 10) -> dict[str, Any]:
    """The event of one kernel; `inputs` and `outputs` are `{type: shape}`."""
    args = {"op_name": kind, "provider": provider, "input_type_shape": inputs, "output_type_shape": outputs}
    more = {
        "node_index": "0",
        "activation_size": "0",
        "parameter_size": "0",
        "output_size": "0",
        "thread_scheduling_stats": "",
    }
    place = {"pid": 1, "tid": 1, "ts": 0, "ph": "X"}
    return {"cat": "Node", **place, "dur": us, "name": f"{name}_kernel_time", "args": args | more}


def graph_of(*nodes: onnx.NodeProto, **weights: Any) -> onnx.GraphProto:
    return model_of(nodes, {"x": None}, {"y": None}, weights).graph


def left_in_float() -> Planted:
    """Q/DQ around a MatMul: the provider has QuantizeLinear and DequantizeLinear, and multiplies in float."""
    node = helper.make_node
    graph = graph_of(
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="x_Q"),
        node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="x_DQ"),
        node("DequantizeLinear", ["w", "s", "wz"], ["wd"], name="w_DQ"),
        node("MatMul", ["xd", "wd"], ["y"], name="product"),
        s=np.float32(0.1), z=np.uint8(128), w=np.zeros(WEIGHT, np.int8), wz=np.int8(0),
    )  # fmt: skip
    events = [
        ran("x_Q", "QuantizeLinear", CUDA, [{"float": LEFT}], [{"uint8": LEFT}]),
        ran("x_DQ", "DequantizeLinear", CUDA, [{"uint8": LEFT}], [{"float": LEFT}]),
        ran("w_DQ", "DequantizeLinear", CUDA, [{"int8": WEIGHT}], [{"float": WEIGHT}]),
        ran("product", "MatMul", CUDA, [{"float": LEFT}, {"float": WEIGHT}], [{"float": OUT}], 20),
    ]
    return Planted("CUDA, profile written by hand: Q/DQ around a MatMul", INT8, graph, events)


def left_to_the_cpu() -> Planted:
    """An integer product that only the CPU provider has, between two copies."""
    node = helper.make_node
    inputs = ["xc", "s", "z", "w", "s", "wz", "s", "z"]
    graph = graph_of(
        node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="x_Q"),
        node("MemcpyToHost", ["xq"], ["xc"], name="Memcpy"),
        node("QLinearMatMul", inputs, ["yc"], name="product"),
        node("MemcpyFromHost", ["yc"], ["yq"], name="Memcpy_token_1"),
        node("DequantizeLinear", ["yq", "s", "z"], ["y"], name="y_DQ"),
        s=np.float32(0.1), z=np.uint8(128), w=np.zeros(WEIGHT, np.int8), wz=np.int8(0),
    )  # fmt: skip
    events = [
        ran("x_Q", "QuantizeLinear", CUDA, [{"float": LEFT}], [{"uint8": LEFT}]),
        ran("Memcpy", "MemcpyToHost", CUDA, [{"uint8": LEFT}], [{"uint8": LEFT}], 30),
        ran("product", "QLinearMatMul", CPU, [{"uint8": LEFT}], [{"uint8": OUT}], 40),
        ran("Memcpy_token_1", "MemcpyFromHost", CUDA, [{"uint8": OUT}], [{"uint8": OUT}], 30),
        ran("y_DQ", "DequantizeLinear", CUDA, [{"uint8": OUT}], [{"float": OUT}]),
    ]
    return Planted("CUDA, profile written by hand: QLinearMatMul on the CPU", INT8, graph, events)


def weights_in_4_bits(provider: str = CUDA) -> Planted:
    """MatMulNBits on float16 activations: clean on the GPU, a fallback on the CPU."""
    product = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], name="product", domain="com.microsoft", K=DEPTH, N=COLUMNS, bits=4
    )
    graph = graph_of(product, w=np.zeros((COLUMNS, DEPTH // 32, 16), np.uint8), s=np.ones(COLUMNS * 2, np.float16))
    events = [ran("product", "MatMulNBits", provider, [{"float16": LEFT}], [{"float16": OUT}])]
    place = "" if provider == CUDA else " on the CPU"
    return Planted(f"CUDA, profile written by hand: MatMulNBits{place}", INT4, graph, events)


def half(dtype: str) -> Planted:
    """A product in float16, or in float32 under the same label."""
    graph = graph_of(helper.make_node("MatMul", ["x", "w"], ["y"], name="product"), w=np.zeros(WEIGHT, np.float16))
    events = [ran("product", "MatMul", CUDA, [{dtype: LEFT}, {dtype: WEIGHT}], [{dtype: OUT}])]
    return Planted(f"CUDA, profile written by hand: MatMul in {dtype}", FP16, graph, events)


PLANTED = (
    weights_in_4_bits(),
    half("float16"),
    half("float"),
    left_in_float(),
    left_to_the_cpu(),
    weights_in_4_bits(CPU),
)
