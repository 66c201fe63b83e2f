"""The graph of a small decoder as the target `ort-genai` quantizes it, made by hand: no library that generates is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

TOKENS, WIDTH, INNER, HEADS, KV_HEADS, HEAD_WIDTH, CONTEXT = 40, 64, 96, 4, 2, 16, 32
EPSILON, BASE = 1e-5, 10000.0
KV = KV_HEADS * HEAD_WIDTH

Arrays = dict[str, NDArray[np.float32]]


def tiny_weights(seed: int = 0, *, layers: int = 2) -> Arrays:
    """Weights by the names of transformers, rows first."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"embed": (TOKENS, WIDTH), "norm": (WIDTH,), "head": (TOKENS, WIDTH)}
    for index in range(layers):
        shapes |= {
            f"{index}.input": (WIDTH,),
            f"{index}.qkv": (WIDTH + 2 * KV, WIDTH),
            f"{index}.o": (WIDTH, WIDTH),
            f"{index}.post": (WIDTH,),
            f"{index}.gate": (INNER, WIDTH),
            f"{index}.up": (INNER, WIDTH),
            f"{index}.down": (WIDTH, INNER),
        }
    return {name: rng.normal(scale=0.3, size=shape).astype(np.float32) for name, shape in shapes.items()}


def angles(context: int = CONTEXT, slower: float = 1.0) -> NDArray[np.float64]:
    """The rotary angles of each position; `slower` divides the slower half of them."""
    frequencies = BASE ** -(np.arange(HEAD_WIDTH // 2) / (HEAD_WIDTH // 2))
    frequencies[HEAD_WIDTH // 4 :] /= slower
    return np.outer(np.arange(context), frequencies)


def write_decoder(
    path: Path, weights: Arrays, *, slower: float = 1.0, act: str = "Sigmoid", tied: bool = False, **attention: Any
) -> Path:
    """Write the float graph, with the names and operators of onnxruntime-genai's builder; `attention` are attributes."""
    graph = _Graph(weights)
    graph.constant("cos", np.cos(angles(slower=slower)).astype(np.float32))
    graph.constant("sin", np.sin(angles(slower=slower)).astype(np.float32))
    graph.constant("embed", weights["embed"])
    x, added = graph.node("Gather", ["embed", "input_ids"], name="/embed"), None
    layers = sum(name.endswith(".qkv") for name in weights)
    for index in range(layers):
        x, hidden = graph.norm(f"{index}.input", x, added)
        packed = graph.product(f"{index}.qkv", hidden)
        attended = graph.node(
            "GroupQueryAttention",
            [packed, "", "", f"past.{index}.key", f"past.{index}.value", "seqlens", "total", "cos", "sin"],
            name=f"/{index}/attention",
            domain="com.microsoft",
            **{"num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": 1, "scale": HEAD_WIDTH**-0.5} | attention,
        )
        x, hidden = graph.norm(f"{index}.post", x, graph.product(f"{index}.o", attended))
        gate = graph.product(f"{index}.gate", hidden)
        opened = graph.node("Mul", [gate, graph.node(act, [gate])], name=f"/{index}/silu")
        inner = graph.node("Mul", [opened, graph.product(f"{index}.up", hidden)])
        added = graph.product(f"{index}.down", inner)
    _, hidden = graph.norm("norm", x, added)
    if tied:
        head = graph.node("Transpose", ["embed"], perm=[1, 0])
        graph.nodes.append(helper.make_node("MatMul", [hidden, head], ["logits"], name="/head"))
    else:
        graph.product("head", hidden, "logits")
    graph.save(path, layers)
    return path


class _Graph:
    """Nodes and constants under construction."""

    def __init__(self, weights: Arrays) -> None:
        self.weights, self.nodes, self.constants = weights, list[onnx.NodeProto](), list[onnx.TensorProto]()

    def constant(self, name: str, array: NDArray[Any]) -> None:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))

    def node(self, operator: str, inputs: list[str], *, name: str = "", domain: str = "", **attributes: Any) -> str:
        output = f"t{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=name or f"/{output}", domain=domain, **attributes)
        )
        return output

    def product(self, name: str, hidden: str, output: str = "") -> str:
        self.constant(name, self.weights[name].T)
        made = output or f"{name}.out"
        self.nodes.append(helper.make_node("MatMul", [hidden, name], [made], name=f"/{name}"))
        return made

    def norm(self, name: str, x: str, added: str | None) -> tuple[str, str]:
        """Add a norm; return what it normalizes, and the result."""
        self.constant(name, self.weights[name])
        if added is None:
            for part, array in (("two", 2.0), ("epsilon", EPSILON)):
                self.constant(f"{name}.{part}", np.array(array, np.float32))
            self.constant(f"{name}.axes", np.array([-1]))
            square = self.node("Pow", [x, f"{name}.two"])
            mean = self.node("ReduceMean", [square, f"{name}.axes"], keepdims=1)
            root = self.node("Sqrt", [self.node("Add", [mean, f"{name}.epsilon"])])
            return x, self.node("Mul", [self.node("Div", [x, root]), name])
        outputs = [f"{name}.normal", "", "", f"{name}.sum"]
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization",
                [x, added, name],
                outputs,
                name=f"/{name}",
                domain="com.microsoft",
                epsilon=EPSILON,
            )
        )
        return outputs[3], outputs[0]

    def save(self, path: Path, layers: int) -> None:
        caches = [f"past.{index}.{part}" for index in range(layers) for part in ("key", "value")]
        inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])]
        inputs.append(helper.make_tensor_value_info("seqlens", TensorProto.INT32, ["batch"]))
        inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
        inputs += [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", KV_HEADS, "past", HEAD_WIDTH])
            for name in caches
        ]
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", TOKENS])
        graph = helper.make_graph(self.nodes, "decoder", inputs, [output], self.constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
