"""INT8 weights in blocks along K, for MatMulNBits with 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tasks.ptq.weight_only.int4_grid import Packed, as_blocks, column_chunks

# The code of 0 where MatMulNBits has no zero points (ONNX Runtime, ContribOperators.md).
MIDDLE_BYTE = 128
# Codes of -127 to 127 are llama.cpp's grid Q8_0 too, so that the weights can be exported as they are.
LARGEST = 127


def round_to_bytes(weight: NDArray[Any], *, block_size: int, dtype: DTypeLike) -> Packed:
    """Round a float weight `[K, N]` to nearest, symmetric, with the scale `amax / 127` of each block in `dtype`.

    >>> packed = round_to_bytes(np.array([[2.0]] + [[-1.0]] * 15), block_size=16, dtype=np.float32)
    >>> packed.codes[0, 0, :2].tolist(), packed.codes.shape  # 128 + 127, 128 - 64
    ([255, 64], (1, 1, 16))
    """
    codes, scales = [], []
    for columns in column_chunks(weight.shape[1]):
        blocks = as_blocks(weight[:, columns], block_size)
        steps = (np.abs(blocks).max(axis=1) / LARGEST).astype(dtype)
        steps[steps == 0] = 1  # a block of zeros, or a scale that underflows
        found = np.rint(blocks / steps.astype(np.float64)[:, None])
        codes.append((np.clip(found, -LARGEST, LARGEST) + MIDDLE_BYTE).astype(np.uint8).transpose(2, 0, 1))
        scales.append(steps.T.reshape(-1))
    return Packed(np.ascontiguousarray(np.concatenate(codes)), np.concatenate(scales), None, bits=8)
