"""Weights of a decoder by their names in transformers, each with the scheme in which it is stored, and layouts of them.

Servers compute q, k and v as one product, and the gate with the product beside it: what is computed as one has one scheme.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.decoder_graph import DecoderWeights
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import BlockMatrix, FloatMatrix, Matrix

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"
Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, order=True)
class Scheme:
    """Bits, columns of a block, and whether all zero points are the middle code."""

    bits: int
    block: int
    symmetric: bool


@dataclass(frozen=True)
class NamedProduct:
    """A product by the name of its layer, without `.weight`; `scheme` is None for floats."""

    name: str
    matrix: Matrix
    scheme: Scheme | None


class CheckpointFormat(Protocol):
    """A layout. It holds products as they were judged, bit for bit."""

    def pack(self, matrix: BlockMatrix, *, symmetric: bool) -> dict[str, NDArray[Any]]:
        """Return the tensors of a product by the ends of their names.

        Raises:
            JobError: the layout has no such blocks.
        """

    def unpack(self, stored: Tensors, scheme: Scheme, rows: slice) -> NDArray[np.float64]:
        """Return rows of the weight, dequantized."""

    def settings(self, products: Sequence[NamedProduct]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return what `config.json` says of quantized products, and the content of other files."""


def left_in_floats(products: Sequence[NamedProduct]) -> list[str]:
    """Return the names of products that are not quantized, the head first."""
    return [HEAD, *(product.name for product in products if product.scheme is None)]


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a decoder: products, tables of tokens, and vectors, by name."""

    products: tuple[NamedProduct, ...]
    tables: dict[str, Matrix]
    vectors: dict[str, FloatMatrix]


def checkpoint_of(decoder: DecoderWeights) -> Checkpoint:
    """Name the weights of a decoder.

    Raises:
        JobError: products that are computed as one differ in blocks.
    """
    products: list[NamedProduct] = []
    vectors = {"model.norm.weight": FloatMatrix(decoder.gain)}
    for index, layer in enumerate(decoder.layers):
        prefix = f"model.layers.{index}"
        attention, parts = f"{prefix}.self_attn", layer.projections
        together = {
            f"{attention}.q_proj": parts.query,
            f"{attention}.k_proj": parts.key,
            f"{attention}.v_proj": parts.value,
        }
        products += _fused({name: part.matrix for name, part in together.items()})
        products += _fused({f"{attention}.o_proj": layer.output})
        products += _fused({f"{prefix}.mlp.gate_proj": layer.gate, f"{prefix}.mlp.up_proj": layer.up})
        products += _fused({f"{prefix}.mlp.down_proj": layer.down})
        vectors[f"{prefix}.input_layernorm.weight"] = FloatMatrix(layer.input_gain)
        vectors[f"{prefix}.post_attention_layernorm.weight"] = FloatMatrix(layer.inner_gain)
        for name, vector in (
            *((f"{name}.bias", part.bias) for name, part in together.items()),
            (f"{attention}.q_norm.weight", parts.query_gain),
            (f"{attention}.k_norm.weight", parts.key_gain),
        ):
            if vector is not None:
                vectors[name] = FloatMatrix(vector)
    tables = {EMBEDDING: decoder.embedding, **({} if decoder.head is None else {HEAD: decoder.head})}
    return Checkpoint(tuple(products), tables, vectors)


def _fused(matrices: dict[str, Matrix]) -> Iterator[NamedProduct]:
    """Yield products that are computed as one, with codes as wide as the widest, and zero points if any has them."""
    blocks = [matrix for matrix in matrices.values() if isinstance(matrix, BlockMatrix)]
    if blocks and (len(blocks) < len(matrices) or len({matrix.block for matrix in blocks}) > 1):
        raise refusal(
            f"{', '.join(matrices)}: weights in floats or in blocks of different sizes",
            "one size of block, since servers compute them as one product",
            "export with --genai FOLDER",
        )
    bits = max((matrix.bits for matrix in blocks), default=0)
    symmetric = all(matrix.symmetric for matrix in blocks)
    for name, matrix in matrices.items():
        if isinstance(matrix, BlockMatrix):
            wide = widened(matrix) if matrix.bits < bits else matrix
            yield NamedProduct(name, wide, Scheme(bits, matrix.block, symmetric))
        else:
            yield NamedProduct(name, matrix, None)


def widened(matrix: BlockMatrix) -> BlockMatrix:
    """Return the same weight with codes of 8 bits.

    >>> one = BlockMatrix(4, np.array([[0, 15] * 16], np.uint8), *(np.full((1, 1), n, np.float32) for n in (0.5, 8)))
    >>> widened(one).codes[0, :2].tolist(), widened(one).values()[0, :2].tolist()
    ([120, 135], [-4.0, 3.5])
    """
    more = 128 - 2 ** (matrix.bits - 1)
    return BlockMatrix(8, matrix.codes + np.uint8(more), matrix.scales, matrix.zero_points + np.float32(more))
