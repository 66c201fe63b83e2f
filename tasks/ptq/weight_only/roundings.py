"""The functions that round weights in blocks of INT4, by the words of `validators.job.methods.ROUNDINGS`.

They need neither ONNX nor, before they are called, SciPy: compilers for PyTorch call them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from numpy.typing import DTypeLike, NDArray

from tasks.ptq.weight_only.clipping import clipped
from tasks.ptq.weight_only.gptq import gptq
from tasks.ptq.weight_only.hqq import hqq
from tasks.ptq.weight_only.int4_grid import Floats, QuantizedWeight, round_to_nearest
from tasks.ptq.weight_only.learned import learn_blocks
from validators.job.methods import ROUNDINGS

# From a float weight `[K, N]`, the Gram matrix of its inputs (float64 `[K, K]`) if the method needs it, and keywords: the
# `block_size`, whether blocks are `symmetric`, and the `dtype` of their scales.
BLOCKS: Mapping[str, Callable[..., QuantizedWeight]] = {
    "rtn": round_to_nearest,
    "hqq": hqq,
    "gptq": gptq,
    "awq": clipped,
    "learned": learn_blocks,
}


def round_blocks(
    method: str,
    weight: NDArray[Any],
    gram: Floats | None,
    *,
    block_size: int,
    symmetric: bool,
    dtype: DTypeLike,
) -> QuantizedWeight:
    """Quantize a float weight `[K, N]` by a method; `gram` counts only if it needs one.

    Raises:
        numpy.linalg.LinAlgError: the Gram matrix is not positive semi-definite, or not finite.
    """
    given = (weight, gram) if ROUNDINGS[method].needs_grams else (weight,)
    return BLOCKS[method](*given, block_size=block_size, symmetric=symmetric, dtype=dtype)
