"""Compile a program with one sound INT8 product and planted fallbacks: `python tests/support/inductor_faults.py PACKAGE`.

The products, by their multiply-accumulates for each sample: a linear layer with pairs on both sides (64 x 48), a product
without pairs behind it (48 x 40), a linear layer with pairs on its activations alone (40 x 32), and one in bfloat16 (32 x 16).
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401 - registers the operators of pairs

from tasks.engines.inductor.compile_process import write_package

pairs: Any = torch.ops.quantized_decomposed


def in_pairs(x: torch.Tensor) -> torch.Tensor:
    return pairs.dequantize_per_tensor(
        pairs.quantize_per_tensor(x, 0.05, 128, 0, 255, torch.uint8), 0.05, 128, 0, 255, torch.uint8
    )


class Planted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("stored", torch.randint(-127, 128, (48, 64), dtype=torch.int8))
        self.register_buffer("scales", torch.full((48,), 0.01))
        self.register_buffer("zeros", torch.zeros(48, dtype=torch.int64))
        self.plain = torch.nn.Parameter(torch.randn(48, 40) / 7)
        self.alone, self.last = torch.nn.Linear(40, 32), torch.nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = pairs.dequantize_per_channel(self.stored, self.scales, self.zeros, 0, -128, 127, torch.int8)
        sound = torch.nn.functional.linear(in_pairs(x), weight)
        between = torch.relu(sound) @ self.plain
        alone = self.alone(in_pairs(between))
        kind = torch.bfloat16
        weight, bias = self.last.weight.to(kind), self.last.bias.to(kind)
        return torch.nn.functional.linear(alone.to(kind), weight, bias).float()


if __name__ == "__main__":
    torch.manual_seed(0)
    with torch.no_grad():
        program = torch.export.export(
            Planted().eval(), (torch.randn(4, 64),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
        )
        write_package(program, {"inputs": ["x"], "outputs": ["y"], "package": sys.argv[1]})
