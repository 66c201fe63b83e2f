"""Programs for TorchInductor that say one precision and run in another, and some that are what they say.

    python benchmarks/fallback_inductor.py NAME FOLDER

compiles one of them, in a process of its own as `fallbacks.py` does it, and writes its package, a batch, the answers of the
program and of its float twin, and what a count of its operators says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor

STATIC, DYNAMIC, FP32, BF16 = (
    f"{recipe}@torch-inductor" for recipe in ("int8-static-minmax-pc", "int8-dynamic-pc", "fp32-fused", "bf16")
)
PACKAGE, ARRAYS, TOLD = "model.pt2", "arrays.npz", "told.json"
FEATURES, CLASSES, CHANNELS, SIDE, SAMPLES = 64, 16, 16, 8, 64
# Activations are near to normal: five deviations cut nothing off.
LARGEST = 5.0
PRODUCTS = ("linear", "matmul", "mm", "bmm", "conv2d", "conv_transpose2d")


@dataclass(frozen=True)
class Program:
    """A program to compile: `build(draft)` returns the function of one input, of `shape` a sample.

    `label` is its claim, `verdict` what the gate is expected to say of it: pass or fail, or refused before the gate.
    """

    build: Callable[[Draft], Callable[[Tensor], Tensor]]
    verdict: Literal["pass", "fail", "refused"]
    label: str = STATIC
    shape: tuple[int, ...] = (FEATURES,)


class Draft:
    """Pairs and weights; with `quantized` false, all of them stay in float, for the twin."""

    def __init__(self, *, quantized: bool) -> None:
        import torch
        import torchao.quantization.pt2e.quantize_pt2e  # noqa: F401 - registers the operators of pairs

        self.quantized = quantized
        self.buffers: dict[str, Tensor] = {}
        self._torch: Any = torch
        self._pairs: Any = torch.ops.quantized_decomposed

    def pair(self, x: Tensor, kind: str = "uint8") -> Tensor:
        """The activation behind its pair."""
        if not self.quantized:
            return x
        low, high = (0, 255) if kind == "uint8" else (-(2**15) + 1, 2**15 - 1)
        zero = 128 if kind == "uint8" else 0
        how = (LARGEST / (high - zero), zero, low, high, getattr(self._torch, kind))
        return self._pairs.dequantize_per_tensor(self._pairs.quantize_per_tensor(x, *how), *how)

    def ranged(self, x: Tensor) -> Tensor:
        """The activation behind a pair whose range is that of the request."""
        if not self.quantized:
            return x
        ends = (0, 255, self._torch.uint8)
        scale, zero = self._pairs.choose_qparams.tensor(x, 0, 255, 1e-5, self._torch.uint8)
        stored = self._pairs.quantize_per_tensor.tensor(x, scale, zero, *ends)
        return self._pairs.dequantize_per_tensor.tensor(stored, scale, zero, *ends)

    def activation(self, x: Tensor, how: str, kind: str = "uint8") -> Tensor:
        """The activation static, dynamic, none, or sine: with a function between the pair and the product."""
        if how == "none":
            return x
        return self.ranged(x) if how == "dynamic" else self.pair(x, kind).sin() if how == "sine" else self.pair(x, kind)

    def weight(self, *shape: int, axis: int = 0, stored: bool = True) -> Callable[[], Tensor]:
        """A weight with a scale for each index of `axis`, kept as INT8 if it is `stored`; its twin has the same values."""
        torch = self._torch
        full = torch.randn(shape, generator=torch.Generator().manual_seed(0)) / np.sqrt(np.prod(shape[1:]))
        others = [one for one in range(len(shape)) if one != axis]
        scales = full.abs().amax(others) / 127
        spread = scales.reshape([-1 if one == axis else 1 for one in range(len(shape))])
        integers = (full / spread).round().clamp(-127, 127).to(torch.int8)
        if not (self.quantized and stored):
            self.buffers["weight"] = integers * spread
            return lambda: self.buffers["weight"]
        self.buffers |= {"weight": integers, "scales": scales, "zeros": torch.zeros(len(scales), dtype=torch.int64)}
        names = ("weight", "scales", "zeros")
        return lambda: self._pairs.dequantize_per_channel(
            *(self.buffers[name] for name in names), axis, -128, 127, torch.int8
        )

    @property
    def functions(self) -> Any:
        return self._torch.nn.functional


def linear(
    draft: Draft, *, activation: str = "static", stored: bool = True, axis: int = 0, kind: str = "uint8"
) -> Callable[[Tensor], Tensor]:
    """A linear layer."""
    weight = draft.weight(CLASSES, FEATURES, axis=axis, stored=stored)
    return lambda x: draft.functions.linear(draft.activation(x, activation, kind), weight())


def convolution(draft: Draft, *, activation: str = "static", axis: int = 0) -> Callable[[Tensor], Tensor]:
    """A convolution with a kernel of three by three.

    Its transpose is no row here: between pairs, which no quantizer sets there, torch 2.13 compiles it to a convolution, and
    the answers have another shape.
    """
    weight = draft.weight(CLASSES, CHANNELS, 3, 3, axis=axis)
    return lambda x: draft.functions.conv2d(draft.activation(x, activation), weight(), padding=1)


def attention(draft: Draft) -> Callable[[Tensor], Tensor]:
    """A product of two activations, both behind pairs."""
    return lambda x: draft.pair(x) @ draft.pair(x.transpose(1, 2).contiguous())


def in_float(draft: Draft) -> Callable[[Tensor], Tensor]:
    return linear(draft, activation="none", stored=False)


def in_bfloat16(draft: Draft) -> Callable[[Tensor], Tensor]:
    weight = draft.weight(CLASSES, FEATURES, stored=False)
    if not draft.quantized:
        return lambda x: draft.functions.linear(x, weight())
    return lambda x: draft.functions.linear(x.bfloat16(), weight().bfloat16()).float()


IMAGE = (CHANNELS, SIDE, SIDE)
PROGRAMS: dict[str, Program] = {
    "Linear, scales for each output": Program(linear, "pass"),
    "Linear, ranges at run time": Program(partial(linear, activation="dynamic"), "pass", DYNAMIC),
    "Conv, scales for each output channel": Program(convolution, "pass", shape=IMAGE),
    "a program in bfloat16, asked for": Program(in_bfloat16, "pass", BF16),
    "Sin between the pair and Linear": Program(partial(linear, activation="sine"), "fail"),
    "Linear, activations only": Program(partial(linear, stored=False), "fail"),
    "Linear, weights only": Program(partial(linear, activation="none"), "fail"),
    # In integers, with the scales taken for those of outputs: no fallback, and answers that every gate on accuracy refuses.
    "Linear, scales along K": Program(partial(linear, axis=1), "pass"),
    "Linear, INT16 activations": Program(partial(linear, kind="int16"), "refused"),
    "Conv, weights only": Program(partial(convolution, activation="none"), "fail", shape=IMAGE),
    "Conv, ranges at run time": Program(partial(convolution, activation="dynamic"), "fail", DYNAMIC, IMAGE),
    "Conv, scales along K": Program(partial(convolution, axis=1), "pass", shape=IMAGE),
    "product of two activations": Program(attention, "fail", shape=(SIDE, CHANNELS)),
    "a float program": Program(in_float, "fail"),
    "a float program, bfloat16 asked for": Program(in_float, "fail", BF16),
    "a program in bfloat16, not asked for": Program(in_bfloat16, "refused", FP32),
}


def count_operators(program: Any) -> float:
    """The share of products that a count of the program's operators takes for quantized, 0 to 1.

    Those with a dequantization, or a cast to 16 bits, anywhere between them and the product before.
    """
    products = [node for node in program.graph.nodes if _kind(node) in PRODUCTS]

    def is_marked(node: Any) -> bool:
        sources = [one for one in node.all_input_nodes if _kind(one) not in PRODUCTS]
        return any(_kind(one).startswith(("dequantize", "bfloat16", "to")) or is_marked(one) for one in sources)

    return sum(map(is_marked, products)) / len(products)


def _kind(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def main(name: str, folder: Path) -> None:
    import torch

    from tasks.engines.inductor.compile_process import write_package

    class Module(torch.nn.Module):
        def __init__(self, draft: Draft, build: Callable[[Draft], Callable[[Tensor], Tensor]]) -> None:
            super().__init__()
            self._function = build(draft)
            for key, value in draft.buffers.items():
                self.register_buffer(key, value)
            draft.buffers = self._buffers  # type: ignore[assignment]  # what the export traces

        def forward(self, x: Tensor) -> Tensor:
            return self._function(x)

    planted = PROGRAMS[name]
    x = torch.randn(SAMPLES, *planted.shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        module, twin = (Module(Draft(quantized=quantized), planted.build).eval() for quantized in (True, False))
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        told = {"operators_counted": count_operators(program)}
        write_package(program, {"inputs": ["x"], "outputs": ["y"], "package": str(folder / PACKAGE)})
        np.savez(folder / ARRAYS, x=x.numpy(), float=twin(x).numpy(), program=module(x).numpy())
    (folder / TOLD).write_text(json.dumps(told), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
