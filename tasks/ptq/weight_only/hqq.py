"""HQQ: data-free search for zero points that leave most weights of a block almost exact and a few far off.

H. Badri, A. Shaji: "Half-Quadratic Quantization of Large Machine Learning Models", 2023 (mobiusml.github.io/hqq_blog).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tasks.ptq.weight_only.int4_grid import (
    Grid,
    QuantizedWeight,
    as_blocks,
    column_chunks,
    encode,
    fit_grid,
    join_columns,
    quantize_on,
)

# The authors' settings (`optimize_weights_proximal`): exponent of the norm, weight of the quadratic term, its growth per
# iteration, and the number of iterations.
NORM = 0.7
BETA = 10.0
BETA_GROWTH = 1.01
ITERATIONS = 20

Steps = NDArray[np.float32]

# Scale of values that are already in steps.
ONE_STEP = np.ones(1, np.float32)


def hqq(weight: NDArray[Any], *, block_size: int, symmetric: bool = False, dtype: DTypeLike) -> QuantizedWeight:
    """Quantize a float weight `[K, N]` with the scales of asymmetric rounding and zero points by half-quadratic splitting.

    Zero points are fractions in `dtype`. Rounded to codes they would equal those of round to nearest (in 12 of 12 cases on
    MiniLM-L6): at fixed scales a mean moves a zero point by less than half a step. Errors are measured in steps of the grid
    rather than, as by the authors, in units of the weight. Only then do `W` and `2 W` get the same codes, and the shrinkage
    threshold, which suits weights near 1, does not exceed every error of a real weight. A zero point is kept only if it
    lowers the lp norm of the block's error below that of round to nearest, and does not raise its squared error.
    """
    assert not symmetric, "symmetric blocks have no zero points to choose"
    parts = []
    for columns in column_chunks(weight.shape[1]):
        part = weight[:, columns]
        grid = split(as_blocks(part, block_size), len(part), dtype=dtype)
        parts.append(quantize_on(grid, part, block_size, symmetric=False))
    return join_columns(parts)


def split(blocks: NDArray[np.float64], rows: int, *, dtype: DTypeLike) -> Grid:
    """Return the grid of blocks, float64 `[blocks, block_size, N]`; channels from `rows` on are padding.

    Two exact steps alternate (the blog's sub-problems 1 and 2): shrinkage gives the error that the lp norm allows, and a mean
    gives the least-squares zero point for the rest.
    """
    start = fit_grid(blocks, symmetric=False, dtype=dtype)
    # In float32, since the powers dominate the time; it holds steps of at most 16 to a millionth.
    steps = (blocks / start.scales[:, None]).astype(np.float32)
    real = (np.arange(blocks.shape[0] * blocks.shape[1]) < rows).reshape(blocks.shape[0], blocks.shape[1], 1)
    count = real.sum(axis=1)
    zeros = start.zero_points.astype(np.float32)
    best, (least, most_squared) = zeros, _norms(_residual(steps, zeros), real)
    beta = BETA
    for _ in range(ITERATIONS):
        codes = encode(steps, ONE_STEP, zeros[:, None])
        excess = shrink(steps - (codes - zeros[:, None]), beta)
        zeros = ((codes - steps + excess) * real).sum(axis=1) / count
        stored = zeros.astype(dtype).astype(np.float32)
        norm, squared = _norms(_residual(steps, stored), real)
        # A mean of few weights may move all of a block by a large part of a step, which outputs add up.
        is_better = (norm < least) & (squared <= most_squared)
        best, least = np.where(is_better, stored, best), np.where(is_better, norm, least)
        beta *= BETA_GROWTH
    return Grid(start.scales, best.astype(np.float64))


def shrink(errors: Steps, beta: float) -> Steps:
    """Apply generalized soft thresholding, `sign(e) max(|e| - |e|^(p - 1) / beta, 0)`, the blog's sub-problem 1.

    `errors` and the result are float32 of the same shape.
    """
    size = np.abs(errors)
    # Avoids the infinite power of an error of zero, which stays zero.
    power = np.maximum(size, np.float32(1e-9)) ** np.float32(NORM - 1)
    return np.asarray(np.sign(errors) * np.maximum(size - power / np.float32(beta), 0), np.float32)


def _residual(steps: Steps, zeros: Steps) -> Steps:
    return steps - (encode(steps, ONE_STEP, zeros[:, None]) - zeros[:, None])


def _norms(errors: Steps, real: NDArray[np.bool_]) -> tuple[Steps, Steps]:
    """Return the sums of `|e|^p` and of squares of each block and column, both `[blocks, N]`."""
    norm = (np.abs(errors) ** np.float32(NORM) * real).sum(axis=1)
    return np.asarray(norm, np.float32), np.asarray((errors**2 * real).sum(axis=1), np.float32)
