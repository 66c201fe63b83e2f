"""Small models that torch exports to ONNX at a given opset, as the exporters of users write them.

Opsets below 18 come from the exporter on TorchScript, the only one that writes them; newer ones from the one on `torch.export`.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import torch

from tasks.evidence.torch_export import Original, convert
from validators.samples.datasets import Samples, TensorSpec
from validators.untrusted.torch_program import check_program

TOKENS, WIDTH, HEADS, LENGTH, LABELS = 200, 64, 4, 24, 3
SIDE = 16  # of the images, in pixels
DYNAMO_OPSET = 18  # the least that the exporter on torch.export writes


class Attention(torch.nn.Module):
    """Self-attention of plain operators, as transformers of the `bert` kind write it."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        query, key, value = (self._heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = torch.matmul(query, key.transpose(-1, -2)) / (WIDTH // HEADS) ** 0.5
        scores = scores if mask is None else scores + mask
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

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        mask = None
        if attention_mask is not None:
            mask = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -10000.0
        places = torch.arange(input_ids.shape[1]).unsqueeze(0)
        x = self.start(self.tokens(input_ids) + self.positions(places))
        for index, attention in enumerate(self.attention):
            x = self.norms[2 * index](x + attention(x, mask))
            hidden = torch.nn.functional.gelu(self.up[index](x))
            x = self.norms[2 * index + 1](x + self.down[index](hidden))
        return self.head(x[:, 0])


class Convolutions(torch.nn.Module):
    """An image classifier: a stem, a depthwise block with a shortcut, and a head on the mean of the positions."""

    def __init__(self) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.stem = torch.nn.Sequential(
            conv(3, 16, 3, padding=1, bias=False), norm(16), torch.nn.ReLU6(), torch.nn.MaxPool2d(2)
        )
        self.block = torch.nn.Sequential(
            conv(16, 16, 3, padding=1, groups=16, bias=False), norm(16), torch.nn.Hardswish(), conv(16, WIDTH, 1)
        )
        self.shortcut, self.head = conv(16, WIDTH, 1), torch.nn.Linear(WIDTH, LABELS)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.stem(pixels)
        x = torch.relu(self.block(x) + self.shortcut(x))
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.head(torch.flatten(torch.nn.functional.adaptive_avg_pool2d(x, 1), 1))


class Recurrence(torch.nn.Module):
    """A text classifier: embeddings, a bidirectional LSTM, and a head on the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(TOKENS, WIDTH)
        self.states = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.head = torch.nn.Linear(2 * WIDTH, LABELS)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.states(self.tokens(input_ids))[0].mean(1))


def cnn(path: Path, opset: int) -> Path:
    """Write a CNN from `pixels` float32 `[batch, 3, 16, 16]` to `logits` `[batch, LABELS]`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Convolutions().eval()
    return export(model, {"pixels": torch.zeros(2, 3, SIDE, SIDE)}, path, opset, ("batch",))


def lstm(path: Path, opset: int) -> Path:
    """Write an LSTM from `input_ids` int64 `[batch, LENGTH]`, below `TOKENS`, to `logits` `[batch, LABELS]`."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Recurrence().eval()
    return export(model, {"input_ids": torch.ones(2, LENGTH, dtype=torch.int64)}, path, opset, ("batch",))


def transformer(path: Path, opset: int, *, masked: bool = False) -> Path:
    """Write a transformer from `input_ids` int64 `[batch, length]`, below `TOKENS`, to `logits` `[batch, LABELS]`.

    Both axes are dynamic, up to `LENGTH` tokens. Below opset 17 its five layer norms are nine plain operators each. `masked`
    adds the input `attention_mask` int64 `[batch, length]`.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Encoder().eval()
    names = ["input_ids", *(["attention_mask"] if masked else [])]
    examples = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in names)
    return export(model, dict(zip(names, examples, strict=True)), path, opset, ("batch", "length"))


def export(
    model: torch.nn.Module, examples: dict[str, torch.Tensor], path: Path, opset: int, axes: tuple[str, ...]
) -> Path:
    """Write a model whose inputs all have these first axes, which are dynamic, and of one output, `logits`."""
    dynamic = {name: dict(enumerate(axes)) for name in examples}
    with quiet_exporter():
        if opset < DYNAMO_OPSET:
            torch.onnx.export(
                model,
                tuple(examples.values()),
                path,
                dynamo=False,
                opset_version=opset,
                input_names=list(examples),
                output_names=["logits"],
                dynamic_axes=dynamic | {"logits": {0: axes[0]}},
            )
        else:
            program = torch.onnx.export(
                model,
                tuple(examples.values()),
                dynamo=True,
                opset_version=opset,
                input_names=list(examples),
                output_names=["logits"],
                dynamic_shapes=tuple(dynamic.values()),
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


def export_program(
    program: Path, onnx_path: Path, samples: Callable[[tuple[TensorSpec, ...]], Samples]
) -> float | None:
    """Check a `.pt2` program as a run does, and export it; return the largest absolute difference of the outputs."""
    check_program(program)
    return convert(Original("program", program), onnx_path, samples)
