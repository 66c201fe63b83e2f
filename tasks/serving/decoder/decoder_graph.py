"""Reading a decoder out of the graph that onnxruntime-genai's model builder wrote and quantgate quantized.

The graph is followed from `logits` back to `input_ids`. A node that a plain decoder does not have at its position is refused,
so that a file for another runtime is never another model:

    x = embedding[input_ids]
    each layer:   x = x + out(attention(qkv(norm(x))));   x = x + down(silu(gate(norm(x))) * up(norm(x)))
    logits = head(norm(x))

q, k and v may be one product, with a bias, and q and k may be normalized per head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from tasks.serving.decoder.graph_nodes import GraphNodes, refusal
from tasks.serving.decoder.matrices import BlockMatrix, FloatMatrix, Matrix
from validators.graph.graph_scope import attribute
from validators.graph.stored import load_model

LOGITS = "logits"
# Of INT8 candidates, whose weights have one scale a channel.
AT_RUN_TIME = {"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat"}
SKIP_NORM, NORM = "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"
ATTENTION = "GroupQueryAttention"
QUERY, KEY, VALUE, COSINES, SINES = 0, 1, 2, 7, 8
# Position ids, an attention bias and sinks, which no model here has.
OTHER_INPUTS = slice(9, 12)


@dataclass(frozen=True)
class GraphProjection:
    """A product with its bias, float32 `[rows]`, if it has one."""

    matrix: Matrix
    bias: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Attention:
    """Sizes of a GroupQueryAttention, and its rotary angles per position, float64 `[head width / 2]`.

    `cache_type` is "NONE", or the type of its cache in few bits.
    """

    heads: int
    kv_heads: int
    head_width: int
    frequencies: NDArray[np.float64]
    cache_type: str


@dataclass(frozen=True)
class Projections:
    """The products that make q, k and v, and the gains of norms per head of q and k, if there are any."""

    query: GraphProjection
    key: GraphProjection
    value: GraphProjection
    query_gain: NDArray[np.float32] | None = None
    key_gain: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Layer:
    """The weights of a layer."""

    attention: Attention
    input_gain: NDArray[np.float32]
    projections: Projections
    output: Matrix
    inner_gain: NDArray[np.float32]
    gate: Matrix
    up: Matrix
    down: Matrix


@dataclass(frozen=True)
class DecoderWeights:
    """A decoder's weights. `epsilon` is that of all norms. `head` is None if it is the embedding."""

    embedding: Matrix
    layers: tuple[Layer, ...]
    gain: NDArray[np.float32]
    head: Matrix | None
    epsilon: float


@dataclass(frozen=True)
class _Norm:
    """A norm: `source` is what it normalizes, `added` the two tensors that it adds first, if any."""

    gain: NDArray[np.float32]
    source: str
    added: tuple[str, str] | None


def read_decoder(path: Path) -> DecoderWeights:
    """Return the decoder of a model file.

    Raises:
        JobError: the graph is not that of a decoder as the module says, or has weights that GGUF does not hold.
    """
    model = load_model(path)
    if found := sorted({node.op_type for node in model.graph.node} & AT_RUN_TIME):
        raise refusal(f"activations quantized at run time ({', '.join(found)})", "weights alone in few bits")
    return _Reader(model).decoder()


class _Reader(GraphNodes):
    """The structure of a decoder."""

    def __init__(self, model: onnx.ModelProto) -> None:
        super().__init__(model)
        self.epsilons: set[float] = set()

    def decoder(self) -> DecoderWeights:
        hidden, head = self.product(LOGITS)
        last = following = self.norm(hidden)
        layers: list[Layer] = []
        while following.added:
            layer, following = self.layer(following.added)
            layers.insert(0, layer)
        embedding = self.embedding(following.source)
        if not layers or len(self.epsilons) != 1:
            raise refusal(
                f"{len(layers)} layers, and norms with the epsilons {self.epsilons}", "layers with equal ones"
            )
        first = layers[0]
        for layer in layers:
            if _sizes(layer) != _sizes(first):
                raise refusal("layers of different sizes or rotary angles", "equal ones")
        tied = type(head) is type(embedding) and head.shape == embedding.shape and _equal(head, embedding)
        return DecoderWeights(embedding, tuple(layers), last.gain, None if tied else head, self.epsilons.pop())

    def layer(self, added: tuple[str, str]) -> tuple[Layer, _Norm]:
        """Return the layer whose two last terms are `added`, and the norm at its start."""
        middle, down_product = added
        product, down = self.product(down_product)
        gated, raised = self.maker(product, "Mul").input
        hidden, gate = self.product(self.silu(gated))
        other, up = self.product(raised)
        inner = self.norm(hidden)
        self.check(other == hidden, raised, f"a product of {hidden}")
        self.check(inner.source == middle and inner.added is not None, hidden, f"a norm of {middle}")
        assert inner.added is not None
        start, out_product = inner.added
        attended, output = self.product(out_product)
        node = self.maker(attended, ATTENTION)
        attention = self.attention(node)
        hidden, projections = self.projections(node, attention)
        first = self.norm(hidden)
        self.check(first.source == start, hidden, f"a norm of {start}")
        layer = Layer(attention, first.gain, projections, output, inner.gain, gate, up, down)
        return layer, first

    def silu(self, tensor: str) -> str:
        """Return x where a tensor is x * sigmoid(x)."""
        node = self.maker(tensor, "Mul")
        for x, other in (node.input, reversed(node.input)):
            made = self.makers.get(other)
            if made is not None and made.op_type == "Sigmoid" and made.input[0] == x:
                return str(x)
        raise self.unknown(node, "x * sigmoid(x)")

    def attention(self, node: NodeProto) -> Attention:
        told = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        cosines, sines = (self.constant(node.input[index]) for index in (COSINES, SINES))
        width = 2 * cosines.shape[1]
        plain = {
            "do_rotary": (1,),
            "rotary_interleaved": (0,),
            "softcap": (0.0,),
            "local_window_size": (-1,),
            "smooth_softmax": (0, -1),
            "causal": (1,),
            "scale": (0.0,),
        }
        wrong = [name for name, usual in plain.items() if told.get(name, usual[0]) not in usual]
        if "scale" in wrong and np.isclose(told["scale"], width**-0.5, rtol=1e-6):
            wrong.remove("scale")
        wrong += [name for name in node.input[OTHER_INPUTS] if name]
        if wrong:
            raise self.unknown(node, f"attention without {', '.join(wrong)}")
        # Angles of position 1; a cache that is scaled, or angles that are not proportional to the position, fit no model here.
        frequencies = np.arctan2(sines[1], cosines[1]).astype(np.float64)
        for position in {1, min(len(cosines) - 1, 64)}:
            angles = position * frequencies
            near = np.allclose(cosines[position], np.cos(angles), atol=1e-4) and np.allclose(
                sines[position], np.sin(angles), atol=1e-4
            )
            self.check(bool(near), node.output[0], "rotary angles in proportion to the position")
        cache = {bytes(told.get(f"{part}_quant_type", b"NONE")).decode() for part in "kv"} - {"NONE"}
        return Attention(told["num_heads"], told["kv_num_heads"], width, frequencies, min(cache, default="NONE"))

    def projections(self, node: NodeProto, attention: Attention) -> tuple[str, Projections]:
        """Return the tensor that q, k and v are products of, and these products."""
        sizes = [count * attention.head_width for count in (attention.heads, *[attention.kv_heads] * 2)]
        if not node.input[KEY]:
            hidden, packed = self.biased(node.input[QUERY])
            query, key, value = self.cut(packed, sizes, node)
            return hidden, Projections(query, key, value)
        tensors = list(node.input[QUERY : VALUE + 1])
        tensors[QUERY], query_gain = self.head_norm(tensors[QUERY])
        tensors[KEY], key_gain = self.head_norm(tensors[KEY])
        split = self.makers.get(tensors[QUERY])
        if split is not None and split.op_type == "Split":
            self.check(list(split.output) == tensors, tensors[QUERY], "q, k and v")
            self.check(self.constant(split.input[1]).tolist() == sizes, tensors[QUERY], f"parts of {sizes}")
            hidden, packed = self.biased(split.input[0])
            query, key, value = self.cut(packed, sizes, node)
        else:
            (hidden, query), *others = (self.biased(tensor) for tensor in tensors)
            self.check(all(one[0] == hidden for one in others), tensors[QUERY], f"products of {hidden}")
            key, value = (one[1] for one in others)
        rows = [part.matrix.shape[0] for part in (query, key, value)]
        self.check(rows == sizes, tensors[QUERY], f"products of {sizes} rows")
        return hidden, Projections(query, key, value, query_gain, key_gain)

    def cut(self, packed: GraphProjection, sizes: Sequence[int], node: NodeProto) -> list[GraphProjection]:
        """Return q, k and v of one product."""
        self.check(packed.matrix.shape[0] == sum(sizes), node.input[QUERY], f"{sum(sizes)} rows")
        ends = np.cumsum(sizes)
        parts = [slice(int(end - size), int(end)) for end, size in zip(ends, sizes, strict=True)]
        bias = packed.bias
        return [GraphProjection(packed.matrix.take(part), None if bias is None else bias[part]) for part in parts]

    def biased(self, tensor: str) -> tuple[str, GraphProjection]:
        """Return the input of a product with an optional bias, and the product."""
        node = self.makers.get(tensor)
        if node is None or node.op_type != "Add":
            hidden, matrix = self.product(tensor)
            return hidden, GraphProjection(matrix)
        hidden, matrix = self.product(node.input[0])
        return hidden, GraphProjection(matrix, self.vector(node.input[1], matrix.shape[0]))

    def head_norm(self, tensor: str) -> tuple[str, NDArray[np.float32] | None]:
        """Return the tensor before a norm of each head, and the norm's gain; without a norm, the tensor itself."""
        node = self.makers.get(tensor)
        if node is None or node.op_type != "Reshape":
            return tensor, None
        norm = self.norm(node.input[0])
        return str(self.maker(norm.source, "Reshape").input[0]), norm.gain

    def norm(self, tensor: str) -> _Norm:
        node = self.maker(tensor, SKIP_NORM, NORM, "Mul")
        if node.op_type == "Mul":
            return self.spelled_norm(node)
        self.epsilons.add(attribute(node, "epsilon", 1e-5))
        skips = node.op_type == SKIP_NORM
        self.check(
            node.output[0] == tensor and not any(node.input[3 if skips else 2 :]), tensor, "a norm without a bias"
        )
        gain = self.vector(node.input[2 if skips else 1])
        if not skips:
            return _Norm(gain, node.input[0], None)
        return _Norm(gain, node.output[3] if len(node.output) > 3 else "", (node.input[0], node.input[1]))

    def spelled_norm(self, node: NodeProto) -> _Norm:
        """Read `x / sqrt(mean(x^2) + epsilon) * gain`, as quantgate writes the norms that add nothing."""
        divide = self.maker(node.input[0], "Div")
        shifted = self.maker(self.maker(divide.input[1], "Sqrt").input[0], "Add")
        mean = self.maker(shifted.input[0], "ReduceMean")
        square = self.maker(mean.input[0], "Pow")
        self.epsilons.add(self.scalar(shifted.input[1]))
        is_plain = (
            square.input[0] == divide.input[0]
            and self.scalar(square.input[1]) == 2
            and self.constant(mean.input[1]).tolist() == [-1]
        )
        self.check(is_plain, node.output[0], "a root-mean-square norm")
        return _Norm(self.vector(node.input[1]), divide.input[0], None)


def _equal(one: Matrix, other: Matrix) -> bool:
    if isinstance(one, FloatMatrix) and isinstance(other, FloatMatrix):
        return np.array_equal(one.array, other.array)
    assert isinstance(one, BlockMatrix) and isinstance(other, BlockMatrix)
    parts = ("codes", "scales", "zero_points")
    return one.bits == other.bits and all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def _sizes(layer: Layer) -> tuple[object, ...]:
    attention = layer.attention
    heads = attention.heads, attention.kv_heads, attention.head_width
    return *heads, attention.frequencies.tobytes(), layer.gate.shape
