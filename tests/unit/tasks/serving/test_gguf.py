"""A decoder's weights on their way to a GGUF file: the bytes of blocks, the graph, the order of rows, the tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from tiny_decoder import BASE, EPSILON, HEAD_WIDTH, HEADS, INNER, KV_HEADS, TOKENS, WIDTH, tiny_weights, write_decoder

from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.tied import round_rows
from tasks.ptq.weight_only.int4_grid import round_to_nearest
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.serving.decoder.decoder_graph import DecoderWeights, read_decoder
from tasks.serving.decoder.matrices import BlockMatrix, FloatMatrix
from tasks.serving.gguf.blocks import allowed_difference, encode, kind_of
from tasks.serving.gguf.llama import architecture_of, interleaved, metadata_of, rotary_base, tensors_of
from tasks.serving.gguf.tokens import tokenizer_metadata
from validators.errors import JobError

CONFIG = {"model": {"type": "llama", "context_length": 32}}


def block(bits: int, codes: list[int], scale: float, zero: float) -> BlockMatrix:
    """One row of one block whose other codes are the zero point."""
    row = np.full((1, 32), int(zero), np.uint8)
    row[0, : len(codes)] = codes
    return BlockMatrix(bits, row, np.array([[scale]], np.float32), np.array([[zero]], np.float32))


@pytest.mark.parametrize(
    ("matrix", "kind", "head", "body"),
    [
        # 0.5 is 0x3800; values 0 and 1 in the low halves of the bytes 0 and 1, the zero point 8 in all the others.
        (block(4, [15, 0], 0.5, 8), "Q4_0", [0x00, 0x38], [0x8F, 0x80] + [0x88] * 14),
        (block(4, [15], -0.5, 8), "Q4_0", [0x00, 0xB8], [0x8F] + [0x88] * 15),
        # The least value is -3 * 0.5 = -1.5, 0xBE00.
        (block(4, [0, 15], 0.5, 3), "Q4_1", [0x00, 0x38, 0x00, 0xBE], [0x30, 0x3F] + [0x33] * 14),
        # Zero points of HQQ are fractions: -7.5 * 2 = -15, 0xCB80.
        (block(4, [0] * 32, 2.0, 7.5), "Q4_1", [0x00, 0x40, 0x80, 0xCB], [0x00] * 16),
        # Codes 255, 0 and 128 are 127, -128 and 0.
        (block(8, [255, 0], 0.25, 128), "Q8_0", [0x00, 0x34], [0x7F, 0x80] + [0x00] * 30),
    ],
)
def test_blocks_have_the_bytes_that_ggml_defines(
    matrix: BlockMatrix, kind: str, head: list[int], body: list[int]
) -> None:
    assert kind_of(matrix) == kind
    assert encode(matrix, kind).tolist() == [head + body]


def test_eight_bits_with_other_zero_points_become_float16() -> None:
    matrix = block(8, [255, 0], 0.25, 3)
    assert kind_of(matrix) == "F16"
    values = encode(matrix, "F16")
    assert values.dtype == np.float16 and values[0, :3].tolist() == [63.0, -0.75, 0.0]


@pytest.mark.parametrize(("bits", "zero"), [(4, 8), (4, 3), (8, 128)])
def test_larger_blocks_are_cut_and_repeat_their_scale(bits: int, zero: float) -> None:
    """The oracle is the same weight in blocks of 32 from the start."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 2**bits, (3, 128), dtype=np.uint8)
    scales = rng.uniform(0.1, 1, (3, 2)).astype(np.float32)
    large = BlockMatrix(bits, codes, scales, np.full((3, 2), zero, np.float32))
    small = BlockMatrix(bits, codes, np.repeat(scales, 2, axis=1), np.full((3, 4), zero, np.float32))
    np.testing.assert_array_equal(large.values(), small.values())
    assert kind_of(large) == kind_of(small)
    np.testing.assert_array_equal(encode(large, kind_of(large)), encode(small, kind_of(small)))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_of_the_graph_are_those_that_were_quantized(tmp_path: Path, symmetric: bool) -> None:
    """The oracle is the grid of the quantizer itself, before it was packed."""
    weights = tiny_weights()
    decoder = quantized(tmp_path, weights, symmetric=symmetric)
    assert len(decoder.layers) == 2 and decoder.epsilon == pytest.approx(EPSILON)
    np.testing.assert_array_equal(decoder.embedding.values(), weights["embed"].astype(np.float64))
    np.testing.assert_array_equal(decoder.gain, weights["norm"])
    for index, layer in enumerate(decoder.layers):
        parts = layer.projections
        packed = np.concatenate([part.matrix.values() for part in (parts.query, parts.key, parts.value)])
        assert parts.query.matrix.shape == (HEADS * HEAD_WIDTH, WIDTH)
        found = {"qkv": packed, **{name: getattr(layer, name).values() for name in ("gate", "up", "down")}}
        found["o"] = layer.output.values()
        for name, values in found.items():
            np.testing.assert_array_equal(values, rounded(weights[f"{index}.{name}"], symmetric), err_msg=name)
        np.testing.assert_array_equal(layer.input_gain, weights[f"{index}.input"])
        np.testing.assert_array_equal(layer.inner_gain, weights[f"{index}.post"])
    assert decoder.head is not None
    np.testing.assert_array_equal(decoder.head.values(), rounded(weights["head"], symmetric))


def quantized(folder: Path, weights: Any, *, symmetric: bool = True, size: int = 32, **changes: Any) -> DecoderWeights:
    """The decoder as read from a quantized graph."""
    source = write_decoder(folder / "float.onnx", weights, **changes)
    quantize_weights(source, folder / "model.onnx", BlockWeights("rtn", size, symmetric))
    return read_decoder(folder / "model.onnx")


def rounded(weight: NDArray[np.float32], symmetric: bool) -> NDArray[np.float64]:
    grid = round_to_nearest(weight.T, block_size=32, symmetric=symmetric, dtype=np.float32)
    return grid.dequantized().T


def test_a_tied_embedding_is_stored_once(tmp_path: Path) -> None:
    """In 8 bits with zero points, in float16; the oracle is the quantizer's own rounding."""
    weights = tiny_weights()
    decoder = quantized(tmp_path, weights, tied=True)
    assert decoder.head is None and "output.weight" not in dict(tensors_of(decoder, "llama"))
    rows = round_rows(weights["embed"], bits=8, block_size=32)
    zeros, scales = (np.repeat(part.astype(np.float64), 32, axis=1) for part in (rows.zero_points, rows.scales))
    np.testing.assert_array_equal(decoder.embedding.values(), (rows.codes - zeros) * scales)
    stored = encode(decoder.embedding, "F16").astype(np.float64)
    assert (np.abs(stored - decoder.embedding.values()) <= allowed_difference(decoder.embedding, "F16")).all()


def test_a_float_decoder_is_read_too(tmp_path: Path) -> None:
    decoder = read_decoder(write_decoder(tmp_path / "model.onnx", tiny_weights(), tied=True))
    assert decoder.head is None and {kind_of(matrix) for _, matrix in tensors_of(decoder, "llama")} == {"F32"}


def test_a_cache_in_few_bits_is_no_part_of_the_weights(tmp_path: Path) -> None:
    decoder = read_decoder(write_decoder(tmp_path / "model.onnx", tiny_weights(), k_quant_type="PER_TENSOR"))
    assert decoder.layers[0].attention.cache_type == "PER_TENSOR"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"size": 64}, "blocks of 64"),
        ({"act": "Tanh"}, "/1/silu of the graph, a Mul"),
        ({"local_window_size": 8}, "a GroupQueryAttention"),
        ({"rotary_interleaved": 1}, "a GroupQueryAttention"),
        ({"scale": 0.5}, "a GroupQueryAttention"),
        ({"softcap": 30.0}, "a GroupQueryAttention"),
    ],
)
def test_graphs_that_are_no_plain_decoder_are_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    with pytest.raises(JobError) as caught:
        quantized(tmp_path, tiny_weights(), **changes)
    assert found in caught.value.found


def test_int8_at_run_time_and_inserted_factors_are_refused(tmp_path: Path) -> None:
    source = write_decoder(tmp_path / "float.onnx", tiny_weights())
    quantize_dynamic(source, tmp_path / "int8.onnx", weights=Int8Weights(True, 8, "rtn"))
    with pytest.raises(JobError) as caught:
        read_decoder(tmp_path / "int8.onnx")
    assert "activations quantized at run time" in caught.value.found
    model = onnx.load(source)
    (product,) = [node for node in model.graph.node if node.name == "/0.o"]
    factors = onnx.helper.make_node("Mul", [product.input[0], "0.input"], ["scaled"], name="/0.o_factors")
    product.input[0] = "scaled"
    model.graph.node.insert(list(model.graph.node).index(product), factors)
    onnx.save(model, tmp_path / "awq.onnx")
    with pytest.raises(JobError) as caught:
        read_decoder(tmp_path / "awq.onnx")
    assert "/0.o_factors" in caught.value.found


def test_sizes_are_those_of_the_graph(tmp_path: Path) -> None:
    decoder = quantized(tmp_path, tiny_weights())
    assert metadata_of(decoder, "llama", CONFIG) == {
        "llama.vocab_size": TOKENS,
        "llama.context_length": 32,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 2,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.key_length": HEAD_WIDTH,
        "llama.attention.value_length": HEAD_WIDTH,
        "llama.attention.layer_norm_rms_epsilon": pytest.approx(EPSILON),
        "llama.rope.dimension_count": HEAD_WIDTH,
        "llama.rope.freq_base": BASE,
    }


def test_scaled_angles_become_divisors(tmp_path: Path) -> None:
    """As of Llama 3.1; the architecture qwen2 has none in llama.cpp."""
    decoder = quantized(tmp_path, tiny_weights(), slower=8.0)
    divisors = dict(tensors_of(decoder, "llama"))["rope_freqs.weight"].values()
    np.testing.assert_allclose(divisors, [1.0] * 4 + [8.0] * 4, rtol=1e-5)
    with pytest.raises(JobError) as caught:
        metadata_of(decoder, "qwen2", CONFIG)
    assert "scaled rotary angles" in caught.value.found


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6, 123.4])
def test_the_base_of_angles_is_found_in_float32(base: float) -> None:
    frequencies = (base ** -(np.arange(32) / 32)).astype(np.float32).astype(np.float64)
    found, divisors = rotary_base(frequencies)
    assert found == pytest.approx(base, rel=1e-6) and divisors is None


def test_reordered_heads_turn_as_the_halves_do() -> None:
    """Neighbours turned in reordered rows give the products of q and k that halves turned in the rows of transformers give."""
    rng = np.random.default_rng(0)
    q, k = (rng.normal(size=HEAD_WIDTH) for _ in range(2))
    turns = BASE ** -(np.arange(HEAD_WIDTH // 2) / (HEAD_WIDTH // 2))
    halves = turned(q, 3 * turns) @ turned(k, 5 * turns)
    order = interleaved(1, HEAD_WIDTH)
    pairs = [np.stack([part[order][0::2], part[order][1::2]]).reshape(-1) for part in (q, k)]
    assert turned(pairs[0], 3 * turns) @ turned(pairs[1], 5 * turns) == pytest.approx(halves)
    assert sorted(interleaved(3, 8)) == list(range(24)) and interleaved(2, 8)[:4].tolist() == [0, 4, 1, 5]


def turned(x: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn element i with element i + half."""
    a, b = np.split(x, 2)
    return np.concatenate([a * np.cos(by) - b * np.sin(by), b * np.cos(by) + a * np.sin(by)])


def test_only_llama_has_reordered_rows(tmp_path: Path) -> None:
    decoder = read_decoder(write_decoder(tmp_path / "model.onnx", tiny_weights()))
    query = decoder.layers[0].projections.query.matrix
    for architecture, order in (("llama", interleaved(HEADS, HEAD_WIDTH)), ("qwen2", np.arange(WIDTH))):
        stored = dict(tensors_of(decoder, architecture))["blk.0.attn_q.weight"]
        assert isinstance(stored, FloatMatrix) and isinstance(query, FloatMatrix)
        np.testing.assert_array_equal(stored.array, query.array[order])
    with pytest.raises(JobError) as caught:
        architecture_of({"model": {"type": "phi3"}})
    assert "phi3" in caught.value.found and "--genai" in caught.value.fix


LETTERS = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
DIGITS = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, LETTERS]}
FIRST = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}},
}


def tokenizer(folder: Path, *, settings: dict[str, Any] | None = None, **changes: Any) -> Path:
    model = {"type": "BPE", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "b": 3, "ab": 4}, "merges": [["a", "b"]]}
    told = {
        "added_tokens": [{"id": index, "content": text, "special": True} for index, text in ((0, "<s>"), (1, "</s>"))],
        "pre_tokenizer": LETTERS,
        "model": model | changes.pop("model", {}),
    }
    (folder / "tokenizer.json").write_text(json.dumps(told | changes))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings or {}))
    return folder


def test_the_tokenizer_becomes_metadata(tmp_path: Path) -> None:
    settings = {"eos_token": {"content": "</s>"}, "chat_template": "{{ messages }}"}
    folder = tokenizer(tmp_path, settings=settings, pre_tokenizer=DIGITS, post_processor=FIRST)
    assert tokenizer_metadata(folder, 6, {"bos_token_id": 0, "eos_token_id": [4, 1], "pad_token_id": 1}) == {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b", "ab", "[PAD5]"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 5],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 0,
        # Of several ends, the one that the tokenizer names.
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": "{{ messages }}",
    }
    (folder / "chat_template.jinja").write_text("from a file")
    assert tokenizer_metadata(folder, 5, {})["tokenizer.chat_template"] == "from a file"
    assert tokenizer_metadata(tokenizer(folder), 5, {})["tokenizer.ggml.pre"] == "gpt-2"


@pytest.mark.parametrize(
    "written",
    [
        *("", "[]", "[" * 200_000, f"[{'[],' * 4_000_000}[]]", "\ud800", '{"model": 1}', '{"model": {"type": "BPE"}}'),
        {"model": {"vocab": {"a": "x"}}},
        {"model": {"merges": 5}},
        {"added_tokens": [{"id": 0}]},
        {"pre_tokenizer": {"pretokenizers": [5]}},
        {"settings": ["a"]},
        {"settings": {"chat_template": [{}]}},
        {"post_processor": {"processors": [{"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "b"}}]}]}},
        {"post_processor": FIRST, "model": {"vocab": {"a": 0}}, "added_tokens": []},
    ],
    ids=lambda written: str(written)[:40],
)
def test_a_hostile_tokenizer_is_refused(tmp_path: Path, written: Any) -> None:
    changes = {} if isinstance(written, str) else dict(written)
    tokenizer(tmp_path, **changes)
    if isinstance(written, str):
        (tmp_path / "tokenizer.json").write_text(written, errors="surrogatepass")
    with pytest.raises(JobError) as caught:
        tokenizer_metadata(tmp_path, 5, {})
    assert "tokenizer" in caught.value.found and len(str(caught.value)) <= 2000


@pytest.mark.parametrize(
    ("changes", "rows", "found"),
    [
        ({"model": {"type": "Unigram"}}, 5, "SentencePiece"),
        ({"model": {"byte_fallback": True}}, 5, "SentencePiece"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, 5, "SentencePiece"),
        ({"model": {"type": "WordPiece"}}, 5, "WordPiece"),
        ({"model": {"ignore_merges": True}}, 5, "cuts text by ByteLevel words"),
        ({"pre_tokenizer": LETTERS | {"add_prefix_space": True}}, 5, "SentencePiece"),
        ({"normalizer": {"type": "Lowercase"}}, 5, "after Lowercase"),
        ({}, 4, "the token 4, and an embedding of 4"),
    ],
)
def test_tokenizers_that_llama_cpp_has_no_name_for(
    tmp_path: Path, changes: dict[str, Any], rows: int, found: str
) -> None:
    with pytest.raises(JobError) as caught:
        tokenizer_metadata(tokenizer(tmp_path, **changes), rows, {})
    assert found in caught.value.found
