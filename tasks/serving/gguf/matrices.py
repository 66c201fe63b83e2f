"""Weights of a decoder as its graph stores them: float, or 4 or 8 bits in blocks of 32 (MatMulNBits, GatherBlockQuantized).

Rows are outputs, as in GGUF; each row's columns are cut into blocks with one scale and one zero point:

    value = (code - zero point) * scale
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK = 32
Rows = slice | NDArray[np.int64]


@dataclass(frozen=True)
class FloatMatrix:
    """A float weight, float32 `[rows, columns]`, or a vector."""

    array: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.array.shape

    def take(self, rows: Rows) -> FloatMatrix:
        """Return these rows, in this order."""
        return FloatMatrix(self.array[rows])

    def values(self) -> NDArray[np.float64]:
        """Return the weight, float64."""
        return self.array.astype(np.float64)


@dataclass(frozen=True)
class BlockMatrix:
    """A weight in blocks of 32: codes of 4 or 8 bits, uint8 `[rows, columns]`; one scale and one zero point a block, float32
    `[rows, columns / 32]`.
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.codes.shape

    def take(self, rows: Rows) -> BlockMatrix:
        """Return these rows, in this order."""
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], zero_points=self.zero_points[rows])

    def values(self) -> NDArray[np.float64]:
        """Return the dequantized weight, float64 `[rows, columns]`.

        >>> codes = np.arange(32, dtype=np.uint8)[None] % 16
        >>> one = BlockMatrix(4, codes, np.full((1, 1), 0.5, np.float32), np.full((1, 1), 8, np.float32))
        >>> one.values()[0, [0, 8, 15]].tolist()
        [-4.0, 0.0, 3.5]
        """
        return (self.codes - spread(self.zero_points)) * spread(self.scales)


Matrix = FloatMatrix | BlockMatrix


def spread(of_blocks: NDArray[Any]) -> NDArray[np.float64]:
    """Repeat the value of each block for its 32 columns, as float64."""
    return np.repeat(of_blocks.astype(np.float64), BLOCK, axis=1)


def unpacked(packed: NDArray[np.uint8], bits: int, columns: int) -> NDArray[np.uint8]:
    """Return rows of codes, uint8 `[rows, columns]`; two codes of 4 bits share a byte, the earlier one in the low half.

    >>> unpacked(np.array([[0x21, 0x03]], np.uint8), 4, 3).tolist()
    [[1, 2, 3]]
    """
    if bits == 8:
        return packed[:, :columns]
    return np.stack((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1)[:, :columns]
