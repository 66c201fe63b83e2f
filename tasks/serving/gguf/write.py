"""Writing a GGUF file, and the proof that its weights are those of the judged graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of
from tasks.serving.gguf.graph_nodes import refusal
from tasks.serving.gguf.matrices import Matrix

# Rows that are float64 at a time: a table of 128,256 tokens would take 4 GB.
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Proof:
    """The largest difference of a stored weight from the judged one, its tensor, and that tensor's largest weight; and how
    many tensors have each type.
    """

    difference: float
    tensor: str
    largest: float
    kinds: Mapping[str, int]


def write_gguf(
    path: Path, architecture: str, metadata: Mapping[str, Any], tensors: Sequence[tuple[str, Matrix]]
) -> None:
    """Write a GGUF file of version 3; `metadata` by full key."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        _add(writer, key, value)
    kinds = [kind_of(matrix) for _, matrix in tensors]
    for (name, matrix), kind in zip(tensors, kinds, strict=True):
        stored = gguf.GGMLQuantizationType[kind]
        row = gguf.quants.quant_shape_to_byte_shape(matrix.shape, stored)
        dtype = np.dtype({"F32": np.float32, "F16": np.float16}.get(kind, np.uint8))
        shape = matrix.shape if kind in ("F32", "F16") else row
        writer.add_tensor_info(
            name, shape, dtype, int(np.prod(row)), raw_dtype=None if kind in ("F32", "F16") else stored
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (_, matrix), kind in zip(tensors, kinds, strict=True):
        writer.write_tensor_data(np.concatenate([encode(matrix.take(rows), kind).data for rows in _chunks(matrix)]))
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a value with the type that llama.cpp reads: numbers have 32 bits."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def prove(path: Path, tensors: Sequence[tuple[str, Matrix]]) -> Proof:
    """Compare the dequantized weights of a file with the judged ones; `gguf` itself reads and dequantizes the file.

    Raises:
        JobError: a weight differs by more than the rounding of the file's float16 numbers, or a tensor is missing.
    """
    import gguf

    stored = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    if stored.keys() != {name for name, _ in tensors}:
        raise refusal(f"tensors {sorted(stored)} in the file", f"{[name for name, _ in tensors]}", "report it")
    worst, kinds = (0.0, "", 0.0), dict[str, int]()
    for name, matrix in tensors:
        tensor, kind = stored[name], kind_of(matrix)
        kinds[kind] = kinds.get(kind, 0) + 1
        data = tensor.data
        for rows in _chunks(matrix):
            judged = matrix.take(rows)
            values = judged.values()
            found = gguf.quants.dequantize(np.asarray(data[rows]), tensor.tensor_type).astype(np.float64)
            difference = _checked(name, kind, found, values, allowed_difference(judged, kind))
            if difference > worst[0]:
                worst = difference, name, float(np.abs(values).max())
    return Proof(*worst, kinds)


def _checked(
    name: str, kind: str, found: NDArray[np.float64], judged: NDArray[np.float64], allowed: NDArray[np.float64]
) -> float:
    """Return the largest difference; refuse one that is not allowed, or not a number."""
    if found.shape != judged.shape:
        raise refusal(f"{name} of the shape {found.shape}", f"{judged.shape}", "report it with the variant")
    difference = np.abs(found - judged)
    if not (wrong := ~(difference <= allowed)).any():
        return float(difference.max(initial=0.0))
    at = np.unravel_index(int(wrong.argmax()), wrong.shape)
    raise refusal(
        f"{name} as {kind} has {found[at]:.6g} where {judged[at]:.6g} was judged",
        f"a difference of at most {allowed[at]:.3g}, the rounding of a float16 scale",
        "export with --genai FOLDER: the weights of this variant are too large or too small for GGUF",
    )


def _chunks(matrix: Matrix) -> Iterator[slice]:
    rows = matrix.shape[0]
    return (slice(at, min(at + ROWS_AT_ONCE, rows)) for at in range(0, rows, ROWS_AT_ONCE))
