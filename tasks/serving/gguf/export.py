"""The GGUF file of a variant, with what its users have to know."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path

import numpy as np

from tasks.serving.decoder.decoder_graph import read_decoder
from tasks.serving.decoder.graph_nodes import refusal
from tasks.serving.decoder.proof import Proof
from tasks.serving.gguf.blocks import kind_of
from tasks.serving.gguf.llama import FILE_TYPES, architecture_of, metadata_of, tensors_of
from tasks.serving.gguf.tokens import tokenizer_metadata
from tasks.serving.gguf.write import prove, write_gguf

MODEL, CONFIG = "model.onnx", "genai_config.json"
# `general.quantization_version` of the block types.
QUANTIZATION_VERSION = 2


@dataclass(frozen=True)
class GgufFile:
    """A written file, with the proof of its weights, and whether the variant keeps its attention cache in few bits."""

    path: Path
    architecture: str
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
    return GgufFile(path, architecture, proof, decoder.layers[0].attention.cache_type != "NONE")
