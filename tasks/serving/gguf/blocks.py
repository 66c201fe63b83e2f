"""Blocks of GGUF (ggml-org/ggml, `ggml-common.h`), which store a weight that was judged with its codes as they are.

    type   bytes of 32 values                                                value
    F32    128                                                               itself
    F16    64                                                                itself
    Q8_0   float16 d, 32 int8 q                                              q * d
    Q4_0   float16 d, 16 bytes: value i in the low half, i + 16 in the high  (q - 8) * d
    Q4_1   float16 d, float16 m, 16 bytes as above                           q * d + m

Codes of 8 bits with other zero points than 128 fit no block of 8 bits: they become F16, value by value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.matrices import BlockMatrix, Matrix, spread
from tasks.serving.decoder.proof import float16_rounding

# Values of a block of GGUF; larger blocks are cut.
BLOCK = 32


def kind_of(matrix: Matrix) -> str:
    """Return the type of GGUF that holds a weight without other codes."""
    if not isinstance(matrix, BlockMatrix):
        return "F32"
    if matrix.bits == 4:
        return "Q4_0" if matrix.symmetric else "Q4_1"
    return "Q8_0" if matrix.symmetric else "F16"


def encode(matrix: Matrix, kind: str) -> NDArray[Any]:
    """Return a weight, or some rows of it, in the type that `kind_of` names: float for F32 and F16, else uint8 `[rows, bytes]`.

    >>> codes = np.zeros((1, 32), np.uint8)
    >>> codes[0, [0, 1, 16]] = 1, 2, 3
    >>> one = BlockMatrix(4, codes, np.full((1, 1), 2, np.float32), np.full((1, 1), 8, np.float32))
    >>> encode(one, "Q4_0")[0, :5].tolist()  # 2.0 is 0x4000; 3 << 4 | 1; 0 << 4 | 2
    [0, 64, 49, 2, 0]
    """
    if not isinstance(matrix, BlockMatrix):
        return np.ascontiguousarray(matrix.array, np.float32)
    matrix = matrix.in_blocks_of(BLOCK)
    # What does not fit is infinite, and fails the proof.
    with np.errstate(over="ignore"):
        if kind == "F16":
            return matrix.values().astype(np.float16)
        scales = matrix.scales.astype(np.float16)
        heads = [scales]
        if kind == "Q4_1":
            heads.append((-matrix.zero_points.astype(np.float64) * scales).astype(np.float16))
    rows = len(matrix.codes)
    codes = matrix.codes.reshape(rows, -1, BLOCK)
    halves = codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)
    # As int8, `^ 128` takes 128 from a code.
    body = codes ^ 128 if kind == "Q8_0" else halves
    parts = [*(head[..., None].view(np.uint8) for head in heads), body]
    return np.concatenate(parts, axis=2).reshape(rows, -1)


def allowed_difference(matrix: Matrix, kind: str) -> NDArray[np.float64]:
    """Return how far each stored value may be from the judged one: by the rounding of its float16 numbers, and no more."""
    if not isinstance(matrix, BlockMatrix):
        return np.zeros(matrix.shape)
    most = 1 if kind == "F16" else 2**matrix.bits
    size = np.abs(matrix.values())
    if kind == "Q4_1":
        size = size + spread(np.abs(matrix.zero_points * matrix.scales), matrix.block)
    return float16_rounding(size, most)
