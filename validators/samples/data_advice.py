"""Error texts for unusable data files: the kind of a foreign file, and how to fit an array to an input."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Magic bytes of file formats that users pass as data.
MAGIC = (
    (b"PK\x03\x04", "a zip archive"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x93NUMPY", "one array as numpy.save writes it (.npy)"),
    (b"PAR1", "a Parquet file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"\x80", "a pickle"),
)
HEAD_BYTES = 4096
# A zip archive ends with its directory record, followed by a comment of at most 64 KiB.
END_BYTES = 22
TAIL_BYTES = (1 << 16) + END_BYTES
# Limits the search over permutations.
MOST_AXES = 6


def kind_of_file(path: Path) -> str:
    """Describe the kind of a file, from its first bytes."""
    with path.open("rb") as stream:
        head = stream.read(HEAD_BYTES)
    if not head:
        return "an empty file"
    for magic, kind in MAGIC:
        if head.startswith(magic):
            return kind
    # The end of the head may split a multi-byte character.
    if b"\0" not in head and "\ufffd" not in head.decode("utf-8", errors="replace")[:-1]:
        return "a JSON file" if head.lstrip()[:1] in (b"{", b"[") else "a text file"
    return "a file of an unknown kind"


def is_cut(path: Path) -> bool:
    """Return True if a file begins like a zip archive or a Parquet file but does not end like one."""
    with path.open("rb") as stream:
        head = stream.read(4)
        stream.seek(-min(path.stat().st_size, TAIL_BYTES), os.SEEK_END)
        tail = stream.read()
    if head == b"PAR1":
        return len(tail) < 12 or not tail.endswith(head)
    end = tail.rfind(b"PK\x05\x06")
    return head.startswith(b"PK") and (end < 0 or len(tail) - end < END_BYTES)


def dtype_advice(array: NDArray[Any], dtype: str) -> str:
    """Return advice on converting an array to the dtype of an input.

    >>> dtype_advice(np.zeros(2), "float32")
    "convert the array with .astype('float32')"
    """
    given, wanted = array.dtype.kind, np.dtype(dtype).kind
    if given in "USO":
        return "encode the text as for the model in production, with its tokenizer or its category numbers"
    if given in "iu" and wanted == "f":
        return (
            "prepare the values as for the model in production (pixels are usually scaled, such as x / 255, and normalized),"
            f" then convert with .astype({dtype!r}), which alone does not scale"
        )
    if given == "f" and wanted in "iub":
        return (
            "undo the scaling that the model in production does not have (pixels are usually multiplied by 255 and rounded),"
            f" then convert with .astype({dtype!r}), which alone truncates fractions"
        )
    return f"convert the array with .astype({dtype!r})"


def shape_advice(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> str:
    """Return advice on fitting an array of this shape to an input of shape `wanted`, samples along axis 0.

    >>> shape_advice((8, 32, 32, 3), ("batch", 3, 32, 32))
    'transpose the array with .transpose(0, 3, 1, 2); a reshape would scramble it'
    >>> shape_advice((8, 5), ("batch", 3))
    'write the array with the axes of the input, or export the model with dynamic axes'
    """
    order = _order(shape, wanted)
    if order:
        return f"transpose the array with .transpose({', '.join(map(str, order))}); a reshape would scramble it"
    if len(shape) == len(wanted) + 1 and 1 in shape[1:]:
        axis = shape.index(1, 1)
        if _fits(shape[:axis] + shape[axis + 1 :], wanted):
            return f"remove the axis of size 1 with .squeeze({axis})"
    if len(shape) + 1 == len(wanted) and 1 in wanted[1:]:
        axis = wanted.index(1, 1)
        if _fits(shape, wanted[:axis] + wanted[axis + 1 :]):
            return f"add the axis of size 1 with numpy.expand_dims(array, {axis})"
    return "write the array with the axes of the input, or export the model with dynamic axes"


def _order(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> tuple[int, ...]:
    """Return the axis permutation that makes the shape fit, keeping axis 0; empty if there is none."""
    if len(shape) != len(wanted) or len(shape) > MOST_AXES:
        return ()
    orders = ((0, *rest) for rest in permutations(range(1, len(shape))))
    return next((order for order in orders if _fits(tuple(shape[axis] for axis in order), wanted)), ())


def _fits(shape: tuple[int, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Return True if the shape fits an input from axis 1 on."""
    if len(shape) != len(wanted):
        return False
    return all(not isinstance(axis, int) or axis == size for axis, size in zip(wanted[1:], shape[1:], strict=True))
