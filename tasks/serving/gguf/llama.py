"""Names of tensors and metadata of a decoder in GGUF (ggml-org/ggml, docs/gguf.md; llama.cpp's `llama-arch.cpp`).

The architecture `llama` turns neighbours of a row by one angle, where transformers turns the halves of a head: rows of q and k
are reordered for it, as llama.cpp's own converter does. The `qwen` architectures turn halves too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.decoder_graph import DecoderWeights, GraphProjection, Layer
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import FloatMatrix, Matrix
from tasks.serving.decoder.rotary import rotary_base

# The architecture in llama.cpp, by `type` in `genai_config.json`.
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# `general.file_type` by the type of most weights.
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7}


def architecture_of(config: Mapping[str, Any]) -> str:
    """Return the architecture of a decoder by its `genai_config.json`.

    Raises:
        JobError: it is not among `ARCHITECTURES`.
    """
    kind = config["model"]["type"]
    if kind not in ARCHITECTURES:
        raise refusal(
            f"a decoder of the type {kind}", f"one of {', '.join(ARCHITECTURES)}", "export with --genai FOLDER"
        )
    return ARCHITECTURES[kind]


def metadata_of(decoder: DecoderWeights, architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes and settings of a decoder, by key.

    Raises:
        JobError: the architecture has no rotary angles such as the decoder's.
    """
    attention = decoder.layers[0].attention
    base, factors = rotary_base(attention.frequencies)
    if factors is not None and architecture != "llama":
        raise refusal(
            f"scaled rotary angles in a decoder of the architecture {architecture}",
            "angles that are powers of one base",
            "export with --genai FOLDER",
        )
    named = {
        "vocab_size": decoder.embedding.shape[0],
        "context_length": config["model"]["context_length"],
        "embedding_length": decoder.embedding.shape[1],
        "block_count": len(decoder.layers),
        "feed_forward_length": decoder.layers[0].gate.shape[0],
        "attention.head_count": attention.heads,
        "attention.head_count_kv": attention.kv_heads,
        "attention.key_length": attention.head_width,
        "attention.value_length": attention.head_width,
        "attention.layer_norm_rms_epsilon": float(decoder.epsilon),
        "rope.dimension_count": attention.head_width,
        "rope.freq_base": base,
    }
    return {f"{architecture}.{key}": value for key, value in named.items()}


def tensors_of(decoder: DecoderWeights, architecture: str) -> Iterator[tuple[str, Matrix]]:
    """Yield the weights by their names in GGUF."""
    yield "token_embd.weight", decoder.embedding
    _, factors = rotary_base(decoder.layers[0].attention.frequencies)
    if factors is not None:
        yield "rope_freqs.weight", FloatMatrix(factors)
    for index, layer in enumerate(decoder.layers):
        for name, matrix in _layer(layer, is_reordered=architecture == "llama"):
            yield f"blk.{index}.{name}", matrix
    yield "output_norm.weight", FloatMatrix(decoder.gain)
    if decoder.head is not None:
        yield "output.weight", decoder.head


def _layer(layer: Layer, *, is_reordered: bool) -> Iterator[tuple[str, Matrix]]:
    attention, parts = layer.attention, layer.projections
    yield "attn_norm.weight", FloatMatrix(layer.input_gain)
    for name, part, heads in (
        ("attn_q", parts.query, attention.heads),
        ("attn_k", parts.key, attention.kv_heads),
        ("attn_v", parts.value, None),
    ):
        rows = interleaved(heads, attention.head_width) if heads and is_reordered else None
        yield from _projection(name, part, rows)
    for name, gain in (("attn_q_norm", parts.query_gain), ("attn_k_norm", parts.key_gain)):
        if gain is not None:
            yield f"{name}.weight", FloatMatrix(gain)
    yield "attn_output.weight", layer.output
    yield "ffn_norm.weight", FloatMatrix(layer.inner_gain)
    yield "ffn_gate.weight", layer.gate
    yield "ffn_up.weight", layer.up
    yield "ffn_down.weight", layer.down


def _projection(name: str, part: GraphProjection, rows: NDArray[np.int64] | None) -> Iterator[tuple[str, Matrix]]:
    yield f"{name}.weight", part.matrix if rows is None else part.matrix.take(rows)
    if part.bias is not None:
        yield f"{name}.bias", FloatMatrix(part.bias if rows is None else part.bias[rows])


def interleaved(heads: int, width: int) -> NDArray[np.int64]:
    """Return the rows of all heads in the order in which the two that turn together are neighbours.

    >>> interleaved(2, 4).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    return np.arange(heads * width).reshape(heads, 2, width // 2).swapaxes(1, 2).reshape(-1)
