"""The checkpoint of a variant, with what its users have to know.

A product that was judged in floats stays in float32. Tables of tokens in few bits become float16: servers have kernels for
quantized tables on GPUs alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.serving.checkpoint.config import config_of, generation_config_of
from tasks.serving.checkpoint.names import Checkpoint, CheckpointFormat, checkpoint_of
from tasks.serving.decoder.decoder_graph import read_decoder
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.matrices import BlockMatrix, FloatMatrix, Matrix
from tasks.serving.decoder.proof import Proof, Stored, float16_rounding, prove_weights

GRAPH, GENAI_CONFIG, WEIGHTS = "model.onnx", "genai_config.json", "model.safetensors"
# Files of the variant that other programs read too.
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
Read = Callable[[str], NDArray[Any]]
# Tensors of all products of a checkpoint, by the name of the product and the end of their own.
Packed = Mapping[str, Mapping[str, NDArray[Any]]]


@dataclass(frozen=True)
class WrittenCheckpoint:
    """The written files, by name, with the proof of the weights, the bits of products, and whether the variant keeps its
    attention cache in few bits.
    """

    files: Mapping[str, Path]
    proof: Proof
    bits: tuple[int, ...]
    has_small_cache: bool


def make_checkpoint(variant: Path, folder: Path, about: Mapping[str, str], form: CheckpointFormat) -> WrittenCheckpoint:
    """Write the decoder in the folder `variant` as a checkpoint to the new folder `folder`, and prove its weights.

    `about` becomes metadata of the weights.

    Raises:
        JobError: transformers has no such decoder, the format no such blocks, or the library `safetensors` is missing.
    """
    if util.find_spec("safetensors") is None:
        raise refusal(
            "safetensors is not installed", "the library that writes checkpoints", "install the extra `genai`"
        )
    genai = json.loads((variant / GENAI_CONFIG).read_text(encoding="utf-8"))["model"]
    decoder = read_decoder(variant / GRAPH)
    checkpoint = checkpoint_of(decoder)
    packed = {
        product.name: form.pack(product.matrix, symmetric=product.scheme.symmetric)
        for product in checkpoint.products
        if product.scheme is not None and isinstance(product.matrix, BlockMatrix)
    }
    settings, others = form.settings(checkpoint.products)
    documents = {
        "config.json": config_of(decoder, genai) | settings,
        "generation_config.json": generation_config_of(genai),
        **others,
    }
    folder.mkdir()
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for name in TOKENIZER:
        if (variant / name).exists():
            (folder / name).write_bytes((variant / name).read_bytes())
    _save(checkpoint, packed, folder / WEIGHTS, about)
    proof = prove(folder / WEIGHTS, checkpoint, packed, form)
    bits = {product.scheme.bits for product in checkpoint.products if product.scheme}
    small = decoder.layers[0].attention.cache_type != "NONE"
    return WrittenCheckpoint({path.name: path for path in folder.iterdir()}, proof, tuple(sorted(bits)), small)


def prove(path: Path, checkpoint: Checkpoint, packed: Packed, form: CheckpointFormat) -> Proof:
    """Compare the dequantized weights of a file with the judged ones, which products have bit for bit.

    Raises:
        JobError: a weight differs, or a table of float16 by more than its rounding.
    """
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return prove_weights(_stored(checkpoint, packed, form, file.get_tensor), _allowed_difference)


def _stored(checkpoint: Checkpoint, packed: Packed, form: CheckpointFormat, read: Read) -> Iterator[Stored]:
    for product in checkpoint.products:
        if product.scheme is None:
            yield _floats(f"{product.name}.weight", product.matrix, read)
            continue
        tensors = {end: read(f"{product.name}.{end}") for end in packed[product.name]}

        def unpack(rows: slice, tensors: Any = tensors, scheme: Any = product.scheme) -> NDArray[np.float64]:
            return form.unpack(tensors, scheme, rows)

        yield Stored(product.name, f"INT{product.scheme.bits}", product.matrix, unpack)
    for name, table in checkpoint.tables.items():
        yield _floats(f"{name}.weight", table, read)
    for name, vector in checkpoint.vectors.items():
        yield _floats(name, vector, read)


def _floats(name: str, judged: Matrix, read: Read) -> Stored:
    array = read(name)
    kind = {np.dtype(np.float16): "F16", np.dtype(np.float32): "F32"}[array.dtype]
    return Stored(name, kind, judged, lambda rows: np.asarray(array[rows], np.float64))


def _allowed_difference(matrix: Matrix, kind: str) -> NDArray[np.float64]:
    return float16_rounding(np.abs(matrix.values())) if kind == "F16" else np.zeros(matrix.shape)


def _save(checkpoint: Checkpoint, packed: Packed, path: Path, about: Mapping[str, str]) -> None:
    from safetensors.numpy import save_file

    floats: dict[str, Matrix] = {f"{name}.weight": table for name, table in checkpoint.tables.items()}
    floats |= {f"{one.name}.weight": one.matrix for one in checkpoint.products if one.scheme is None}
    floats |= checkpoint.vectors
    tensors = {name: _as_floats(matrix) for name, matrix in floats.items()}
    tensors |= {f"{name}.{end}": array for name, made in packed.items() for end, array in made.items()}
    # transformers reads only files that say so.
    save_file(tensors, path, {"format": "pt", **{f"quantgate.{key}": value for key, value in about.items()}})


def _as_floats(matrix: Matrix) -> NDArray[Any]:
    if isinstance(matrix, FloatMatrix):
        return np.ascontiguousarray(matrix.array, np.float32)
    with np.errstate(over="ignore"):  # an infinite value fails the proof
        return matrix.values().astype(np.float16)
