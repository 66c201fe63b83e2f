"""Primitives that oneDNN executed, from the lines that it prints with its verbose mode (oneDNN documentation, "Verbose Mode").

A line of version 3.12, which torch 2.13 brings:

    onednn_verbose,v1,primitive,exec,cpu,matmul,brg_matmul:avx512_core_vnni,undef,src:u8:... wei:s8:... dst:f32:...,
    attr-scratchpad:user attr-post-ops:eltwise_relu,,4x64:64x10,0.0048
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from tasks.runtimes.kernels import Kernel

_HEAD = "onednn_verbose,v1,primitive,exec,cpu,"
_INTEGERS = frozenset({"u8", "s8", "s4", "u4"})
_HALVES = frozenset({"bf16", "f16"})
_TYPED = re.compile(r"\b(src|wei)_(\w+):(?=:)")
_SIZES = re.compile(r"([a-z]+)(\d+)")


@dataclass(frozen=True)
class Primitive:
    """One executed product: its kernel, its multiply-accumulates and its microseconds."""

    kernel: Kernel
    macs: int
    microseconds: float


def products_in(lines: Iterable[str]) -> list[Primitive]:
    """Return the executed products in the order of their lines.

    >>> line = _HEAD + "matmul,brg:avx512_core_vnni,undef,src:u8::ab wei:s8::ba dst:f32::ab,,,4x64:64x10,0.5"
    >>> [(one.kernel.name, one.macs, one.microseconds) for one in products_in([line])]
    [('matmul brg:avx512_core_vnni u8 x s8', 2560, 500.0)]

    PyTorch calls its function for products of integers without a primitive, for `_int_mm`; there types stand in names:

    >>> line = _HEAD + "gemm_api,,undef,src_u8::blocked:ab:f0 wei_s8::blocked:ba:f0 dst_s32::blocked:ab:f0,,,4x64:64x10,0.5"
    >>> [(one.kernel.name, one.macs) for one in products_in([line])]
    [('gemm_api u8 x s8', 2560)]
    """
    found = []
    for line in lines:
        if not line.startswith(_HEAD):
            continue
        kind, implementation, _, tensors, rest = line.removeprefix(_HEAD).strip().split(",", 4)
        attributes, problem, milliseconds = rest.rsplit(",", 2)
        count = _MACS.get(kind)
        if count is not None:
            kernel = _kernel(f"{kind} {implementation}".strip(), _TYPED.sub(r"\1:\2", tensors), attributes)
            found.append(Primitive(kernel, count(problem), float(milliseconds) * 1e3))
    return found


def _kernel(name: str, tensors: str, attributes: str) -> Kernel:
    """Return a kernel by the types of its operands. A float32 product may be asked to use another type within."""
    source, weights = (re.search(rf"\b{side}(?:_\w+)?:(\w+)", tensors) for side in ("src", "wei"))
    types = [found.group(1) if found else "unknown" for found in (source, weights)]
    math_mode = re.search(r"attr-fpmath:(bf16|f16|any)", attributes)
    within = f" in {math_mode.group(1)}" if math_mode else ""
    return Kernel(
        f"{name} {types[0]} x {types[1]}{within}",
        is_low_precision=_INTEGERS.issuperset(types),
        is_half=_HALVES.issuperset(types) or bool(math_mode),
    )


def _matmul(problem: str) -> int:
    """Count a product of matrices such as `12x24x16:12x16x24`; batches are broadcast."""
    left, right = ([int(size) for size in side.split("x")] for side in problem.split(":")[:2])
    batches = math.prod(max(pair) for pair in zip(left[:-2], right[:-2], strict=True))
    return batches * left[-2] * left[-1] * right[-1]


def _inner_product(problem: str) -> int:
    """Count `mb72ic64oc64`, with axes of space where a tensor is flattened on the way."""
    sizes = _sizes(problem)
    return sizes["mb"] * sizes["ic"] * sizes["oc"] * _product(sizes, ("id", "ih", "iw"))


def _convolution(problem: str, outer: str = "o", inner: str = "i") -> int:
    """Count `g2mb4_ic4oc16_ih16oh16kh3..._iw16ow16kw3...`: each output times the weights behind it.

    Of a transposed convolution, with `outer` and `inner` swapped: each input times the weights that it meets.
    """
    sizes = _sizes(problem)
    weights = sizes[f"{inner}c"] // sizes.get("g", 1) * _product(sizes, ("kd", "kh", "kw"))
    return sizes["mb"] * sizes[f"{outer}c"] * _product(sizes, [outer + axis for axis in "dhw"]) * weights


def _sizes(problem: str) -> dict[str, int]:
    return {name: int(size) for name, size in _SIZES.findall(problem)}


def _product(sizes: dict[str, int], names: Iterable[str]) -> int:
    return math.prod(sizes.get(name, 1) for name in names)


_MACS: dict[str, Callable[[str], int]] = {
    "matmul": _matmul,
    "gemm_api": _matmul,
    "inner_product": _inner_product,
    "convolution": _convolution,
    "deconvolution": partial(_convolution, outer="i", inner="o"),
}
