"""Learned rounding: coordinate descent on the codes and scales of a layer, for the least squared error of its output.

The objective is AdaRound's for one layer (M. Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization",
ICML 2020, equation 21), `||X W - X W'||^2` over calibration samples. It is quadratic in W', so that the Gram matrix of the
inputs replaces the samples, and the best value of a weight given all others has a closed form, which is rounded to its grid (K.
Behdin et al., "QuantEase: Optimization-based Quantization for Language Models", 2023, algorithm 1). After each block its scale
gets its best value too, in place of a learned clipping range. No step increases the objective, and none needs gradients.

X is the input in the float model, or that of a convolution behind rounded ones (`tasks.ptq.calibrate.in_order`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from validators.deadline import check_deadline

Floats = NDArray[np.float64]

# Channels whose changes reach all others in one product.
CHANNELS_AT_ONCE = 64
# Sweeps over all weights at most, and the share of changed codes at which a sweep is the last one.
SWEEPS, SETTLED = 10, 0.002
# Share of the Gram matrix's mean diagonal that is added to it, as GPTQ does: it draws the weights to the float ones where
# the samples say little.
DAMPING = 0.01


def damped(gram: Floats, share: float = DAMPING) -> Floats:
    """Return the Gram matrix of inputs, float64 `[..., K, K]`, with a share of its mean diagonal added to its diagonal."""
    channels = gram.shape[-1]
    mean = np.einsum("...kk->...", gram) / channels
    # All inputs were zero: any damping then gives plain rounding.
    return np.asarray(gram + np.where(mean > 0, share * mean, 1.0)[..., None, None] * np.eye(channels))


def descend(
    codes: Floats,
    scales: Floats,
    zero_points: Floats,
    weight: Floats,
    gram: Floats,
    *,
    limits: tuple[int, int],
    dtype: DTypeLike,
    block_size: int | None = None,
    smallest: ArrayLike = 0.0,
) -> tuple[Floats, Floats]:
    """Return codes and scales with a smaller error of the layer's output.

    `codes`, float64 `[G, K, N]`, are those to start from, `weight` the float weight in the same shape, for G groups of N
    outputs. Blocks of `block_size` along K (None: one block) have `scales` and `zero_points`, float64 `[G, blocks, N]`. `gram`
    is `damped` and positive definite, float64 `[G, K, K]`. Codes stay within `limits`; scales keep their sign, are exact in
    `dtype` and in magnitude no smaller than `smallest`, which broadcasts against them.
    """
    codes, scales = codes.copy(), scales.copy()
    rows, size = codes.shape[1], block_size or codes.shape[1]
    bounds = [(start, min(start + size, rows)) for start in range(0, rows, size)]
    spread = np.arange(rows) // size
    residual = gram @ (weight - (codes - zero_points[:, spread]) * scales[:, spread])
    for _ in range(SWEEPS):
        changed = 0
        for block, (first, last) in enumerate(bounds):
            scale, zero = scales[:, block].copy(), zero_points[:, block]
            for start in range(first, last, CHANNELS_AT_ONCE):
                check_deadline()
                part = slice(start, min(start + CHANNELS_AT_ONCE, last))
                steps = _round_again(codes[:, part], residual[:, part], scale, gram[:, part, part], limits)
                changed += int(np.count_nonzero(steps))
                residual -= gram[:, :, part] @ (steps * scale[:, None])
            part = slice(first, last)
            values = codes[:, part] - zero[:, None]
            scales[:, block] = _best_scale(values, residual[:, part], scale, gram[:, part, part], dtype, smallest)
            residual -= gram[:, :, part] @ (values * (scales[:, block] - scale)[:, None])
        if changed <= SETTLED * codes.size:
            break
    return codes, scales


def _round_again(
    codes: Floats, residual: Floats, scale: Floats, gram: Floats, limits: tuple[int, int]
) -> NDArray[np.float64]:
    """Set the codes of some channels, one after the other, to the best ones given all others; return the changes.

    `residual` is half of the objective's negative gradient at these channels, `[G, channels, N]`.
    """
    residual, steps = residual.copy(), np.zeros_like(codes)
    for row in range(codes.shape[1]):
        best = codes[:, row] + residual[:, row] / (gram[:, row, row, None] * scale)
        steps[:, row] = np.clip(np.rint(best), *limits) - codes[:, row]
        residual[:, row + 1 :] -= gram[:, row + 1 :, row, None] * (steps[:, row] * scale)[:, None]
    codes += steps
    return steps


def _best_scale(
    values: Floats, residual: Floats, scale: Floats, gram: Floats, dtype: DTypeLike, smallest: ArrayLike
) -> Floats:
    """Return the scales `[G, N]` that minimize the objective for the values `[G, block, N]` of one block."""
    power = (values * (gram @ values)).sum(axis=1)
    exact = scale + np.divide((values * residual).sum(axis=1), power, out=np.zeros_like(scale), where=power > 0)
    stored = exact.astype(dtype).astype(np.float64)
    allowed = (np.sign(stored) == np.sign(scale)) & (np.abs(stored) >= np.maximum(smallest, np.finfo(dtype).tiny))
    return np.where(allowed, stored, scale)
