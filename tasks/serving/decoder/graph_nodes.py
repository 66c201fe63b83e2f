"""Nodes of a quantized graph and their constants, each read as one operator or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from tasks.serving.decoder.matrices import BLOCKS, BlockMatrix, FloatMatrix, Matrix, unpacked
from validators.errors import JobError
from validators.graph.graph_scope import attribute
from validators.graph.stored import to_array
from validators.job.methods import VALUES_ALONE

TOKENS = "input_ids"
# Methods whose codes formats hold as they are.
CODES = " or ".join(VALUES_ALONE)


def refusal(found: str, expected: str, fix: str = f"promote an int4-g32 candidate by {CODES}") -> JobError:
    """Return the error for a variant that a format cannot hold."""
    return JobError(found=found, expected=expected, fix=fix)


class GraphNodes:
    """A graph, indexed by the tensors that its nodes make. Every method refuses (JobError) what it does not expect."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.makers = {name: node for node in model.graph.node for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}

    def embedding(self, tensor: str) -> Matrix:
        node = self.maker(tensor, "Gather", "GatherBlockQuantized")
        if node.op_type == "Gather":
            table, tokens = node.input
            self.check(tokens == TOKENS and attribute(node, "axis", 0) == 0, tensor, f"rows by {TOKENS}")
            return FloatMatrix(self.constant(table).astype(np.float32, copy=False))
        table, tokens, *rest = node.input
        axes = attribute(node, "gather_axis", 0), attribute(node, "quantize_axis", 1)
        self.check(tokens == TOKENS and axes == (0, 1), tensor, f"rows by {TOKENS}")
        rows, packed = self.constant(table).shape
        bits = attribute(node, "bits", 4)
        return self.blocks(node, [table, *rest], bits, (rows, packed * 8 // bits))

    def product(self, tensor: str) -> tuple[str, Matrix]:
        """Return the tensor that a product multiplies, and its weight."""
        node = self.maker(tensor, "MatMul", "MatMulNBits")
        hidden, weight = node.input[:2]
        if node.op_type == "MatMul":
            return hidden, FloatMatrix(self.constant(weight).T.astype(np.float32, copy=False))
        self.check(not any(node.input[4:]), tensor, "a product without an order of channels or a bias")
        return hidden, self.blocks(
            node, node.input[1:4], attribute(node, "bits", 4), (attribute(node, "N", 0), attribute(node, "K", 0))
        )

    def blocks(self, node: NodeProto, names: Sequence[str], bits: int, shape: tuple[int, int]) -> BlockMatrix:
        """Read codes, scales and zero points; `shape` is that of the weight, rows and columns."""
        size, (rows, columns) = attribute(node, "block_size", 32), shape
        if size not in BLOCKS or bits not in (4, 8) or columns % size:
            raise refusal(
                f"{node.name} has weights of {bits} bits in blocks of {size}, {columns} in a row",
                f"4 or 8 bits in blocks of {', '.join(map(str, BLOCKS))}, and whole blocks",
            )
        codes = unpacked(self.constant(names[0]).reshape(rows, -1), bits, columns)
        scales = self.constant(names[1]).astype(np.float32).reshape(rows, -1)
        zeros = np.full(scales.shape, 2 ** (bits - 1), np.float32)
        if len(names) > 2 and names[2]:
            stored = self.constant(names[2])
            if stored.dtype == np.uint8:
                stored = unpacked(stored.reshape(rows, -1), bits, scales.shape[1])
            zeros = stored.reshape(rows, -1).astype(np.float32)
        return BlockMatrix(bits, codes, scales, zeros)

    def maker(self, tensor: str, *operators: str) -> NodeProto:
        """Return the node that makes a tensor; refuse any other operator."""
        node = self.makers.get(tensor)
        if node is None:
            raise refusal(f"{tensor} is an input or a constant", f"the output of {' or '.join(operators)}")
        if node.op_type not in operators:
            raise self.unknown(node, " or ".join(operators))
        return node

    def constant(self, name: str) -> NDArray[Any]:
        """Return a constant, also a matrix that a Transpose turns, or one that a Reshape passes on as it is stored."""
        node = self.makers.get(name)
        match node.op_type if node is not None else None:
            case "Transpose" | "Reshape":
                assert node is not None
                array = self.constant(node.input[0])
                return array.T if node.op_type == "Transpose" else array
            case "Constant":
                assert node is not None
                return to_array(attribute(node, "value", None))
        if name not in self.constants:
            raise refusal(f"{name} is computed", "a constant")
        return to_array(self.constants[name])

    def vector(self, name: str, size: int | None = None) -> NDArray[np.float32]:
        array = self.constant(name)
        self.check(array.ndim == 1 and size in (None, len(array)), name, f"a vector of {size or 'any size'}")
        return array.astype(np.float32, copy=False)

    def scalar(self, name: str) -> float:
        array = self.constant(name)
        self.check(array.size == 1, name, "one number")
        return float(array.reshape(-1)[0])

    def check(self, holds: bool, tensor: str, expected: str) -> None:
        if not holds:
            raise refusal(f"{tensor} of the graph is something else", f"{expected}, as in a plain decoder")

    def unknown(self, node: NodeProto, expected: str) -> JobError:
        return refusal(f"the node {node.name or node.output[0]} of the graph, a {node.op_type}", f"{expected} there")
