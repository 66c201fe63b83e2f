"""Small models that torch exports to ONNX at a given opset, as the exporters of users write them.

Opsets below 18 come from the exporter on TorchScript, the only one that writes them; newer ones from the one on `torch.export`.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import torch

TOKENS, WIDTH, HEADS, LENGTH, LABELS = 200, 64, 4, 24, 3
DYNAMO_OPSET = 18  # the least that the exporter on torch.export writes


class Attention(torch.nn.Module):
    """Self-attention of plain operators, as transformers of the `bert` kind write it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5
        mixed = torch.matmul(torch.softmax(scores, dim=-1), value).permute(0, 2, 1, 3)
        return self.out(mixed.reshape(x.shape[0], x.shape[1], WIDTH))


class Encoder(torch.nn.Module):
    """A text classifier: embeddings, two transformer layers with a norm behind each half, and a head on the first token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = torch.nn.Embedding(TOKENS, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.start = torch.nn.LayerNorm(WIDTH)
        self.attention = torch.nn.ModuleList(Attention() for _ in range(2))
        self.up = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.down = torch.nn.ModuleList(torch.nn.Linear(2 * WIDTH, WIDTH) for _ in range(2))
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(4))
        self.head = torch.nn.Linear(WIDTH, LABELS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.start(self.tokens(input_ids) + self.positions(places))
        for index, attention in enumerate(self.attention):
            x = self.norms[2 * index](x + attention(x))
            hidden = torch.nn.functional.gelu(self.up[index](x))
            x = self.norms[2 * index + 1](x + self.down[index](hidden))
        return self.head(x[:, 0])


def transformer(path: Path, opset: int) -> Path:
    """Write a transformer from `input_ids` int64 `[batch, length]`, below `TOKENS`, to `logits` `[batch, LABELS]`.

    Both axes are dynamic, up to `LENGTH` tokens. Below opset 17 its five layer norms are nine plain operators each.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Encoder().eval()
    return export(model, torch.ones(2, 8, dtype=torch.int64), path, opset, "input_ids", ("batch", "length"))


def export(
    model: torch.nn.Module, example: torch.Tensor, path: Path, opset: int, name: str, axes: tuple[str, ...]
) -> Path:
    """Write a model of one input, whose first axes are dynamic under these names, and of one output, `logits`."""
    named = {name: dict(enumerate(axes))}
    with quiet_exporter():
        if opset < DYNAMO_OPSET:
            outputs = {"logits": {0: axes[0]}}
            torch.onnx.export(
                model,
                (example,),
                path,
                dynamo=False,
                opset_version=opset,
                input_names=[name],
                output_names=["logits"],
                dynamic_axes=named | outputs,
            )
        else:
            program = torch.onnx.export(
                model,
                (example,),
                dynamo=True,
                opset_version=opset,
                input_names=[name],
                output_names=["logits"],
                dynamic_shapes=(named[name],),
                verbose=False,
            )
            assert program is not None  # None is what the older exporter returns
            onnx.save(program.model_proto, path)
    onnx.checker.check_model(path)
    return path


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporters' advice: the one on TorchScript is deprecated, and warns of each axis that it traces."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    log.setLevel(level)
