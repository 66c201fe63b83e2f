"""Search for the clipping range of each block that minimizes a layer's output error, and rounding with it.

J. Lin et al.: "AWQ: Activation-aware Weight Quantization for LLM Compression and Acceleration", MLSys 2024: `auto_clip` of the
authors' code, with the Gram matrix in place of samples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tasks.ptq.weight_only.int4_grid import (
    Floats,
    QuantizedWeight,
    as_blocks,
    column_chunks,
    encode,
    fit_grid,
    join_columns,
    quantize_on,
    round_to_nearest,
)

# Shares of a block's range to try: steps of a twentieth as in the authors' code, down to a half.
RATIOS = tuple(1 - step / 20 for step in range(11))


def output_error(difference: Floats, gram: Floats) -> Floats:
    """Return `||X D||^2` of each column of `difference` D (`[K, N]`), float64 `[N]`, from the Gram matrix of X (`[K, K]`)."""
    return np.asarray(np.einsum("kn,kn->n", gram @ difference, difference))


def clipped(
    weight: NDArray[Any], gram: Floats, *, block_size: int, symmetric: bool, dtype: DTypeLike
) -> QuantizedWeight:
    """Quantize a float weight `[K, N]` for inputs X with the Gram matrix `X^T X` (float64 `[K, K]`).

    The clipping range of each block is the one that minimizes the output error (the authors' `auto_clip`).

    Each block is evaluated with its own part of the Gram matrix, as if the others were exact. A column keeps its narrowed
    ranges only if they lower the error under the whole matrix, so no column is worse than round to nearest.
    """
    parts = []
    for columns in column_chunks(weight.shape[1]):
        part = weight[:, columns].astype(np.float64)
        plain = round_to_nearest(part, block_size=block_size, symmetric=symmetric, dtype=dtype)
        shrink = best_ratios(part, gram, block_size, symmetric, dtype)
        narrow = _with_ratios(part, shrink, block_size, symmetric, dtype)
        helps = output_error(narrow.dequantized() - part, gram) < output_error(plain.dequantized() - part, gram)
        parts.append(_with_ratios(part, np.where(helps, shrink, 1.0), block_size, symmetric, dtype))
    return join_columns(parts)


def _with_ratios(part: Floats, shrink: Floats, block_size: int, symmetric: bool, dtype: DTypeLike) -> QuantizedWeight:
    grid = fit_grid(as_blocks(part, block_size), symmetric=symmetric, dtype=dtype, shrink=shrink)
    return quantize_on(grid, part, block_size, symmetric=symmetric)


def best_ratios(part: Floats, gram: Floats, block_size: int, symmetric: bool, dtype: DTypeLike) -> Floats:
    """Return the share of each block's range that minimizes the output error of rounding, float64 `[blocks, N]`.

    `part` is a weight, float64 `[K, N]`; `gram` is the Gram matrix of its inputs, float64 `[K, K]`. Each block is evaluated
    with its own part of the Gram matrix, as if the others were exact.
    """
    blocks = as_blocks(part, block_size)
    own = _diagonal_blocks(gram, block_size)
    best, least = np.ones((len(blocks), part.shape[1])), np.full((len(blocks), part.shape[1]), np.inf)
    for ratio in RATIOS:
        grid = fit_grid(blocks, symmetric=symmetric, dtype=dtype, shrink=ratio)
        zeros = grid.zero_points[:, None]
        difference = (encode(blocks, grid.scales[:, None], zeros) - zeros) * grid.scales[:, None] - blocks
        error = ((own @ difference) * difference).sum(axis=1)
        best = np.where(error < least, ratio, best)
        least = np.minimum(error, least)
    return best


def _diagonal_blocks(gram: Floats, block_size: int) -> Floats:
    """Return the Gram matrix of each block's channels, `[blocks, block_size, block_size]`, zero-padded in the last block."""
    cut = np.zeros((-(-len(gram) // block_size), block_size, block_size))
    for start in range(0, len(gram), block_size):
        own = gram[start : start + block_size, start : start + block_size]
        cut[start // block_size, : len(own), : len(own)] = own
    return cut
