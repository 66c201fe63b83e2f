"""Arrays of any shape and dtype as rows of float64 and back, so that a selection of samples is a selection of rows.

A row begins with a header: the number of arrays, and for each the index of its dtype in a table (for text, the negative number
of its characters), the number of axes after the first, and their sizes. Then come the values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_DTYPES = ("bool", *_INTEGERS, "float16", "float32", "float64")


def fold(*arrays: NDArray[Any]) -> Rows:
    """Return arrays with at least one sample along axis 0 as rows, float64 `(n, k)`.

    Raises:
        ValueError: the dtype is neither a number nor text, or an integer is not exact in float64.

    >>> unfold(fold(np.array(["yes", "no"]), np.eye(2, dtype=np.float32))[1:])
    [array(['no'], dtype='<U3'), array([[0., 1.]], dtype=float32)]
    """
    head: list[int] = [len(arrays)]
    columns = []
    for array in arrays:
        code, values = _coded(array)
        head += [code, array.ndim - 1, *array.shape[1:]]
        columns.append(values)
    return np.hstack([np.tile(np.array(head, np.float64), (len(arrays[0]), 1)), *columns])


def unfold(rows: Rows) -> list[NDArray[Any]]:
    """Return the arrays of a non-empty selection of the rows that `fold` returned, with samples along axis 0."""
    head, at = rows[0], 1
    forms = []
    for _ in range(int(head[0])):
        code, axes = int(head[at]), int(head[at + 1])
        forms.append((code, tuple(head[at + 2 : at + 2 + axes].astype(int).tolist())))
        at += 2 + axes
    arrays = []
    for code, shape in forms:
        width = int(np.prod(shape, dtype=int)) * max(1, -code)
        arrays.append(_decoded(code, rows[:, at : at + width]).reshape(len(rows), *shape))
        at += width
    return arrays


def _coded(array: NDArray[Any]) -> tuple[int, Rows]:
    if array.dtype.kind == "U":
        length = max(1, array.dtype.itemsize // 4)
        points = np.ascontiguousarray(array.astype(f"<U{length}")).view(np.uint32)
        return -length, points.reshape(len(array), -1).astype(np.float64)
    if array.dtype.name not in _DTYPES:
        raise ValueError(f"arrays of {array.dtype}")
    values = array.reshape(len(array), -1).astype(np.float64)
    if array.dtype.name in _INTEGERS and ((array > 2**53) | (array < -(2**53))).any():
        raise ValueError("integers beyond 2^53, which float64 cannot represent")
    return _DTYPES.index(array.dtype.name), values


def _decoded(code: int, values: Rows) -> NDArray[Any]:
    if code < 0:
        return np.ascontiguousarray(values.astype(np.uint32)).view(f"<U{-code}")
    return values.astype(_DTYPES[code])
