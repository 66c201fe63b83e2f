"""The GGUF file of a variant, with what its users have to know, and the proof of its weights."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.decoder.decoder_graph import read_decoder
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import Matrix, chunks
from tasks.serving.decoder.proof import Proof, Stored, prove_weights
from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of
from tasks.serving.gguf.llama import FILE_TYPES, architecture_of, metadata_of, tensors_of
from tasks.serving.gguf.tokens import tokenizer_metadata

MODEL, CONFIG = "model.onnx", "genai_config.json"
# `general.quantization_version` of the block types.
QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class GgufFile:
    """A written file, with the proof of its weights, and whether the variant keeps its attention cache in few bits."""

    path: Path
    proof: Proof
    has_small_cache: bool


def make_gguf(variant: Path, path: Path, name: str, about: Mapping[str, str]) -> GgufFile:
    """Write the decoder in the folder `variant` to a GGUF file, and prove its weights.

    `name` is that of the model; `about` becomes metadata under the prefix `quantgate.`.

    Raises:
        JobError: llama.cpp does not run such a decoder or tokenizer, GGUF has no such blocks, or the library `gguf` is missing.
    """
    if util.find_spec("gguf") is None:
        raise refusal("gguf is not installed", "the library that writes GGUF files", "install the extra `genai`")
    config = json.loads((variant / CONFIG).read_text(encoding="utf-8"))
    architecture = architecture_of(config)
    decoder = read_decoder(variant / MODEL)
    tokens = tokenizer_metadata(variant, decoder.embedding.shape[0], config["model"])
    sizes = metadata_of(decoder, architecture, config)
    tensors = list(tensors_of(decoder, architecture))
    weights = Counter[str]()
    for _, matrix in tensors:
        weights[kind_of(matrix)] += int(np.prod(matrix.shape))
    metadata = {
        "general.name": name,
        "general.file_type": FILE_TYPES[weights.most_common(1)[0][0]],
        "general.quantization_version": QUANTIZATION_VERSION,
        **sizes,
        **tokens,
        **{f"quantgate.{key}": value for key, value in about.items()},
    }
    write_gguf(path, architecture, metadata, tensors)
    proof = prove(path, tensors)
    return GgufFile(path, proof, decoder.layers[0].attention.cache_type != "NONE")


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
