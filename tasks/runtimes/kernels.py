"""Kernels as ONNX Runtime's profile names them, and whether they compute in low precision."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validators.targets import facts_of_provider

# Requests before the ones that count, and all requests under a profiler. Seven suffice for a share; a large model takes seconds
# for each.
WARM_UP = 3
PROFILED = WARM_UP + 7
# Rounds in which models that are compared take turns, where the shortest time counts.
ROUNDS = 2
# Their inputs are in 16 bits, their outputs need not be.
_CONVERSIONS = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})


@dataclass(frozen=True)
class Kernel:
    """Kernel that computed a node.

    `is_low_precision`: it multiplies 8-bit operands, or weights of 8 or 4 bits. `is_half`: it computes in 16-bit floats.
    """

    name: str
    is_low_precision: bool
    is_half: bool = False


@dataclass(frozen=True)
class Costs:
    """Costs of one model: of its nodes by name, and of a whole request, in microseconds or, if not `timed`, in counts."""

    by_node: dict[str, float]
    total: float
    timed: bool = True


def write_kernels(folder: Path | None, kernels: Iterable[Any]) -> Path | None:
    """Write records of kernels into a folder, if there is one, and return the file."""
    if folder is None:
        return None
    path = folder / "kernels.json"
    path.write_text(json.dumps([asdict(one) for one in kernels], indent=1), encoding="utf-8")
    return path


def kernel_of(args: dict[str, Any], provider: str) -> Kernel:
    """Return the kernel of a profile event. A kernel of another provider than the requested one is a fallback.

    >>> kernel_of({"op_name": "QGemm", "provider": "CPUExecutionProvider"}, "CPUExecutionProvider")
    Kernel(name='QGemm', is_low_precision=True, is_half=False)
    >>> kernel_of({"op_name": "QGemm", "provider": "CPUExecutionProvider"}, "CUDAExecutionProvider")
    Kernel(name='QGemm on CPUExecutionProvider', is_low_precision=False, is_half=False)
    """
    kind, ran_by = args["op_name"], args["provider"]
    if ran_by != provider:
        return Kernel(f"{kind} on {ran_by}", is_low_precision=False)
    if kind in facts_of_provider(provider).low_precision:
        return Kernel(kind, is_low_precision=True)
    inputs = args.get("input_type_shape", [])
    dtype = next(iter(inputs[0]), "") if inputs else ""
    if dtype in ("float16", "bfloat16") and kind not in _CONVERSIONS:
        return Kernel(f"{kind} in {dtype}", is_low_precision=False, is_half=True)
    return Kernel(kind, is_low_precision=False)
