"""Models built on the spot from a seed: their speed is that of trained ones of the same shape, their answers mean nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpu.modules import blank_module

if TYPE_CHECKING:
    from torch import nn

SEED = 0
# Standard deviation of weights, as BERT and Llama initialize theirs.
DEVIATION = 0.02
VOCABULARY = 8192


@dataclass(frozen=True)
class Seeded:
    """A model by its kind and shape, and the shape of its requests.

    `tokens` is the length of a sequence, or the height and width of an image. `shape` has the fields of the kind's own shape.
    """

    name: str
    kind: str
    tokens: int
    about: str
    shape: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> nn.Module:
        """Return the float32 module on the processor."""
        import torch

        # On the processor whatever the default device: another device draws other numbers from the seed.
        torch.manual_seed(SEED)
        with torch.device("cpu"):
            module: nn.Module = blank_module(self.kind, self.shape, 10 if self.kind == "efficientnet" else 2)
        for parameter in module.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=DEVIATION)
        return module.eval().requires_grad_(False)

    def request(self, batch_size: int) -> dict[str, NDArray[Any]]:
        """Return a request of that many samples, by input name."""
        draw = np.random.default_rng(SEED)
        if self.kind == "efficientnet":
            side = self.tokens
            return {"image": draw.standard_normal((batch_size, 3, side, side)).astype(np.float32)}
        ids = draw.integers(0, self.shape["vocabulary"], (batch_size, self.tokens))
        return {"input_ids": ids} | ({"attention_mask": np.ones_like(ids)} if self.kind == "bert" else {})

    def product_weights(self) -> int:
        """Return how many weights a request multiplies with: all matrices but those that are looked up."""
        module = self.build()
        looked_up = {"encoder.tokens.weight", "encoder.positions"}
        return sum(one.numel() for name, one in module.named_parameters() if one.dim() > 1 and name not in looked_up)

    def described(self) -> dict[str, Any]:
        """Return the fields for the file of results."""
        return asdict(self) | {"product_weights": self.product_weights()}


_LLAMA = {"positions": 512, "norm_epsilon": 1e-5, "rope_theta": 5e5, "vocabulary": VOCABULARY}
MODELS = (
    Seeded("encoder", "bert", 128, "an encoder of MiniLM-L6's shape, 128 tokens", {"vocabulary": VOCABULARY}),
    Seeded(
        "decoder",
        "llama",
        1,
        "two layers of Llama-3-8B's shape and a small vocabulary, one token of each sequence, no cache",
        _LLAMA | {"width": 4096, "heads": 32, "kv_heads": 8, "head_width": 128, "inner_width": 14336, "layers": 2},
    ),
    Seeded(
        "encoder-wide",
        "bert",
        128,
        "six layers of BERT-large's shape, 128 tokens",
        {"vocabulary": VOCABULARY, "width": 1024, "heads": 16, "inner_width": 4096},
    ),
    Seeded("cnn", "efficientnet", 224, "EfficientNet-Lite0, 224 x 224 pixels"),
)
_SMALL: Mapping[str, Mapping[str, Any]] = {
    "bert": {"vocabulary": 97, "width": 64, "heads": 4, "inner_width": 128, "layers": 1},
    "llama": _LLAMA
    | {"vocabulary": 128, "width": 128, "heads": 4, "kv_heads": 2, "head_width": 32, "inner_width": 256, "layers": 1},
    "efficientnet": {},
}


def small(model: Seeded) -> Seeded:
    """Return the model at the size of a rehearsal on a processor."""
    tokens = {"bert": 12, "llama": 1, "efficientnet": 32}[model.kind]
    return replace(model, tokens=tokens, shape=_SMALL[model.kind], about=f"{model.about}, made small for a rehearsal")
