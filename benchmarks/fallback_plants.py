"""Small models that say INT8 (or FP16) and run in float, each beside its float twin; and some that are what they say.

The same function builds both: what `Draft` quantizes in the one, it leaves as it is in the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import onnx
from models.graphs import model_of
from numpy.typing import NDArray
from onnx import TensorProto, helper

from validators.records.run import SessionSettings
from validators.records.verdicts import Outcome

Array = NDArray[Any]
CPU = "CPUExecutionProvider"
INT8, FP16 = "int8-static-minmax-pc@ort-cpu", "fp16@ort-cpu"
FEATURES, HIDDEN, CLASSES, STEPS, SIDE = 64, 32, 10, 6, 8
# Activations here are near to normal: five deviations cut nothing off.
LARGEST = 5.0
# Weights of 7 bits, which processors that add pairs of products in 16 bits compute exactly too: every one shows the same.
LIMIT = 64
ON_CPU = SessionSettings(CPU, 1)
_ZERO_POINTS: dict[str, int] = {"uint8": 128, "int8": 0, "int16": 0, "uint16": 2**15}


@dataclass
class Draft:
    """A graph in the making; with `quantized` false, every method leaves its tensor in float."""

    quantized: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def constant(self, name: str, array: Array) -> str:
        self.constants[name] = array
        return name

    def pair(self, tensor: str, dtype: str = "uint8", largest: float = LARGEST) -> str:
        """The tensor behind QuantizeLinear and DequantizeLinear."""
        if not self.quantized:
            return tensor
        levels = np.iinfo(dtype)
        scale = self.constant(f"{tensor}_scale", np.float32(largest / (levels.max - _ZERO_POINTS[dtype])))
        zero = self.constant(f"{tensor}_zero", np.array(_ZERO_POINTS[dtype], dtype))
        self.node("QuantizeLinear", [tensor, scale, zero], f"{tensor}_q")
        return self.node("DequantizeLinear", [f"{tensor}_q", scale, zero], f"{tensor}_dq")

    def weight(self, name: str, *shape: int, axis: int | None = None, depth: int, stored: bool = True) -> str:
        """A weight that keeps the size of what it multiplies, `depth` being the length of the sum; `stored` as INT8."""
        array = (np.random.default_rng(crc32(name.encode())).normal(size=shape) / np.sqrt(depth)).astype(np.float32)
        others = None if axis is None else tuple(one for one in range(len(shape)) if one != axis)
        scale = np.maximum(np.abs(array).max(axis=others), 1e-6).astype(np.float32) / LIMIT
        spread = scale if axis is None else np.expand_dims(scale, others or ())
        rounded = np.clip(np.rint(array / spread), -LIMIT, LIMIT).astype(np.int8)
        if not (self.quantized and stored):
            # What the INT8 weights stand for: the twins differ in activations alone.
            return self.constant(name, (rounded * spread).astype(np.float32))
        inputs = [
            self.constant(f"{name}_int8", rounded),
            self.constant(f"{name}_scale", scale),
            self.constant(f"{name}_zero", np.zeros_like(scale, np.int8)),
        ]
        return self.node("DequantizeLinear", inputs, name, **({} if axis is None else {"axis": axis}))

    def model(self, output: str, *shape: int) -> onnx.ModelProto:
        """The model from `x`, of `shape` a sample, to a tensor."""
        return model_of(self.nodes, {"x": ["batch", *shape]}, {output: None}, self.constants)


def gemm(draft: Draft, *, axis: int = 0, dtype: str = "uint8") -> onnx.ModelProto:
    """Gemm with its weight as (outputs, K), scales along `axis`."""
    weight = draft.weight("w", CLASSES, FEATURES, axis=axis, depth=FEATURES)
    draft.node("Gemm", [draft.pair("x", dtype), weight], "product", transB=1)
    return draft.model(draft.pair("product", dtype), FEATURES)


def convolution(draft: Draft, *, activations: bool = True, dtype: str = "uint8") -> onnx.ModelProto:
    """Conv with scales for each output channel."""
    weight = draft.weight("w", CLASSES, 4, 3, 3, axis=0, depth=36)
    draft.node("Conv", [draft.pair("x", dtype) if activations else "x", weight], "product")
    return draft.model(draft.pair("product", dtype) if activations else "product", 4, SIDE, SIDE)


def matmul(draft: Draft, *, weights: bool = True, activations: bool = True) -> onnx.ModelProto:
    """MatMul with one side quantized, or both."""
    weight = draft.weight("w", FEATURES, CLASSES, axis=1, depth=FEATURES, stored=weights)
    draft.node("MatMul", [draft.pair("x") if activations else "x", weight], "product")
    return draft.model("product", FEATURES)


def transposed_convolution(draft: Draft) -> onnx.ModelProto:
    weight = draft.weight("w", 4, CLASSES, 3, 3, depth=36)
    draft.node("ConvTranspose", [draft.pair("x"), weight], "product")
    return draft.model(draft.pair("product"), 4, SIDE, SIDE)


def einsum(draft: Draft) -> onnx.ModelProto:
    weight = draft.weight("w", FEATURES, CLASSES, depth=FEATURES)
    draft.node("Einsum", [draft.pair("x"), weight], "product", equation="bk,kn->bn")
    return draft.model(draft.pair("product"), FEATURES)


def recurrent(draft: Draft, kind: str, gates: int) -> onnx.ModelProto:
    """An LSTM or a GRU, samples along axis 0 of the input and of its output."""
    draft.node("Transpose", ["x"], "steps", perm=[1, 0, 2])
    inputs = [draft.pair("steps"), draft.weight("w", 1, gates * HIDDEN, FEATURES, depth=FEATURES)]
    inputs.append(draft.weight("r", 1, gates * HIDDEN, HIDDEN, depth=HIDDEN))
    draft.node(kind, inputs, "product", hidden_size=HIDDEN)
    draft.node("Transpose", [draft.pair("product", largest=1.0)], "y", perm=[2, 0, 1, 3])
    return draft.model("y", STEPS, FEATURES)


def reshaped_weight(draft: Draft) -> onnx.ModelProto:
    """The weight is dequantized before a Reshape, not behind it."""
    flat = draft.weight("w", CLASSES * FEATURES, depth=FEATURES)
    weight = draft.node("Reshape", [flat, draft.constant("shape", np.array([FEATURES, CLASSES]))], "reshaped")
    draft.node("MatMul", [draft.pair("x"), weight], "product")
    return draft.model("product", FEATURES)


def transposed_input(draft: Draft) -> onnx.ModelProto:
    """The activation is dequantized before a Transpose: the runtime moves the pair behind it."""
    weight = draft.weight("w", STEPS, CLASSES, axis=1, depth=STEPS)
    draft.node("MatMul", [draft.node("Transpose", [draft.pair("x")], "turned", perm=[0, 2, 1]), weight], "product")
    return draft.model("product", STEPS, FEATURES)


def folded(draft: Draft) -> onnx.ModelProto:
    """A float product, and nine in integers of constants alone: they are computed once, while the model loads."""
    draft.node("MatMul", ["x", draft.weight("k", FEATURES, CLASSES, depth=FEATURES, stored=False)], "sum_0")
    rng = np.random.default_rng(0)
    for place in range(9):
        if not draft.quantized:
            continue
        left, right = (draft.constant(f"{side}_{place}", rng.integers(-1, 2, shape).astype(np.int8))
                       for side, shape in (("a", (1, 4)), ("b", (4, CLASSES))))  # fmt: skip
        draft.node("MatMulInteger", [left, right], f"integers_{place}")
        draft.node("Cast", [f"integers_{place}"], f"floats_{place}", to=TensorProto.FLOAT)
        draft.node("Mul", [f"floats_{place}", draft.constant(f"tiny_{place}", np.float32(1e-4))], f"small_{place}")
        draft.node("Add", [f"sum_{place}", f"small_{place}"], f"sum_{place + 1}")
    return draft.model("sum_9" if draft.quantized else "sum_0", FEATURES)


def half(draft: Draft) -> onnx.ModelProto:
    """float16 weights and activations between two casts."""
    weight = draft.weight("w", FEATURES, CLASSES, depth=FEATURES, stored=False)
    if not draft.quantized:
        draft.node("MatMul", ["x", weight], "y")
        return draft.model("y", FEATURES)
    draft.constants["w"] = draft.constants["w"].astype(np.float16)
    draft.node("Cast", ["x"], "x_half", to=TensorProto.FLOAT16)
    draft.node("MatMul", ["x_half", weight], "product")
    draft.node("Cast", ["product"], "y", to=TensorProto.FLOAT)
    return draft.model("y", FEATURES)


@dataclass(frozen=True)
class Plant:
    """A file: what its label says, how it is built, and what the gate must say of it."""

    name: str
    build: Callable[[Draft], onnx.ModelProto]
    verdict: Outcome
    label: str = INT8
    settings: SessionSettings = ON_CPU

    def save(self, folder: Path) -> tuple[Path, Path]:
        """The float twin and the file."""
        paths = folder / "float.onnx", folder / "labelled.onnx"
        for path, quantized in zip(paths, (False, True), strict=True):
            onnx.save(self.build(Draft(quantized)), path)
        return paths


PLANTS = (
    Plant("Gemm, scales for each output", gemm, "pass"),
    Plant("Gemm, INT8 activations", lambda draft: gemm(draft, dtype="int8"), "pass"),
    Plant("Conv, scales for each output channel", convolution, "pass"),
    Plant("MatMul, weights only", lambda draft: matmul(draft, activations=False), "pass"),
    Plant("Transpose behind the pair", transposed_input, "pass"),
    Plant("Gemm, scales along K", lambda draft: gemm(draft, axis=1), "fail"),
    Plant("Conv, weights only", lambda draft: convolution(draft, activations=False), "fail"),
    Plant("MatMul, activations only", lambda draft: matmul(draft, weights=False), "fail"),
    Plant("Gemm, the optimizer off", gemm, "fail", settings=SessionSettings(CPU, 1, optimization="basic")),
    Plant("Gemm, INT16 activations", lambda draft: gemm(draft, dtype="int16"), "fail"),
    Plant("Conv, UINT16 activations", lambda draft: convolution(draft, dtype="uint16"), "fail"),
    Plant("ConvTranspose", transposed_convolution, "fail"),
    Plant("LSTM", lambda draft: recurrent(draft, "LSTM", 4), "fail"),
    Plant("GRU", lambda draft: recurrent(draft, "GRU", 3), "fail"),
    Plant("Einsum", einsum, "fail"),
    Plant("Reshape behind the weight's DequantizeLinear", reshaped_weight, "fail"),
    Plant("integer products of constants", folded, "fail"),
    Plant("a float file", lambda _: matmul(Draft(quantized=False)), "fail"),
    Plant("a float16 file on a CPU", half, "fail", label=FP16),
)
