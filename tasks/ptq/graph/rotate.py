"""A rotation of a decoder's residual stream, folded into the weights: outlier channels spread over all of them.

R1 of S. Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", NeurIPS 2024, and of Z. Liu et al.,
"SpinQuant: LLM Quantization with Learned Rotations", ICLR 2025. A root-mean-square norm without gain commutes with an
orthogonal Q, so that `x + f(norm(x) diag(g) W) V` equals, but for a final Qᵀ,

    (x Q) + f(norm(x Q) (Qᵀ diag(g) W)) (V Q)

The papers' R2, a rotation of the values of each head, is left out. On SmolLM2-135M (32 windows of 128 tokens) it changed what
`int4-g64-gptq-asym` loses from 0.122 nats a token to 0.126, and with R1 from 0.077 to 0.081; with caches in INT4, rotated
values lost more. Q is a random orthogonal matrix, which exists for each width: Hadamard matrices with random signs were no
better (0.077 and 0.098 with two seeds; random ones 0.082 and 0.096).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx.helper import make_node

from tasks.ptq.calibrate.pass_batches import few_samples
from tasks.ptq.eight_bit.placement import GraphView
from tasks.ptq.eight_bit.tied import retie
from tasks.ptq.graph.edits import Names, attribute, operator_of
from tasks.ptq.graph.equal_floats import refuse_unequal
from tasks.ptq.weight_only.sites import replace_nodes
from validators.errors import CandidateRefused
from validators.graph.stored import load_model, save_model, spilling, to_array
from validators.records.libraries import Libraries
from validators.samples.datasets import Samples

SKIP_NORM = "com.microsoft:SkipSimplifiedLayerNormalization"
# Positions in the inputs and outputs of that operator.
SKIP_GAIN, SKIP_BIAS, SKIP_SUM = 2, 3, 3
# Rows multiplied at once: float64 of 49,152 tokens would take 226 MB.
ROWS_AT_ONCE = 4096

Floats = NDArray[np.float64]
Array = NDArray[Any]


def make_rotated(
    prepared: Callable[[], Path],
    samples: Samples,
    fixed_batch: int | None,
    seed: int,
    libraries: Libraries,
    folder: Path,
) -> Path:
    """Write the rotated graph into a folder; return its file. It is compared with the prepared one on a few samples."""
    model, rotated = prepared(), folder / "rotated.onnx"
    rotate(model, rotated, seed)
    refuse_unequal(model, rotated, few_samples(samples, fixed_batch), libraries, "rotation", "candidates without -rot")
    return rotated


def random_rotation(size: int, seed: int) -> Floats:
    """Return an orthogonal matrix from the Haar distribution, float64 `[size, size]`.

    F. Mezzadri, "How to Generate Random Matrices from the Classical Compact Groups", Notices of the AMS 54 (2007), section 5.
    """
    orthogonal, triangle = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    return np.asarray(orthogonal * np.sign(np.diag(triangle)))


@spilling()
def rotate(model: Path, rotated: Path, seed: int) -> None:
    """Write an equivalent float decoder whose residual stream is rotated, and whose norms on it have gains of 1.

    A head that is the embedding's table stays that. Before it comes one product with `Qᵀ diag(g) Q`, where g is the gain of the
    last norm. This constant has three axes, so that no pass quantizes it.

    Raises:
        CandidateRefused: `unsupported`: the graph is no decoder whose stream is read by norms and products alone.
    """
    proto = load_model(model)
    retie(proto.graph)
    tables = _tables(proto.graph)
    if len(tables) != 1:
        raise _no_decoder(f"{len(tables)} embeddings of tokens", "one")
    _Rotation(proto.graph, tables[0], seed).apply()
    replace_nodes(proto.graph, proto.graph.node)
    save_model(proto, rotated)
    onnx.checker.check_model(str(rotated))


def _tables(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes that look rows of a constant matrix up."""
    matrices = {tensor.name for tensor in graph.initializer if len(tensor.dims) == 2}
    return [node for node in graph.node if operator_of(node) == "Gather" and node.input[0] in matrices]


@dataclass
class _Rotation:
    """One pass: `stream` has the rotated tensors, each with the gain that its readers still have to apply."""

    graph: onnx.GraphProto
    look_up: onnx.NodeProto
    seed: int
    stream: dict[str, Floats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.view, self.names = GraphView(self.graph), Names(self.graph)
        table = self.constant(self.look_up.input[0])
        self.matrix = random_rotation(table.shape[1], self.seed)
        self.ones = np.ones(len(self.matrix))
        self.table = self.look_up.input[0]

    def apply(self) -> None:
        """Rotate the table, then each node that reads or writes the stream, in the order of the graph."""
        self.replace(self.look_up, 0, _times(self.constant(self.table), self.matrix))
        self.stream[self.look_up.output[0]] = self.ones
        for node in list(self.graph.node):
            inputs = [index for index, name in enumerate(node.input) if name in self.stream]
            if inputs:
                self.follow(node, inputs)
        if left := self.view.pinned & self.stream.keys():
            raise _no_decoder(f"the output {min(left)}, which is the residual stream", "outputs behind a product")

    def follow(self, node: onnx.NodeProto, inputs: list[int]) -> None:
        """Rotate the weights of a node that reads the stream at `inputs`, and note which of its outputs are rotated."""
        gain = self.stream[node.input[inputs[0]]]
        kind = operator_of(node)
        if kind == "MatMul" and inputs == [0]:
            self.read(node, gain)
            return
        # Other operators would have to apply the gain too.
        plain = all(self.stream[node.input[index]] is self.ones for index in inputs)
        if plain and kind == SKIP_NORM and not any(node.input[SKIP_BIAS:]) and set(inputs) <= {0, 1}:
            self.join(node, inputs)
            self.take_gain(node, SKIP_GAIN)
            if len(node.output) > SKIP_SUM:
                self.stream[node.output[SKIP_SUM]] = self.ones
        elif plain and kind == "Add":
            self.join(node, inputs)
            self.stream[node.output[0]] = self.ones
        elif plain and kind == "Div" and inputs == [0]:
            self.stream[node.output[0]] = self.ones
        elif plain and kind == "Mul" and len(inputs) == 1 and self.is_vector(node.input[1 - inputs[0]]):
            self.take_gain(node, 1 - inputs[0])
        elif not (plain and kind == "Pow" and self.is_mean_square(node)):
            raise _no_decoder(f"{node.name}: {kind}, which reads the residual stream", "norms and products there")

    def join(self, node: onnx.NodeProto, inputs: list[int]) -> None:
        """Rotate what is added to the stream: the columns of a product with a constant matrix, and its bias."""
        for index in {0, 1} - set(inputs):
            product = self.view.producer.get(node.input[index])
            is_read_once = self.view.is_read_by(node.input[index], 1)
            if product is not None and operator_of(product) == "Add":
                bias = next((at for at in (0, 1) if self.is_vector(product.input[at])), 0)
                if self.is_vector(product.input[bias]):
                    self.replace(product, bias, _times(self.constant(product.input[bias])[None], self.matrix)[0])
                    is_read_once = is_read_once and self.view.is_read_by(product.input[1 - bias], 1)
                    product = self.view.producer.get(product.input[1 - bias])
            if product is None or not is_read_once or not self.is_product(product):
                raise _no_decoder(f"{node.input[index]}, which is added to the residual stream", "a product, read once")
            self.replace(product, 1, _times(self.constant(product.input[1]), self.matrix))

    def read(self, node: onnx.NodeProto, gain: Floats) -> None:
        """Rotate the rows of a weight that is multiplied with the stream; `gain` is what a norm has not applied."""
        left = gain[:, None] * self.matrix
        if self.is_product(node):
            self.replace(node, 1, _times(self.constant(node.input[1]).T, left).T)
            return
        made = self.view.producer.get(node.input[1])
        if made is None or operator_of(made) != "Transpose" or made.input[0] != self.table:
            raise _no_decoder(f"{node.name}: a product of the residual stream without a constant matrix", "constants")
        # The table of the embedding: rotated, it lacks the gain.
        self.replace(node, 1, to_array(self.view.constants[self.look_up.input[0]]).T)
        between = (left.T @ self.matrix).astype(np.float32)[None]
        name = self.names.store(self.graph, f"{self.table}_gain", between)
        output = self.names.new(f"{node.input[0]}_gained")
        scaled = make_node("MatMul", [node.input[0], name], [output], name=self.names.new(f"{node.name}_gain"))
        node.input[0] = output
        self.graph.node.insert(list(self.graph.node).index(node), scaled)

    def take_gain(self, node: onnx.NodeProto, index: int) -> None:
        """Hand a norm's gain to the readers of its first output."""
        gain = self.constant(node.input[index])
        self.stream[node.output[0]] = np.broadcast_to(gain.astype(np.float64), self.ones.shape)
        self.replace(node, index, np.ones_like(gain))

    def is_vector(self, name: str) -> bool:
        """Return True for a constant with a number for each channel."""
        return name in self.view.constants and list(self.view.constants[name].dims) == [len(self.matrix)]

    def is_product(self, node: onnx.NodeProto) -> bool:
        """Return True for a product with a constant matrix on the right."""
        weight = self.view.constants.get(node.input[1]) if operator_of(node) == "MatMul" else None
        return weight is not None and len(weight.dims) == 2

    def is_mean_square(self, node: onnx.NodeProto) -> bool:
        """Return True if a power is the square, and only its mean over the channels is read: both are blind to a rotation."""
        power = self.view.constants.get(node.input[1])
        readers = [reader for reader, _ in self.view.readers.get(node.output[0], [])]
        return power is not None and to_array(power) == 2 and all(map(self.is_mean, readers))

    def is_mean(self, node: onnx.NodeProto) -> bool:
        """Return True for the mean over the last axis."""
        axes = self.view.constants.get(node.input[1]) if len(node.input) > 1 else None
        told = attribute(node, "axes", []) if axes is None else to_array(axes)
        return operator_of(node) == "ReduceMean" and list(told) == [-1]

    def constant(self, name: str) -> Array:
        return to_array(self.view.constants[name])

    def replace(self, node: onnx.NodeProto, index: int, values: Array) -> None:
        """Give the node a constant of its own, since others may read the present one."""
        node.input[index] = self.names.store(self.graph, f"{node.input[index]}_rotated", np.ascontiguousarray(values))
        self.view.constants[node.input[index]] = self.graph.initializer[-1]


def _times(rows: Array, matrix: Floats) -> Array:
    """Return `rows @ matrix` in the dtype of the rows, computed in float64."""
    starts = range(0, len(rows), ROWS_AT_ONCE)
    return np.concatenate([(rows[at : at + ROWS_AT_ONCE] @ matrix).astype(rows.dtype) for at in starts])


def _no_decoder(found: str, expected: str) -> CandidateRefused:
    return CandidateRefused(
        kind="unsupported",
        found=found,
        expected=f"a decoder with root-mean-square norms, and {expected}",
        fix="take the candidate without -rot",
    )
