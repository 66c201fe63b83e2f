"""Grid of INT4 weights: scales, zero points and codes by block along K, and their packing for MatMulNBits.

A weight `[K, N]` is cut along K into blocks of `block_size`. In each block every column (output channel) has one scale and
one zero point. A weight is `(code - zero_point) * scale`, with a code of 0 to 15. The layout is that of
com.microsoft.MatMulNBits in ONNX Runtime's ContribOperators.md. INT8 weights lie in the same blocks (`round_to_bytes`).
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
# The code of 0 where MatMulNBits with 8 bits has no zero points.
MIDDLE_BYTE = 128
# Codes of -127 to 127 are llama.cpp's grid Q8_0 too, so that the weights can be exported as they are.
LARGEST_BYTE = 127

# Output channels are independent. This many at once keep a method's working set near the processor's caches.
COLUMNS_AT_ONCE = 512


@dataclass(frozen=True)
class Grid:
    """Scales and zero points, both float64 `[blocks, N]`, with values that are exact in the stored dtype.

    Scales may be negative (see `fit_grid`), never zero. Zero points are integers of 0 to 15, or fractions with HQQ.
    """

    scales: Floats
    zero_points: Floats


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight `[K, N]` as codes (uint8 `[K, N]`) on a grid with blocks of `block_size` along K.

    `symmetric`: every zero point is 8, the default of MatMulNBits.
    """

    codes: Codes
    grid: Grid
    block_size: int
    symmetric: bool

    def dequantized(self) -> Floats:
        """Return the dequantized weight, float64 `[K, N]`."""
        scales = _spread(self.grid.scales, self.block_size, len(self.codes))
        return (self.codes - _spread(self.grid.zero_points, self.block_size, len(self.codes))) * scales


def as_blocks(weight: NDArray[Any], block_size: int) -> Floats:
    """Return a weight `[K, N]` as float64 `[blocks, block_size, N]`; zeros fill the last block.

    Zeros change no range: a symmetric range is one of magnitudes, an asymmetric one includes zero.

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
    """Return the grid of blocks (float `[blocks, block_size, N]`) from the range of each, times `shrink`.

    `dtype` is the dtype of the stored scales. Symmetric: the zero point is 8. The scale is the value of largest magnitude,
    with its sign, over -8, so that this value has code 0 exactly, as in ONNX Runtime. The alternative amax / 7 wastes code 0
    and leaves 28 % to 30 % more squared error on the weights of MiniLM-L6 and EfficientNet-Lite0, at blocks of 32, 64 and
    128. Asymmetric: fifteen steps from minimum to maximum, zero included and exact; the zero point is a code.

    `shrink` (at most 1; a number or float64 `[blocks, N]`) narrows the range; values outside saturate.
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
    """Return the nearest codes, as floats of 0 to 15; the three float arguments broadcast.

    Ties are rounded to an even number of steps from an integer zero point, as in ONNX QuantizeLinear:
    `round(x / scale) + zero`.
    """
    whole = np.rint(zero_points)
    codes: NDArray[np.floating[Any]] = np.clip(np.rint(values / scales + (zero_points - whole)) + whole, 0, TOP_CODE)
    return codes


def quantize_on(grid: Grid, weight: NDArray[Any], block_size: int, *, symmetric: bool) -> QuantizedWeight:
    """Round a float weight `[K, N]` to the nearest codes of the grid."""
    codes = encode(as_blocks(weight, block_size), grid.scales[:, None], grid.zero_points[:, None])
    rows = codes.reshape(-1, weight.shape[1])[: len(weight)]
    return QuantizedWeight(rows.astype(np.uint8), grid, block_size, symmetric)


def round_to_nearest(weight: NDArray[Any], *, block_size: int, symmetric: bool, dtype: DTypeLike) -> QuantizedWeight:
    """Quantize a float weight `[K, N]` by RTN: the grid of each block's range, and the nearest codes."""
    parts = []
    for columns in column_chunks(weight.shape[1]):
        part = weight[:, columns]
        grid = fit_grid(as_blocks(part, block_size), symmetric=symmetric, dtype=dtype)
        parts.append(quantize_on(grid, part, block_size, symmetric=symmetric))
    return join_columns(parts)


def column_chunks(columns: int) -> Iterator[slice]:
    """Yield slices of at most COLUMNS_AT_ONCE columns, in order.

    >>> [chunk.stop for chunk in column_chunks(514)]
    [512, 514]
    """
    for start in range(0, columns, COLUMNS_AT_ONCE):
        check_deadline()  # a chunk may take seconds
        yield slice(start, min(start + COLUMNS_AT_ONCE, columns))


def join_columns(parts: list[QuantizedWeight]) -> QuantizedWeight:
    """Return the weight whose columns are those of the parts, in order."""
    grid = Grid(
        np.concatenate([part.grid.scales for part in parts], axis=1),
        np.concatenate([part.grid.zero_points for part in parts], axis=1),
    )
    codes = np.concatenate([part.codes for part in parts], axis=1)
    return QuantizedWeight(codes, grid, parts[0].block_size, parts[0].symmetric)


@dataclass(frozen=True)
class Packed:
    """Constants of a MatMulNBits.

    `codes`: uint8 `[N, blocks, block_size * bits / 8]`, with 4 bits the earlier of two codes in the low half of a byte.
    `scales`: float `[N * blocks]`. `zero_points`: None (all are 8, or 128 with 8 bits), or uint8 `[N * ceil(blocks / 2)]`, two
    per byte with each row of N starting a new byte, or floats of the scales' dtype `[N * blocks]`.
    """

    codes: Codes
    scales: NDArray[Any]
    zero_points: NDArray[Any] | None = None
    bits: int = 4

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """The constants in the order of the node's inputs."""
        return [one for one in (self.codes, self.scales, self.zero_points) if one is not None]


def pack(weight: QuantizedWeight, dtype: DTypeLike) -> Packed:
    """Pack a weight for MatMulNBits, with scales in `dtype`; padding of the last block gets the code nearest to zero."""
    blocks, columns = weight.grid.scales.shape
    padding = np.clip(np.rint(weight.grid.zero_points[-1]), 0, TOP_CODE).astype(np.uint8)
    filled = np.concatenate([weight.codes, np.tile(padding, (blocks * weight.block_size - len(weight.codes), 1))])
    codes = nibbles(filled.T).reshape(columns, blocks, weight.block_size // 2)
    zeros = weight.grid.zero_points.T
    stored: NDArray[Any] | None = None
    if not weight.symmetric:
        whole = bool((zeros == np.rint(zeros)).all() and zeros.min() >= 0 and zeros.max() <= TOP_CODE)
        stored = nibbles(zeros.astype(np.uint8)).reshape(-1) if whole else zeros.astype(dtype).reshape(-1)
    return Packed(codes, weight.grid.scales.T.astype(dtype).reshape(-1), stored)


def nibbles(values: Codes) -> Codes:
    """Pack rows of codes two per byte; a row of odd length ends in a byte whose high four bits are 0."""
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    packed: Codes = np.ascontiguousarray(even[:, 0::2] | (even[:, 1::2] << 4))
    return packed


def round_to_bytes(weight: NDArray[Any], *, block_size: int, dtype: DTypeLike) -> Packed:
    """Round a float weight `[K, N]` to nearest, symmetric, with the scale `amax / 127` of each block in `dtype`.

    >>> packed = round_to_bytes(np.array([[2.0]] + [[-1.0]] * 15), block_size=16, dtype=np.float32)
    >>> packed.codes[0, 0, :2].tolist(), packed.codes.shape  # 128 + 127, 128 - 64
    ([255, 64], (1, 1, 16))
    """
    codes, scales = [], []
    for columns in column_chunks(weight.shape[1]):
        blocks = as_blocks(weight[:, columns], block_size)
        # A block of zeros, or a scale that underflows, gets 1.
        steps = _storable(np.abs(blocks).max(axis=1) / LARGEST_BYTE, dtype)
        found = np.clip(np.rint(blocks / steps[:, None]), -LARGEST_BYTE, LARGEST_BYTE)
        codes.append((found + MIDDLE_BYTE).astype(np.uint8).transpose(2, 0, 1))
        scales.append(steps.astype(dtype).T.reshape(-1))
    return Packed(np.ascontiguousarray(np.concatenate(codes)), np.concatenate(scales), bits=8)


def _storable(scales: Floats, dtype: DTypeLike) -> Floats:
    """Round scales to `dtype`; 1 for a block of zeros, and for a scale that underflows."""
    stored = scales.astype(dtype).astype(np.float64)
    return np.where(stored == 0, 1.0, stored)


def _spread(values: Floats, block_size: int, rows: int) -> Floats:
    return np.repeat(values, block_size, axis=0)[:rows]
