"""Weights of a decoder as its graph stores them: float, or 4 or 8 bits in blocks (MatMulNBits, GatherBlockQuantized).

Rows are outputs; each row's columns are cut into blocks of one size, with one scale and one zero point each:

    value = (code - zero point) * scale
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCKS = (32, 64, 128)
# Rows that are float64 at a time: a table of 128,256 tokens would take 4 GB.
ROWS_AT_ONCE = 4096
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
    """A weight in blocks: codes of 4 or 8 bits, uint8 `[rows, columns]`; one scale and one zero point a block, float32
    `[rows, columns / block]`.
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zero_points: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows and columns."""
        return self.codes.shape

    @property
    def block(self) -> int:
        """Columns of a block."""
        return int(self.codes.shape[1] // self.scales.shape[1])

    @property
    def symmetric(self) -> bool:
        """Return True if every zero point is the middle code."""
        return bool((self.zero_points == 2 ** (self.bits - 1)).all())

    def take(self, rows: Rows) -> BlockMatrix:
        """Return these rows, in this order."""
        return replace(self, codes=self.codes[rows], scales=self.scales[rows], zero_points=self.zero_points[rows])

    def in_blocks_of(self, size: int) -> BlockMatrix:
        """Return the same weight in smaller blocks, which repeat the scale and zero point of the one that they are cut from."""
        times = self.block // size
        parts = (np.repeat(part, times, axis=1) for part in (self.scales, self.zero_points))
        return BlockMatrix(self.bits, self.codes, *parts)

    def values(self) -> NDArray[np.float64]:
        """Return the dequantized weight, float64 `[rows, columns]`.

        >>> codes = np.arange(32, dtype=np.uint8)[None] % 16
        >>> one = BlockMatrix(4, codes, np.full((1, 1), 0.5, np.float32), np.full((1, 1), 8, np.float32))
        >>> one.values()[0, [0, 8, 15]].tolist()
        [-4.0, 0.0, 3.5]
        """
        return (self.codes - spread(self.zero_points, self.block)) * spread(self.scales, self.block)


Matrix = FloatMatrix | BlockMatrix


def spread(of_blocks: NDArray[Any], block: int) -> NDArray[np.float64]:
    """Repeat the value of each block for its columns, as float64."""
    return np.repeat(of_blocks.astype(np.float64), block, axis=1)


def chunks(matrix: Matrix) -> Iterator[slice]:
    """Yield slices that cover the rows, `ROWS_AT_ONCE` at most in each."""
    rows = matrix.shape[0]
    return (slice(at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))


def unpacked(packed: NDArray[np.uint8], bits: int, columns: int) -> NDArray[np.uint8]:
    """Return rows of codes, uint8 `[rows, columns]`; two codes of 4 bits share a byte, the earlier one in the low half.

    >>> unpacked(np.array([[0x21, 0x03]], np.uint8), 4, 3).tolist()
    [[1, 2, 3]]
    """
    if bits == 8:
        return packed[:, :columns]
    return np.stack((packed & 15, packed >> 4), axis=2).reshape(len(packed), -1)[:, :columns]
