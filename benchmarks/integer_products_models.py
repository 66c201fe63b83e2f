"""Sources of `integer_products.py`, each with one operator that multiplies, and weights that INT8 recipes hold exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from models.graphs import model_of
from numpy.typing import NDArray
from onnx import helper

Constants = dict[str, NDArray[Any]]
STATIC, EVERY, DYNAMIC = "int8-static-minmax-pc", "int8-static-minmax-pc-all", "int8-dynamic-pc"
ORT, OPENVINO = "ort-cpu", "openvino"
IN_PAIRS = (f"{STATIC}@{ORT}", f"{EVERY}@{ORT}", f"{STATIC}@{OPENVINO}", f"{EVERY}@{OPENVINO}")


@dataclass(frozen=True)
class Model:
    """A source with an operator from input `x` (and `z`) to output `y`, and the recipes that quantize it."""

    nodes: tuple[onnx.NodeProto, ...]
    constants: Constants
    recipes: tuple[str, ...]
    shapes: Mapping[str, tuple[int, ...]]

    def save(self, path: Path) -> None:
        """Write the source, with a dynamic batch."""
        inputs = {name: ["n", *dims] for name, dims in self.shapes.items()}
        onnx.save(model_of(self.nodes, inputs, {"y": None}, self.constants), path)


def signs(*shape: int, axis: int) -> NDArray[np.float32]:
    """Return weights whose slices along `axis` are in turn 1, -1, and both: the largest sums, the smallest, and none."""
    rows = np.ones((shape[axis], int(np.prod(shape)) // shape[axis]), np.float32)
    rows[1::3] = -1
    rows[2::3, ::2] = -1
    others = tuple(count for index, count in enumerate(shape) if index != axis)
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[axis], *others), 0, axis))


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"{kind}_{output}", **attributes)


def _conv(kind: str, weights: NDArray[np.float32], recipes: tuple[str, ...] = IN_PAIRS, **attributes: Any) -> Model:
    node = _node(kind, "x w", "y", **attributes)
    return Model((node,), {"w": weights}, recipes, {"x": (32, 8, 8)})


def _recurrent(kind: str, gates: int, units: int, features: int, **attributes: Any) -> Model:
    constants = {
        "w": signs(1, gates * units, features, axis=1) / features,
        "r": signs(1, gates * units, units, axis=1) / units,
    }
    nodes = (
        helper.make_node("Transpose", ["x"], ["steps"], name="steps", perm=[1, 0, 2]),
        helper.make_node(kind, ["steps", "w", "r"], ["all", "last"], name=kind, hidden_size=units, **attributes),
        _node("Squeeze", "last zero", "y"),
    )
    constants["zero"] = np.array([0], np.int64)
    return Model(nodes, constants, (f"{DYNAMIC}@{ORT}",), {"x": (6, features)})


def _attention() -> Model:
    weights = signs(64, 192, axis=1) / 64
    node = helper.make_node("Attention", ["x", "w", "b"], ["y"], name="attention", domain="com.microsoft", num_heads=4)
    constants = {"w": weights, "b": np.zeros(192, np.float32)}
    return Model((node,), constants, (f"{DYNAMIC}+fused@{ORT}",), {"x": (16, 64)})


# By the operator of the table.
MODELS: dict[str, Callable[[], Model]] = {
    "MatMul": lambda: Model(
        (_node("MatMul", "x w", "y"),),
        {"w": signs(512, 64, axis=1)},
        (
            *IN_PAIRS,
            *(f"{STATIC}-{word}@{ORT}" for word in ("s8s8", "bc", "smooth")),
            f"{DYNAMIC}@{ORT}",
            f"{DYNAMIC}@{OPENVINO}",
        ),
        {"x": (512,)},
    ),
    "Gemm": lambda: Model(
        (_node("Gemm", "x w b", "y", transB=1),),
        {"w": signs(64, 512, axis=0), "b": np.ones(64, np.float32)},
        (*IN_PAIRS, f"{DYNAMIC}@{ORT}", f"{DYNAMIC}@{OPENVINO}"),
        {"x": (512,)},
    ),
    "Conv 3x3": lambda: _conv("Conv", signs(64, 32, 3, 3, axis=0)),
    "Conv 1x1": lambda: _conv("Conv", signs(64, 32, 1, 1, axis=0)),
    "Conv 3x3, depthwise": lambda: _conv("Conv", signs(32, 1, 3, 3, axis=0), group=32),
    "Conv 3x3, 3 channels": lambda: Model(
        (_node("Conv", "x w", "y"),), {"w": signs(64, 3, 3, 3, axis=0)}, IN_PAIRS, {"x": (3, 9, 9)}
    ),
    "ConvTranspose": lambda: _conv("ConvTranspose", signs(32, 64, 3, 3, axis=1)),
    "MatMul of activations": lambda: Model(
        (_node("MatMul", "x z", "y"),), {}, IN_PAIRS, {"x": (4, 16, 64), "z": (4, 64, 16)}
    ),
    "Attention": _attention,
    "LSTM": lambda: _recurrent("LSTM", 4, 64, 64),
    "GRU": lambda: _recurrent("GRU", 3, 256, 64, linear_before_reset=1),
    "MatMul, INT4 blocks": lambda: Model(
        (_node("MatMul", "x w", "y"),),
        {"w": np.minimum(signs(512, 64, axis=1), np.float32(7 / 8))},  # -8 and 7 of the steps of INT4
        tuple(f"int4-g32-rtn@{engine}" for engine in (ORT, OPENVINO)),
        {"x": (512,)},
    ),
    "MatMul, INT8 blocks": lambda: Model(
        (_node("MatMul", "x w", "y"),),
        {"w": signs(512, 64, axis=1)},
        ("int8-g32-rtn@ort-genai", "int8-g64-rtn@openvino-decoder"),
        {"x": (512,)},
    ),
}

# A program for TorchInductor with one output for each operator; it is run with the folder to write to.
PROGRAM = """
import sys
from pathlib import Path

import numpy as np
import torch


class Products(torch.nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.linear = torch.nn.Linear(512, 64)
        self.conv = torch.nn.Conv2d(32, 64, 3)
        self.pointwise = torch.nn.Conv2d(32, 64, 1)
        self.depthwise = torch.nn.Conv2d(32, 32, 3, groups=32)
        with torch.no_grad():
            for name in ("linear", "conv", "pointwise", "depthwise"):
                layer = getattr(self, name)
                layer.weight.copy_(torch.from_numpy(weights[name]))
                layer.bias.zero_()

    def forward(self, x):
        image = x.view(-1, 32, 4, 4)
        left, right = x.view(-1, 8, 8, 8), x.view(-1, 8, 8, 8).transpose(-1, -2)
        return (
            self.linear(x), self.conv(image), self.pointwise(image), self.depthwise(image), torch.matmul(left, right)
        )


folder = Path(sys.argv[1])
weights = dict(np.load(folder / "weights.npz"))
batch = torch.export.Dim("batch", min=1, max=4096)
program = torch.export.export(Products(weights).eval(), (torch.ones(4, 512),), dynamic_shapes=({0: batch},))
torch.export.save(program, folder / "original.pt2")
np.savez(folder / "batch.npz", x=np.ones((4, 512), np.float32))
"""
PROGRAM_WEIGHTS = {
    "linear": (64, 512),
    "conv": (64, 32, 3, 3),
    "pointwise": (64, 32, 1, 1),
    "depthwise": (32, 1, 3, 3),
}
PROGRAM_OUTPUTS = ("MatMul", "Conv 3x3", "Conv 1x1", "Conv 3x3, depthwise", "MatMul of activations")
PROGRAM_RECIPES = tuple(f"{recipe}@torch-inductor" for recipe in (STATIC, DYNAMIC))
