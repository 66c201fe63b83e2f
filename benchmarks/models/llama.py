"""Llama decoder that scores whole windows: plain operators, weights as plain right operands, no cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tasks.demo.bert import MASKED_SCORE
from tasks.demo.text import to_onnx
from validators.errors import SourceError

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class LlamaShape:
    """Sizes and constants of a Llama decoder. `heads` is a multiple of `kv_heads`; `head_width` is even."""

    vocabulary: int
    positions: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    inner_width: int
    layers: int
    norm_epsilon: float
    rope_theta: float


class Projection(nn.Module):
    """`x @ weight` with the weight as float32 [inputs, outputs], the form in which quantizers look for it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight)


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon), times a gain for each channel (Zhang and Sennrich 2019, equation 4).

    `gain` is float32 [width], or None once it has been folded into the projections that read the norm.
    """

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.epsilon = epsilon
        self.gain: nn.Parameter | None = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.epsilon)
        return normed if self.gain is None else normed * self.gain


def rotary_tables(positions: int, head_width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of position x theta^(-2i / head_width), each float32 [positions, head_width / 2].

    Su et al. 2021, "RoFormer", section 3.4.2. Computed in float64, which keeps the fraction of an angle of thousands of
    radians.
    """
    frequency = theta ** (-torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_width / 2) of `x` [..., sequence, head_width] by its angle at its position.

    `cosine` and `sine` are [sequence, head_width / 2]. Pairs lie half a head apart, as in the Llama checkpoints of
    Hugging Face; in the paper and in GGUF they are adjacent.

    >>> rotate(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]))
    tensor([[0., 1.]])
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class LlamaAttention(nn.Module):
    """Causal grouped-query attention (Ainslie et al. 2023): [batch, sequence, width] to the same.

    Consecutive query heads, `heads / kv_heads` of them, share one head of keys and values.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.kv_heads, self.group, self.head_width = shape.kv_heads, shape.heads // shape.kv_heads, shape.head_width
        self.query = Projection(shape.width, shape.heads * shape.head_width)
        self.key = Projection(shape.width, shape.kv_heads * shape.head_width)
        self.value = Projection(shape.width, shape.kv_heads * shape.head_width)
        self.output = Projection(shape.heads * shape.head_width, shape.width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, score_bias: Tensor) -> Tensor:
        batch, sequence = x.shape[0], x.shape[1]

        def split(y: Tensor, group: int) -> Tensor:
            # [batch, kv_heads, group, sequence, head_width]; keys and values have a group of 1, which broadcasts.
            return y.view(batch, sequence, self.kv_heads, group, self.head_width).permute(0, 2, 3, 1, 4)

        query = rotate(split(self.query(x), self.group), cosine, sine)
        key = rotate(split(self.key(x), 1), cosine, sine)
        scores = torch.matmul(query, key.transpose(-1, -2)) / self.head_width**0.5 + score_bias
        mixed = torch.matmul(torch.softmax(scores, dim=-1), split(self.value(x), 1)).permute(0, 3, 1, 2, 4)
        projected: Tensor = self.output(mixed.reshape(batch, sequence, self.kv_heads * self.group * self.head_width))
        return projected


class LlamaLayer(nn.Module):
    """Attention and a SwiGLU feed-forward (Shazeer 2020), each after a norm and added to its input (pre-norm)."""

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.attention_norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.attention = LlamaAttention(shape)
        self.inner_norm = RmsNorm(shape.width, shape.norm_epsilon)
        self.gate = Projection(shape.width, shape.inner_width)
        self.up = Projection(shape.width, shape.inner_width)
        self.down = Projection(shape.inner_width, shape.width)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, score_bias: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cosine, sine, score_bias)
        normed = self.inner_norm(x)
        added: Tensor = x + self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return added


class Llama(nn.Module):
    """`forward(input_ids)`: int64 [batch, sequence] to logits, float32 [batch, sequence, vocabulary].

    The logits at a position are for the token after it. The head is the token embedding (tied), transposed.
    """

    def __init__(self, shape: LlamaShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(LlamaLayer(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, shape.norm_epsilon)
        cosine, sine = rotary_tables(shape.positions, shape.head_width, shape.rope_theta)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        sequence = input_ids.shape[1]
        cosine, sine = self.get_buffer("cosine")[:sequence], self.get_buffer("sine")[:sequence]
        position = torch.arange(sequence)
        # exp(MASKED_SCORE) is exactly 0 beside any score of a token, so later tokens have no weight.
        score_bias = (position[None, :] > position[:, None]).to(torch.float32) * MASKED_SCORE
        x = self.tokens(input_ids)
        for layer in self.layers:
            x = layer(x, cosine, sine, score_bias)
        logits: Tensor = torch.matmul(self.norm(x), self.tokens.weight.T)
        return logits


def fold_gains(model: Llama) -> int:
    """Multiply the gains of each layer's norms into the rows of the next projections; return how many were folded.

    The function is the same in exact arithmetic: (n * gain) @ W = n @ (gain[:, None] * W). Weights that were stored on a
    grid leave it, so that quantizing them costs as much accuracy as with a model that was never quantized. The last norm
    keeps its gain: its reader is the tied embedding, which is also the look-up table.
    """
    folded = 0
    for layer in model.layers:
        assert isinstance(layer, LlamaLayer)
        attention = layer.attention
        for norm, readers in (
            (layer.attention_norm, (attention.query, attention.key, attention.value)),
            (layer.inner_norm, (layer.gate, layer.up)),
        ):
            if norm.gain is not None:
                for reader in readers:
                    reader.weight.data *= norm.gain.data[:, None]
                norm.gain = None
                folded += 1
    return folded


def shape_of(metadata: Mapping[str, Any]) -> LlamaShape:
    """Return the sizes and constants of a Llama model from the metadata of its GGUF file.

    Raises:
        SourceError: the file holds another architecture.
        KeyError: a field is missing.
    """
    if metadata["general.architecture"] != "llama":
        raise SourceError(
            found=f"a model of the architecture {metadata['general.architecture']}",
            expected="llama",
            fix="take the GGUF file of a Llama model",
        )
    return LlamaShape(
        vocabulary=metadata["llama.vocab_size"],
        positions=metadata["llama.context_length"],
        width=metadata["llama.embedding_length"],
        heads=metadata["llama.attention.head_count"],
        kv_heads=metadata["llama.attention.head_count_kv"],
        head_width=metadata["llama.rope.dimension_count"],
        inner_width=metadata["llama.feed_forward_length"],
        layers=metadata["llama.block_count"],
        norm_epsilon=metadata["llama.attention.layer_norm_rms_epsilon"],
        rope_theta=metadata["llama.rope.freq_base"],
    )


def load_model(metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[np.float32]]) -> Llama:
    """Return the decoder with the metadata and tensors of a GGUF file, as `tasks.demo.language.read_gguf` returns them.

    Raises:
        SourceError: the file holds another architecture.
        RuntimeError: a weight has another shape than the fields say.
        KeyError: a field or a weight is missing.
    """
    return llama_from({name: torch.from_numpy(array) for name, array in tensors.items()}, shape_of(metadata))


def llama_from(tensors: Mapping[str, Tensor], shape: LlamaShape) -> Llama:
    """Return the decoder with these weights, by GGUF name; matrices are [outputs, inputs], query and key in GGUF's row order.

    Raises:
        RuntimeError: a weight has another shape than `shape` says.
        KeyError: a weight is missing.
    """
    state = {"tokens.weight": tensors["token_embd.weight"], "norm.gain": tensors["output_norm.weight"]}
    for index in range(shape.layers):
        ours, theirs = f"layers.{index}", f"blk.{index}"
        state[f"{ours}.attention_norm.gain"] = tensors[f"{theirs}.attn_norm.weight"]
        state[f"{ours}.inner_norm.gain"] = tensors[f"{theirs}.ffn_norm.weight"]
        for name, part, heads in (("query", "attn_q", shape.heads), ("key", "attn_k", shape.kv_heads)):
            rows = halves_apart(tensors[f"{theirs}.{part}.weight"], heads)
            state[f"{ours}.attention.{name}.weight"] = rows.T.contiguous()
        for name, part in (
            ("attention.value", "attn_v"),
            ("attention.output", "attn_output"),
            ("gate", "ffn_gate"),
            ("up", "ffn_up"),
            ("down", "ffn_down"),
        ):
            state[f"{ours}.{name}.weight"] = tensors[f"{theirs}.{part}.weight"].T.contiguous()
    model = Llama(shape)
    # Assigned, not copied, so that the weights are not in memory twice.
    model.load_state_dict(state, assign=True)
    return model.eval().requires_grad_(False)


def halves_apart(weight: Tensor, heads: int) -> Tensor:
    """Reorder rows of a query or key weight [heads x head_width, inputs] from adjacent pairs to pairs half a head apart.

    The inverse of `LlamaModel.permute` in llama.cpp's convert_hf_to_gguf.py.

    >>> halves_apart(torch.arange(4)[:, None], heads=1).flatten()
    tensor([0, 2, 1, 3])
    """
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def exported(model: Llama) -> ModelProto:
    """Return the decoder as an ONNX program (opset 21, IR 10) from `input_ids` to `logits`, dynamic in batch and sequence.

    Raises:
        onnx.checker.ValidationError: the exporter made an invalid program.
    """
    return to_onnx(model, (torch.ones(2, 16, dtype=torch.int64),), {"input_ids": {0: "batch", 1: "sequence"}})
