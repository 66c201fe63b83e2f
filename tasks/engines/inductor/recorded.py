"""Kernels of a package that records them: calls of ATen's operators, as torch's profiler saw them, with a GPU's kernels below.

Inductor's C++ code records each call of an operator under the name of its C function, such as `aoti_torch_cuda__int_mm_out`
(`cpp.enable_kernel_profile`). The measuring process imports this file too, so it imports only the standard library and torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

# The name of an operator in the name of its C function, or of the dispatcher's record.
_NAME = re.compile(r"^(?:aoti_torch_(?:cpu|cuda)_|aten::)(?P<operator>\w+?)(?:_out|_cpu_tensor|_v\d)*$")
# A generated kernel of a product, with the operators that are fused into it: `kernels_.triton_tem_fused__int_mm_mul_3`.
_GENERATED = re.compile(r"^(?:kernels_\.)?triton_tem_fused_(?P<operators>\w+)$")
_MATRICES, _CONVOLUTION, _ATTENTION = "matrix product", "convolution", "attention"
_LOW = {"_int_mm": "INT8", "_scaled_mm": "FP8", "_weight_int4pack_mm": "INT4 weights"}
# Operators of one kind compute one product; Inductor replaces one by another.
_KINDS = (
    (re.compile(r"_int_mm"), "_int_mm"),
    (re.compile(r"_scaled_mm"), "_scaled_mm"),
    (re.compile(r"_weight_int4pack_mm.*"), "_weight_int4pack_mm"),
    (re.compile(r"mm|addmm|bmm|baddbmm|mv|matmul|linear|\w*linear_pointwise\w*"), _MATRICES),
    (re.compile(r"convolution|_convolution|\w*convolution_pointwise\w*|cudnn_convolution\w*"), _CONVOLUTION),
    (re.compile(r"_?scaled_dot_product\w*attention\w*"), _ATTENTION),
)
_GENERATED_KINDS = (
    (re.compile(r"_int_mm(?:_|$)"), "_int_mm"),
    (re.compile(r"_scaled_mm(?:_|$)"), "_scaled_mm"),
    (re.compile(r"(?:^|_)(?:mm|addmm|bmm|baddbmm)(?:_|$)"), _MATRICES),
    (re.compile(r"(?:^|_)convolution(?:_|$)"), _CONVOLUTION),
)
_HALVES = {"bfloat16", "float16"}


@dataclass(frozen=True)
class Call:
    """A product that ran: its kind, the kinds of products within it, microseconds, and the GPU's kernels."""

    kind: str
    within: tuple[str, ...]
    microseconds: float
    kernels: tuple[str, ...]


@dataclass(frozen=True)
class ProgramProduct:
    """A product of the program: its name, multiply-accumulates, operator, and the dtype of its first operand."""

    name: str
    macs: int
    operator: str
    dtype: str

    @property
    def kind(self) -> str:
        """The kind of its operator; empty if it has none."""
        return kind_of(f"aten::{self.operator}")


def kind_of(name: str) -> str:
    """Return the kind of product that a recorded name stands for; empty for anything else.

    >>> [kind_of(name) for name in ("aoti_torch_cuda__int_mm_out", "aoti_torch_cpu_addmm_out", "aten::mm", "aten::mul")]
    ['_int_mm', 'matrix product', 'matrix product', '']
    >>> [kind_of(f"kernels_.triton_{name}") for name in ("tem_fused__int_mm_mul_3", "tem_fused_add_bmm_1", "poi_fused_mul_2")]
    ['_int_mm', 'matrix product', '']
    """
    if generated := _GENERATED.match(name):
        return next((kind for pattern, kind in _GENERATED_KINDS if pattern.search(generated.group("operators"))), "")
    found = _NAME.match(name)
    operator = found.group("operator") if found else ""
    return next((kind for pattern, kind in _KINDS if pattern.fullmatch(operator)), "")


def records_of(request: Callable[[], Any]) -> list[dict[str, Any]]:
    """Return the records of a request: its products in order.

    The times are those of a GPU's kernels where there is one, else those of the calls.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    on_gpu = torch.cuda.is_available()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as found:
        request()
        if on_gpu:
            torch.cuda.synchronize()
    records = []
    for event in sorted(found.events(), key=lambda event: event.time_range.start):
        # The GPU's own events stand below the calls that launched them.
        if event.device_type.name != "CPU":
            continue
        if not kind_of(event.name) or any(kind_of(parent.name) for parent in _parents(event)):
            continue
        below = [event, *_descendants(event)]
        kernels = [(kernel.name, kernel.duration) for one in below for kernel in one.kernels]
        within = [kind_of(one.name) for one in below[1:]]
        records.append(
            {
                "kind": kind_of(event.name),
                "within": sorted({kind for kind in within if kind}),
                "microseconds": sum(time for _, time in kernels) if kernels else event.cpu_time_total,
                "kernels": [short for name, _ in kernels if (short := kernel_name(name))],
            }
        )
    return records


def kernel_name(name: str) -> str:
    """Return the name of a GPU's kernel without its types and arguments; empty for a copy or fill of memory.

    >>> [kernel_name(name) for name in ("void at::native::mul<int, 8>(int*)", "nvjet_sm90_tst_64x8", "Memset (Device)")]
    ['at::native::mul', 'nvjet_sm90_tst_64x8', '']
    >>> kernel_name("std::enable_if<true, void>::type internal::gemvx::kernel<int, float>(int)")
    'internal::gemvx::kernel'
    >>> kernel_name("void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x64>(Params)")
    'cutlass_80_tensorop_i16832gemm_s8_128x64'
    """
    # CUTLASS has one kernel, named by its type.
    if found := re.match(r"void cutlass::Kernel2?<(\w+)", name):
        return found.group(1)
    if name.startswith(("Memset", "Memcpy")):
        return ""
    while (plain := re.sub(r"<[^<>]*>|\([^()]*\)", "", name)) != name:
        name = plain
    return name.split()[-1] if name.split() else ""


def _parents(event: Any) -> Iterable[Any]:
    while event.cpu_parent is not None:
        event = event.cpu_parent
        yield event


def _descendants(event: Any) -> Iterable[Any]:
    for child in event.cpu_children:
        yield child
        yield from _descendants(child)


def matched(products: Sequence[ProgramProduct], calls: Sequence[Call]) -> list[tuple[ProgramProduct, Call | None]]:
    """Return each product of a program with the call that computed it: the next one of its kind, None if none is left.

    Attention without a fused kernel runs as two products of matrices.

    >>> names = ("mm", "_int_mm", "mm")
    >>> products = [ProgramProduct(f"{index}", 8, name, "int8") for index, name in enumerate(names)]
    >>> calls = [Call("matrix product", (), 1.0, ()), Call("_int_mm", (), 1.0, ())]
    >>> [call.kind if call else None for _, call in matched(products, calls)]
    ['matrix product', '_int_mm', None]
    """
    left = list(calls)
    is_fused = any(call.kind == _ATTENTION for call in calls)

    def take(kind: str) -> Call | None:
        call = next((one for one in left if one.kind == kind), None)
        if call is not None:
            left.remove(call)
        return call

    found = []
    for product in products:
        if product.kind == _ATTENTION and not is_fused:
            pair = [one for one in (take(_MATRICES), take(_MATRICES)) if one]
            kernels = tuple(name for one in pair for name in one.kernels)
            both = Call(_ATTENTION, (_MATRICES,), sum(one.microseconds for one in pair), kernels)
            found.append((product, both if pair else None))
        else:
            found.append((product, take(product.kind)))
    return found


def named(product: ProgramProduct, call: Call) -> tuple[str, bool, bool]:
    """Return the name of the kernel that computed a product, and whether it multiplies in low precision, or in 16 bits.

    A call of a low-precision operator that multiplied floats within it did so in their precision.

    >>> named(ProgramProduct("a", 8, "_scaled_mm", "float8_e4m3fn"), Call("_scaled_mm", ("matrix product",), 1.0, ()))
    ('_scaled_mm by a matrix product in float', False, False)
    """
    kernels = f" by {', '.join(dict.fromkeys(call.kernels))}" if call.kernels else ""
    if call.kind == _ATTENTION and _MATRICES in call.within:
        # Of a type that its decomposition chooses.
        return f"attention by {_MATRICES}s{kernels}", False, False
    if call.kind in _LOW:
        if others := [kind for kind in call.within if kind != call.kind]:
            return f"{call.kind} by a {others[0]} in float", False, False
        return f"{call.kind} in {_LOW[call.kind]}{kernels}", True, False
    return f"{product.operator} in {product.dtype}{kernels}", False, product.dtype in _HALVES
