"""GGUF files: tensors as float32, and the byte-level tokenizer among their metadata."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from validators.errors import SourceError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Floats = NDArray[np.float32]

# Value types of the metadata (ggml-org/ggml, docs/gguf.md, `gguf_metadata_value_type`).
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9


@dataclass(frozen=True)
class Gguf:
    """A GGUF file in memory: `metadata` by key, and `tensors` by name, float32; matrices are [outputs, inputs]."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, Floats]


def _f32(raw: NDArray[np.uint8]) -> Floats:
    return raw.view("<f4").astype(np.float32)


def _f16(raw: NDArray[np.uint8]) -> Floats:
    return raw.view("<f2").astype(np.float32)


def _q4_1(raw: NDArray[np.uint8]) -> Floats:
    """Decode Q4_1 blocks: fp16 scale and minimum, then 16 bytes with value i in the low and i + 16 in the high half."""
    blocks = raw.reshape(-1, 20)
    step, least = _f16(blocks[:, 0:2].copy()), _f16(blocks[:, 2:4].copy())
    quants = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1)
    return quants.astype(np.float32) * step + least


def _q8_0(raw: NDArray[np.uint8]) -> Floats:
    """Decode Q8_0 blocks: fp16 scale, then 32 signed bytes."""
    blocks = raw.reshape(-1, 34)
    return blocks[:, 2:].copy().view(np.int8).astype(np.float32) * _f16(blocks[:, :2].copy())


# By `ggml_type` (ggml.h): values of a block, its bytes, and its decoder after the structs in ggml-common.h.
_ENCODINGS: dict[int, tuple[int, int, Callable[[NDArray[np.uint8]], Floats]]] = {
    0: (1, 4, _f32),
    1: (1, 2, _f16),
    3: (32, 20, _q4_1),
    8: (32, 34, _q8_0),
}


class _GgufReader:
    """Cursor over little-endian bytes that raises, with the position, if they end too early."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise _no_gguf(f"{len(self.data)} bytes", f"{count} more at byte {self.at}")
        self.at += count
        return self.data[self.at - count : self.at]

    def scalar(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        return self.take(self.scalar("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            item, count = self.scalar("I"), self.scalar("Q")
            return [self.value(item) for _ in range(count)]
        if kind not in _SCALARS:
            raise _no_gguf(f"a metadata value of type {kind}", f"one of {[*_SCALARS, _TEXT, _ARRAY]}")
        return self.scalar(_SCALARS[kind])


def read_gguf(data: bytes) -> Gguf:
    """Read a GGUF file of version 2 or 3 (ggml-org/ggml, docs/gguf.md) whose tensors are F32, F16, Q4_1 or Q8_0.

    Raises:
        SourceError: the bytes are not such a file, or are truncated.
    """
    reader = _GgufReader(data)
    magic, version = reader.take(4), reader.scalar("I")
    if magic != b"GGUF" or version not in (2, 3):
        raise _no_gguf(f"magic {magic!r} and version {version}", "magic b'GGUF' and version 2 or 3")
    tensor_count, metadata_count = reader.scalar("Q"), reader.scalar("Q")
    metadata = {reader.text(): reader.value(reader.scalar("I")) for _ in range(metadata_count)}
    infos = []
    for _ in range(tensor_count):
        name, dimensions = reader.text(), reader.scalar("I")
        shape = tuple(reader.scalar("Q") for _ in range(dimensions))[::-1]  # GGUF lists the fastest axis first
        infos.append((name, shape, reader.scalar("I"), reader.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    start = math.ceil(reader.at / alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in infos:
        reader.at = start + offset
        tensors[name] = _tensor(reader, name, shape, kind)
    return Gguf(metadata, tensors)


def _tensor(reader: _GgufReader, name: str, shape: tuple[int, ...], kind: int) -> Floats:
    if kind not in _ENCODINGS:
        raise _no_gguf(f"tensor {name} of ggml type {kind}", f"one of {sorted(_ENCODINGS)} (F32, F16, Q4_1, Q8_0)")
    block, block_bytes, decode = _ENCODINGS[kind]
    if shape[-1] % block:
        raise _no_gguf(f"tensor {name} with rows of {shape[-1]} values", f"a multiple of {block}")
    raw = np.frombuffer(reader.take(math.prod(shape) // block * block_bytes), np.uint8)
    return decode(raw).reshape(shape)


def _no_gguf(found: str, expected: str) -> SourceError:
    return SourceError(found=found, expected=f"a GGUF file: {expected}", fix="fetch the file again, or convert it anew")


def tokenizer_of(metadata: Mapping[str, Any]) -> Tokenizer:
    """Return the byte-level BPE tokenizer of a GGUF file; control tokens are not recognized in text.

    Each digit is a separate token, as in the tokenizer of SmolLM2 (`smollm` in llama.cpp's llama-vocab.cpp).
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
