"""The functions that round weights in blocks of INT4. They need neither ONNX nor, before they are called, SciPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tasks.ptq.weight_only.clipping import clipped
from tasks.ptq.weight_only.gptq import gptq
from tasks.ptq.weight_only.hqq import hqq
from tasks.ptq.weight_only.int4_grid import QuantizedWeight, round_to_nearest
from tasks.ptq.weight_only.learned import learn_blocks

# By the words of `validators.job.methods.ROUNDINGS`: from a float weight `[K, N]`, the Gram matrix of its inputs (float64
# `[K, K]`; None if the row does not need it), and `block_size`, `symmetric` and `dtype`, that of the scales.
BLOCKS: Mapping[str, Callable[..., QuantizedWeight]] = {
    "rtn": lambda weight, _, **how: round_to_nearest(weight, **how),
    "hqq": lambda weight, _, **how: hqq(weight, **how),
    "gptq": gptq,
    "awq": clipped,
    "learned": learn_blocks,
}
