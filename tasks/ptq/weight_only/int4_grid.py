"""The grid of INT4 weights: scales, zero points and codes by block along K, and the bytes that MatMulNBits reads.

A weight `[K, N]` is cut along K into blocks of `block_size`. In each block every column (output channel) has one scale and
one zero point, and a weight is `(code - zero_point) * scale` with a code of 0 to 15. The layout is that of
com.microsoft.MatMulNBits in ONNX Runtime's ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from validators.deadline import check_deadline

Floats = NDArray[np.float64]
Codes = NDArray[np.uint8]

TOP_CODE = 15
MIDDLE_CODE = 8

# Output channels are independent: so many at a time keep what a method works on near the processor's caches.
COLUMNS_AT_ONCE = 512


@dataclass(frozen=True)
class Grid:
    """Scales and zero points, both float64 `[blocks, N]`, with values that the stored dtype holds exactly.

    Scales may be negative (see `fit_grid`), never zero. Zero points are integers of 0 to 15, except where a method makes
    them fractions.
    """

    scales: Floats
    zero_points: Floats


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight `[K, N]` as codes (uint8 `[K, N]`) on a grid with blocks of `block_size` along K.

    `symmetric` says that every zero point is 8, which MatMulNBits takes for granted when it is given none.
    """

    codes: Codes
    grid: Grid
    block_size: int
    symmetric: bool

    def dequantized(self) -> Floats:
        """The weight that the codes stand for, float64 `[K, N]`."""
        scales = _spread(self.grid.scales, self.block_size, len(self.codes))
        return (self.codes - _spread(self.grid.zero_points, self.block_size, len(self.codes))) * scales


def as_blocks(weight: NDArray[Any], block_size: int) -> Floats:
    """A weight `[K, N]` as float64 `[blocks, block_size, N]`; zeros fill the last block.

    Zeros leave every range as it is: a symmetric one is that of magnitudes, an asymmetric one includes zero.

    >>> as_blocks(np.ones((40, 3)), 32).shape
    (2, 32, 3)
    """
    rows, columns = weight.shape
    blocks = -(-rows // block_size)
    padded = np.zeros((blocks * block_size, columns))
    padded[:rows] = weight
    return padded.reshape(blocks, block_size, columns)


def fit_grid(
    blocks: NDArray[np.floating[Any]], *, symmetric: bool, dtype: DTypeLike, shrink: float | Floats = 1.0
) -> Grid:
    """The grid of blocks (float `[blocks, block_size, N]`) from the range of each, times `shrink`.

    `dtype` is the one that scales are stored in. Symmetric: the zero point is 8 and the scale is the value of largest
    magnitude, with its sign, over -8, so that this value has code 0 exactly. That is ONNX Runtime's choice as well; amax / 7,
    which wastes code 0, leaves 28 % to 30 % more squared error on the weights of MiniLM-L6 and of EfficientNet-Lite0, at
    blocks of 32, 64 and 128. Asymmetric: fifteen steps from the least value to the greatest, zero included, so that zero is
    exact; the zero point is a code.

    `shrink` (1 or below; a number or float64 `[blocks, N]`) narrows the range: values beyond it saturate.
    """
    low, high = blocks.min(axis=1).astype(np.float64), blocks.max(axis=1).astype(np.float64)
    if symmetric:
        extreme = np.where(np.abs(high) > np.abs(low), high, low)
        scales = _storable(extreme * shrink / -MIDDLE_CODE, dtype)
        return Grid(scales, np.full(scales.shape, float(MIDDLE_CODE)))
    low, high = np.minimum(low, 0.0) * shrink, np.maximum(high, 0.0) * shrink
    scales = _storable((high - low) / TOP_CODE, dtype)
    return Grid(scales, np.clip(np.rint(-low / scales), 0, TOP_CODE))


def encode(
    values: NDArray[np.floating[Any]], scales: NDArray[np.floating[Any]], zero_points: NDArray[np.floating[Any]]
) -> NDArray[np.floating[Any]]:
    """The nearest codes, as floats of 0 to 15; all three arguments broadcast.

    Ties go to the even number of steps from an integer zero point, as in ONNX QuantizeLinear: `round(x / scale) + zero`.
    """
    whole = np.rint(zero_points)
    codes: NDArray[np.floating[Any]] = np.clip(np.rint(values / scales + (zero_points - whole)) + whole, 0, TOP_CODE)
    return codes


def quantize_on(grid: Grid, weight: NDArray[Any], block_size: int, *, symmetric: bool) -> QuantizedWeight:
    """A weight `[K, N]` with each value rounded to the nearest code of the grid."""
    codes = encode(as_blocks(weight, block_size), grid.scales[:, None], grid.zero_points[:, None])
    rows = codes.reshape(-1, weight.shape[1])[: len(weight)]
    return QuantizedWeight(rows.astype(np.uint8), grid, block_size, symmetric)


def round_to_nearest(weight: NDArray[Any], *, block_size: int, symmetric: bool, dtype: DTypeLike) -> QuantizedWeight:
    """RTN: the range of each block, and the nearest code to each value."""
    parts = []
    for columns in column_chunks(weight.shape[1]):
        part = weight[:, columns]
        grid = fit_grid(as_blocks(part, block_size), symmetric=symmetric, dtype=dtype)
        parts.append(quantize_on(grid, part, block_size, symmetric=symmetric))
    return join_columns(parts)


def column_chunks(columns: int) -> Iterator[slice]:
    """Slices of at most COLUMNS_AT_ONCE columns, in order.

    >>> [chunk.stop for chunk in column_chunks(514)]
    [512, 514]
    """
    for start in range(0, columns, COLUMNS_AT_ONCE):
        check_deadline()  # a chunk may take seconds
        yield slice(start, min(start + COLUMNS_AT_ONCE, columns))


def join_columns(parts: list[QuantizedWeight]) -> QuantizedWeight:
    """The weight whose columns are those of the parts, in order."""
    grid = Grid(
        np.concatenate([part.grid.scales for part in parts], axis=1),
        np.concatenate([part.grid.zero_points for part in parts], axis=1),
    )
    codes = np.concatenate([part.codes for part in parts], axis=1)
    return QuantizedWeight(codes, grid, parts[0].block_size, parts[0].symmetric)


@dataclass(frozen=True)
class Packed:
    """What MatMulNBits reads. `codes`: uint8 `[N, blocks, block_size / 2]`, the earlier of two codes in the low four bits.

    `scales`: float `[N * blocks]`. `zero_points`: None (all are 8), or uint8 `[N * ceil(blocks / 2)]`, two to a byte and
    each row of N in bytes of its own, or floats of the scales' dtype `[N * blocks]`.
    """

    codes: Codes
    scales: NDArray[Any]
    zero_points: NDArray[Any] | None


def pack(weight: QuantizedWeight, dtype: DTypeLike) -> Packed:
    """The bytes of a weight; what pads the last block gets the code nearest to zero, which no kernel should read."""
    blocks, columns = weight.grid.scales.shape
    padding = np.clip(np.rint(weight.grid.zero_points[-1]), 0, TOP_CODE).astype(np.uint8)
    filled = np.concatenate([weight.codes, np.tile(padding, (blocks * weight.block_size - len(weight.codes), 1))])
    codes = _nibbles(filled.T).reshape(columns, blocks, weight.block_size // 2)
    zeros = weight.grid.zero_points.T
    stored: NDArray[Any] | None = None
    if not weight.symmetric:
        whole = bool((zeros == np.rint(zeros)).all() and zeros.min() >= 0 and zeros.max() <= TOP_CODE)
        stored = _nibbles(zeros.astype(np.uint8)).reshape(-1) if whole else zeros.astype(dtype).reshape(-1)
    return Packed(codes, weight.grid.scales.T.astype(dtype).reshape(-1), stored)


def _nibbles(values: Codes) -> Codes:
    """Rows of codes, two to a byte; a row of odd length ends in a byte whose high four bits are 0."""
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    packed: Codes = np.ascontiguousarray(even[:, 0::2] | (even[:, 1::2] << 4))
    return packed


def _storable(scales: Floats, dtype: DTypeLike) -> Floats:
    """Scales as `dtype` holds them; 1 for a block of zeros, and for one whose scale float16 would round to zero."""
    stored = scales.astype(dtype).astype(np.float64)
    return np.where(stored == 0, 1.0, stored)


def _spread(values: Floats, block_size: int, rows: int) -> Floats:
    return np.repeat(values, block_size, axis=0)[:rows]
