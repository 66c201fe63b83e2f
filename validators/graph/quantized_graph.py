"""View of a quantized model for the lint rules: its products, and their dequantized factors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from validators.graph.graph_scope import DEQUANTIZE, QUANTIZE, Scope, attribute, is_standard, scopes_of

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum"})
# Operators that move values, or scale all of them by one factor. They may stand between DequantizeLinear and a product.
MOVES = frozenset(
    {"Cast", "Flatten", "Gather", "Identity", "MaxPool", "Neg", "Pad", "Reshape", "Slice", "Split", "Squeeze"}
)
MOVES |= {"Transpose", "Unsqueeze"}
SCALINGS = frozenset({"Div", "Mul"})
# Those of `MOVES` and `SCALINGS` that keep each axis in position.
KEEPS_AXES = frozenset({"Cast", "Identity", "MaxPool", "Neg", "Pad", "Slice", "Split"}) | SCALINGS
# Shape inference copies the model; skip it for a model file with more inline data than this.
MOST_BYTES = 2**30


@dataclass(frozen=True)
class QuantizedFactor:
    """A DequantizeLinear as seen from the product that reads it.

    `code_type` is the ONNX type of the quantized values (0: unknown), `float_type` that of the dequantized ones. `stored` means
    that it dequantizes a constant, of shape `dims`. `axis` is the axis of its scales; None for a single scale, or if the axis
    cannot be tracked through the operators in between. `blocks` is the number of blocks along the axis with their own scales; 0
    without blocks. `path` are the operators in between, from the product on.
    """

    node: onnx.NodeProto
    scope: Scope
    code_type: int
    float_type: int
    stored: bool
    dims: tuple[int, ...]
    scale: TensorProto | None
    axis: int | None
    blocks: int
    path: tuple[str, ...] = ()

    @property
    def scales(self) -> int:
        """Number of scales; 0 if they are computed."""
        return int(np.prod(self.scale.dims)) if self.scale is not None else 0


@dataclass(frozen=True)
class ProductSide:
    """One input of a product: `quantized`, or float; `barrier` is the node between it and a DequantizeLinear, if any."""

    quantized: QuantizedFactor | None
    barrier: onnx.NodeProto | None = None


@dataclass(frozen=True)
class QuantizedProduct:
    """A node that multiplies, and its two factors."""

    node: onnx.NodeProto
    scope: Scope
    sides: tuple[ProductSide, ProductSide]

    @property
    def quantized(self) -> list[QuantizedFactor]:
        """The quantized factors."""
        return [side.quantized for side in self.sides if side.quantized is not None]

    def output_axis(self, side: int, rank: int) -> int | None:
        """Return the axis of a factor of this rank that becomes an axis of the result; None if there is no single one."""
        match self.node.op_type:
            case "Conv":
                return 0 if side else None
            case "Gemm":
                return 1 - side if attribute(self.node, "transB" if side else "transA", 0) else side
            case "MatMul":
                return rank - 2 + side if rank > 1 else None
        return None


class QuantizedGraph:
    """All scopes of a model, its nodes and its products."""

    def __init__(self, model: onnx.ModelProto, folder: Path) -> None:
        """Index a model that was loaded without its external data; the data files are in `folder`."""
        self.model = _with_shapes(model)
        self.scopes = [*scopes_of(self.model.graph, folder, None)]
        for function in self.model.functions:
            self.scopes += scopes_of(function, folder, None)
        self.nodes = [(scope, node) for scope in self.scopes for node in scope.graph.node]
        self.products = [
            QuantizedProduct(node, scope, (trace(scope, node, 0), trace(scope, node, 1)))
            for scope, node in self.nodes
            if node.op_type in PRODUCTS and is_standard(node) and len(node.input) > 1
        ]

    def of_kind(self, *kinds: str) -> Iterator[tuple[Scope, onnx.NodeProto]]:
        """Return the nodes of these operators, with their scopes."""
        return ((scope, node) for scope, node in self.nodes if node.op_type in kinds)


def code_type(scope: Scope, node: onnx.NodeProto) -> int:
    """Return the type of the quantized values of QuantizeLinear or DequantizeLinear; QuantizeLinear defaults to UINT8."""
    if len(node.input) > 2 and node.input[2]:
        return scope.element_type(node.input[2])
    if node.op_type == QUANTIZE:
        return int(attribute(node, "output_dtype", 0)) or TensorProto.UINT8
    source = _behind_moves(scope, node.input[0])
    made = scope.producer(source)
    return code_type(scope, made) if made is not None and made.op_type == QUANTIZE else scope.element_type(source)


def trace(scope: Scope, product: onnx.NodeProto, index: int) -> ProductSide:
    """Follow an input of a product back to its DequantizeLinear."""
    # A convolution absorbs a Pad before it.
    pads = product.op_type == "Conv"
    found, stop = _reach(scope, product.input[index], pads)
    if found is not None or stop is None:
        return ProductSide(found)
    blocks = stop.op_type not in PRODUCTS and any(_reach(scope, item, pads)[0] for item in stop.input if item)
    return ProductSide(None, stop if blocks else None)


def _reach(scope: Scope, name: str, pads: bool) -> tuple[QuantizedFactor | None, onnx.NodeProto | None]:
    """Return the DequantizeLinear upstream of nodes that only move values; without one, the node that blocks the search."""
    path: list[onnx.NodeProto] = []
    while (node := scope.producer(name)) is not None:
        if node.op_type == DEQUANTIZE:
            return _quantized(scope.owner(name), node, path), None
        if node.op_type == "Concat" and (same := _same_scale(scope, node, pads)) is not None:
            return same, None
        if not passes(scope, node) or (node.op_type == "Pad" and not pads):
            return None, node
        path.append(node)
        name = node.input[0]
    return None, None


def passes(scope: Scope, node: onnx.NodeProto) -> bool:
    """Return True if a node may stand between DequantizeLinear and a product."""
    if not is_standard(node):
        return False
    if node.op_type in SCALINGS:
        factor = scope.constant(node.input[1])
        return factor is not None and int(np.prod(factor.dims)) == 1
    return node.op_type in MOVES


def _same_scale(scope: Scope, node: onnx.NodeProto, pads: bool) -> QuantizedFactor | None:
    found = [_reach(scope, name, pads)[0] for name in node.input]
    whole = [item for item in found if item is not None and item.scale is not None and item.axis is None]
    if len(whole) < len(found) or len({item.scope.numbers(item.scale).tobytes() for item in whole if item.scale}) > 1:
        return None
    return whole[0]


def _behind_moves(scope: Scope, name: str) -> str:
    while (node := scope.producer(name)) is not None and node.op_type in MOVES:
        name = node.input[0]
    return name


def _quantized(scope: Scope, node: onnx.NodeProto, path: list[onnx.NodeProto]) -> QuantizedFactor:
    source = _behind_moves(scope, node.input[0])
    made = scope.producer(source)
    if made is not None and made.op_type == QUANTIZE:
        # Weights may be stored as floats before a QuantizeLinear and DequantizeLinear pair.
        source = made.input[0]
    codes, scale = scope.constant(source), scope.constant(node.input[1])
    shape = scope.shape(node.input[0]) or scope.shape(source) or []
    axis: int | None = None
    blocks = 0
    if scale is not None and int(np.prod(scale.dims)) > 1:
        axis = int(attribute(node, "axis", 1))
        axis = axis + len(shape) if axis < 0 else axis
        blocks = scale.dims[axis] if attribute(node, "block_size", 0) else 0
    floats = int(attribute(node, "output_dtype", 0)) or scope.element_type(node.input[1])
    for step in reversed(path):
        if step.op_type == "Cast":
            floats = int(attribute(step, "to", 0))
        if axis is not None:
            axis = _moved(step, axis)
    dims = tuple(shape) if codes is not None else ()
    kinds = tuple(step.op_type for step in path)
    return QuantizedFactor(
        node, scope, code_type(scope, node), floats, codes is not None, dims, scale, axis, blocks, kinds
    )


def _moved(node: onnx.NodeProto, axis: int) -> int | None:
    if node.op_type == "Transpose":
        order = attribute(node, "perm", [])
        return list(order).index(axis) if axis in order else None
    return axis if node.op_type in KEEPS_AXES else None


def _with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    if model.ByteSize() > MOST_BYTES:
        return model
    try:
        return onnx.shape_inference.infer_shapes(model)
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        # The file also violates the standard; rules that need shapes then report nothing.
        return model
