"""Writing a GGUF file, and the proof that its weights are those of the judged graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import Matrix, chunks
from tasks.serving.decoder.proof import Proof, Stored, prove_weights
from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of


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
        writer.write_tensor_data(np.concatenate([encode(matrix.take(rows), kind).data for rows in chunks(matrix)]))
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
    return prove_weights((_stored(stored[name], name, matrix) for name, matrix in tensors), allowed_difference)


def _stored(tensor: Any, name: str, matrix: Matrix) -> Stored:
    import gguf

    def read(rows: slice) -> NDArray[np.float64]:
        found = gguf.quants.dequantize(np.asarray(tensor.data[rows]), tensor.tensor_type)
        return np.asarray(found, np.float64)

    return Stored(name, kind_of(matrix), matrix, read)
