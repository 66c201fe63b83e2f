"""Settings of INT8 weights, and the table of methods that round them.

To add a method, write it with the signature of `round_to_nearest`, add a row to `METHODS`, and add its word to
`validators.job.candidate_name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tasks.ptq.eight_bit.affine import WeightBits, fit_weight, store_weight

# The weight, the axis of its output channels or None, the bits, and the least scales, as `fit_weight` takes them; returns
# the INT8 codes in the shape of the weight, and the scales.
Method = Callable[[NDArray[Any], int | None, WeightBits, ArrayLike], tuple[NDArray[np.int8], NDArray[Any]]]


def round_to_nearest(
    weight: NDArray[Any], channel_axis: int | None, bits: WeightBits, smallest: ArrayLike
) -> tuple[NDArray[np.int8], NDArray[Any]]:
    """Round each weight to the nearest step of amax / 127 (of amax / 64 with 7 bits)."""
    scales = fit_weight(weight, channel_axis, bits, smallest=smallest)
    return store_weight(weight, scales, channel_axis, bits), scales


METHODS: Mapping[str, Method] = {"rtn": round_to_nearest}


@dataclass(frozen=True)
class Int8Weights:
    """Settings of INT8 weights: one scale per output channel or one per tensor, the bits in use, and the rounding method."""

    per_channel: bool = True
    bits: WeightBits = 8
    method: str = "rtn"

    def quantize(
        self, weight: NDArray[Any], channel_axis: int | None, *, smallest: ArrayLike = 0.0
    ) -> tuple[NDArray[np.int8], NDArray[Any]]:
        """Return the INT8 codes of a weight, in its shape, and their scales, `(channels,)` or `()`.

        `channel_axis` counts only with `per_channel`. No scale is below `smallest`.
        """
        axis = channel_axis if self.per_channel else None
        return METHODS[self.method](weight, axis, self.bits, smallest)
