"""Kinds of inputs, guessed from dtype and values: the kind decides which statistics describe a sample."""

from __future__ import annotations

from typing import Any, Literal

from numpy.typing import NDArray

Kind = Literal["magnitude", "index", "mask", "other"]


def kind_of(array: NDArray[Any]) -> Kind:
    """Return the kind of an input (shape `(n, ...)`, any dtype).

    - `magnitude`: floats, and 8-bit integers (pixels or sound): near values have a similar meaning.
    - `mask`: booleans, and integers that are all 0 or 1: they mark the entries of another input that count.
    - `index`: other integers, such as tokens or categories: 0 is padding, and the distance of values means nothing.
    - `other`: values that no model computes with, such as strings.

    >>> import numpy as np
    >>> kind_of(np.array([[3, 0]], np.uint8)), kind_of(np.array([[3, 0]])), kind_of(np.array([[1, 0]]))
    ('magnitude', 'index', 'mask')
    """
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "f" or (kind in "iu" and size == 1):
        return "magnitude"
    if kind == "b":
        return "mask"
    if kind in "iu":
        return "mask" if not array.size or (array.min() >= 0 and array.max() <= 1) else "index"
    return "other"
