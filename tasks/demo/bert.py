"""BERT encoder in the form that ONNX Runtime recognizes: attention spelled out, weights as plain right operands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# The original BERT adds this to the scores of padding. It is finite in fp16, where the smallest float32 becomes -inf.
MASKED_SCORE = -10000.0


@dataclass(frozen=True)
class BertShape:
    """Sizes of a BERT encoder; the defaults are those of MiniLM-L6."""

    vocabulary: int = 30522
    positions: int = 512
    width: int = 384
    heads: int = 12
    inner_width: int = 1536
    layers: int = 6
    layer_norm_epsilon: float = 1e-12


class Dense(nn.Module):
    """`x @ weight + bias` with the weight as [inputs, outputs], float32.

    `nn.Linear` keeps [outputs, inputs] and would leave a Transpose between the initializer and the MatMul, where
    quantizers look for the initializer itself.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(x, self.weight) + self.bias


class BertAttention(nn.Module):
    """Multi-head self-attention with its output projection: [batch, sequence, width] to the same."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.heads, self.head_width = shape.heads, shape.width // shape.heads
        self.query = Dense(shape.width, shape.width)
        self.key = Dense(shape.width, shape.width)
        self.value = Dense(shape.width, shape.width)
        self.output = Dense(shape.width, shape.width)

    def forward(self, x: Tensor, score_bias: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.view(y.shape[0], y.shape[1], self.heads, self.head_width)

        query = split(self.query(x)).permute(0, 2, 1, 3)
        key = split(self.key(x)).permute(0, 2, 3, 1)
        value = split(self.value(x)).permute(0, 2, 1, 3)
        scores = torch.matmul(query, key) / self.head_width**0.5 + score_bias
        mixed = torch.matmul(torch.softmax(scores, dim=-1), value).permute(0, 2, 1, 3)
        projected: Tensor = self.output(mixed.reshape(mixed.shape[0], mixed.shape[1], self.heads * self.head_width))
        return projected


class BertLayer(nn.Module):
    """Attention and a GELU feed-forward, each followed by residual and layer norm (post-norm)."""

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.attention = BertAttention(shape)
        self.attention_norm = nn.LayerNorm(shape.width, eps=shape.layer_norm_epsilon)
        self.inner = Dense(shape.width, shape.inner_width)
        self.outer = Dense(shape.inner_width, shape.width)
        self.norm = nn.LayerNorm(shape.width, eps=shape.layer_norm_epsilon)

    def forward(self, x: Tensor, score_bias: Tensor) -> Tensor:
        x = self.attention_norm(self.attention(x, score_bias) + x)
        transformed: Tensor = self.norm(self.outer(nn.functional.gelu(self.inner(x))) + x)
        return transformed


class BertEncoder(nn.Module):
    """Encoder of token ids to one vector per text: BERT, then the mean over the tokens that the mask marks.

    `forward(input_ids, attention_mask)` takes int64 [batch, sequence], mask 1 for a token and 0 for padding, and
    returns float32 [batch, width].
    """

    def __init__(self, shape: BertShape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Parameter(torch.zeros(shape.positions, shape.width))
        self.norm = nn.LayerNorm(shape.width, eps=shape.layer_norm_epsilon)
        self.layers = nn.ModuleList(BertLayer(shape) for _ in range(shape.layers))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        row = attention_mask.unsqueeze(1)
        score_bias = (1.0 - row.unsqueeze(2).to(torch.float32)) * MASKED_SCORE
        x = self.norm(self.tokens(input_ids) + self.positions[: input_ids.shape[1]])
        for layer in self.layers:
            x = layer(x, score_bias)
        # This second reader of `row` keeps the exporter from merging the two Unsqueeze nodes above: the attention fusion
        # needs both.
        weight = row.transpose(1, 2).to(torch.float32)
        mean: Tensor = (x * weight).sum(dim=1) / weight.sum(dim=1)
        return mean


class TextClassifier(nn.Module):
    """The encoder with a linear head: (input_ids, attention_mask) to logits, float32 [batch, classes]."""

    def __init__(self, encoder: BertEncoder, head: Dense) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits: Tensor = self.head(self.encoder(input_ids, attention_mask))
        return logits


# Names of a layer's parts in the usual checkpoints of BERT.
LAYER_PARTS = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "norm": "output.LayerNorm",
}


def encoder_from(tensors: Mapping[str, Tensor], shape: BertShape) -> BertEncoder:
    """Return the encoder with the weights of a checkpoint that uses the usual BERT names (its pooler is not used).

    Raises:
        RuntimeError: a weight has another shape than `shape` says.
        KeyError: a weight is missing.
    """
    encoder = BertEncoder(shape)
    names = {"tokens": "embeddings.word_embeddings", "norm": "embeddings.LayerNorm"}
    for index in range(shape.layers):
        names |= {f"layers.{index}.{ours}": f"encoder.layer.{index}.{theirs}" for ours, theirs in LAYER_PARTS.items()}
    # One text per sample: every token has type 0, so the type embedding is a constant added to the positions.
    types = tensors["embeddings.token_type_embeddings.weight"]
    state = {"positions": tensors["embeddings.position_embeddings.weight"] + types[0]}
    for ours, theirs in names.items():
        module = encoder.get_submodule(ours)
        for name, _ in module.named_parameters():
            tensor = tensors[f"{theirs}.{name}"]
            is_transposed = isinstance(module, Dense) and name == "weight"
            state[f"{ours}.{name}"] = tensor.T.contiguous() if is_transposed else tensor
    encoder.load_state_dict(state)
    return encoder.eval()
