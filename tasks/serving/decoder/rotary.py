"""Rotary angles of a decoder, in the terms of the formats that name them by a base and a way to scale them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# The base that is written where angles are no powers of one base.
USUAL_BASE = 10000.0
TOLERANCE = 1e-5
# Of Llama 3.1: the factor grows from 1 to its largest between wavelengths of a fourth of the original context and all of it.
LOW, HIGH = 1.0, 4.0
CONTEXTS = tuple(2**power for power in range(5, 21))


def rotary_base(frequencies: NDArray[np.float64]) -> tuple[float, NDArray[np.float32] | None]:
    """Return the base of which the angles per position are powers, and None; or a base, and the divisors of its powers.

    >>> rotary_base(500000.0 ** -(np.arange(4) / 4))
    (500000.0, None)
    >>> rotary_base(10000.0 ** -(np.arange(4) / 4) / [1, 1, 1, 8])
    (10000.0, array([1., 1., 1., 8.], dtype=float32))
    """
    exponents = np.arange(len(frequencies)) / len(frequencies)
    base = USUAL_BASE if len(frequencies) == 1 else float(frequencies[-1] ** (-1 / exponents[-1]))
    base = float(round(base)) if abs(round(base) - base) < TOLERANCE * base else base
    if np.allclose(base**-exponents, frequencies, rtol=TOLERANCE, atol=0):
        return base, None
    return USUAL_BASE, (USUAL_BASE**-exponents / frequencies).astype(np.float32)


def llama3_scaling(frequencies: NDArray[np.float64]) -> tuple[float, dict[str, object]] | None:
    """Return the base and the `rope_scaling` of the type llama3 that make these angles, or None.

    The source of the formula is `modeling_rope_utils.py` of transformers.
    """
    exponents = np.arange(len(frequencies)) / len(frequencies)
    if len(frequencies) < 2:
        return None
    # The last two dimensions are both scaled by the whole factor, so that their ratio tells the base.
    base = float(f"{(frequencies[-2] / frequencies[-1]) ** len(frequencies):.4g}")
    powers = base**-exponents
    factor = float(f"{(powers / frequencies).max():.4g}")
    for context in CONTEXTS:
        turns = context * powers / (2 * math.pi)
        share = np.clip((turns - LOW) / (HIGH - LOW), 0, 1)
        if np.allclose(powers * ((1 - share) / factor + share), frequencies, rtol=1e-4, atol=0):
            return base, {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": context,
            }
    return None
