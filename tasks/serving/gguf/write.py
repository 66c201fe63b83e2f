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
        if value not in ("", []):
            found = gguf.GGUFValueType.get_type(value)
            # llama.cpp reads integers as unsigned.
            writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if found == gguf.GGUFValueType.INT32 else found)
    kinds = [kind_of(matrix) for _, matrix in tensors]
    for (name, matrix), kind in zip(tensors, kinds, strict=True):
        stored = gguf.GGMLQuantizationType[kind]
        size = int(np.prod(gguf.quants.quant_shape_to_byte_shape(matrix.shape, stored)))
        # `raw_dtype` replaces the dtype.
        writer.add_tensor_info(name, matrix.shape, np.dtype(np.float32), size, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (_, matrix), kind in zip(tensors, kinds, strict=True):
        writer.write_tensor_data(np.concatenate([encode(matrix.take(rows), kind) for rows in chunks(matrix)]))
    writer.close()


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
