"""The language demo and the Llama of the benchmarks: both are Llama, articles do not leak, the perplexity is right."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import language
from models.language import windows_of
from models.llama import Llama, LlamaShape, exported, fold_gains, halves_apart, load_model, rotary_tables, rotate
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from tasks.demo.articles import Windows, prose, read_articles, split_articles, spread_windows
from tasks.demo.language import decoder_of, quiet_transformers, read_gguf, tokenizer_of
from tasks.measure.metrics.perplexity import perplexity
from validators.errors import SourceError

Floats = NDArray[np.float64]
# 400 x 24 embeddings are as many as the exporter leaves alone: it would store smaller ones transposed as well.
SHAPE = LlamaShape(
    vocabulary=400,
    positions=24,
    width=24,
    heads=6,
    kv_heads=2,
    head_width=4,
    inner_width=10,
    layers=2,
    norm_epsilon=1e-5,
    rope_theta=100.0,
)
METADATA = {
    "general.architecture": "llama",
    "llama.vocab_size": 400,
    "llama.context_length": 24,
    "llama.embedding_length": 24,
    "llama.attention.head_count": 6,
    "llama.attention.head_count_kv": 2,
    "llama.rope.dimension_count": 4,
    "llama.feed_forward_length": 10,
    "llama.block_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 100.0,
}


def checkpoint(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Random weights under the names of a GGUF file, matrices [outputs, inputs], sized by SHAPE."""
    query, key = SHAPE.heads * SHAPE.head_width, SHAPE.kv_heads * SHAPE.head_width
    sizes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (SHAPE.vocabulary, SHAPE.width),
        "output_norm.weight": (SHAPE.width,),
    }
    for layer in (f"blk.{index}" for index in range(SHAPE.layers)):
        sizes |= {f"{layer}.attn_norm.weight": (SHAPE.width,), f"{layer}.ffn_norm.weight": (SHAPE.width,)}
        sizes |= {f"{layer}.attn_q.weight": (query, SHAPE.width), f"{layer}.attn_output.weight": (SHAPE.width, query)}
        sizes |= {f"{layer}.attn_{name}.weight": (key, SHAPE.width) for name in "kv"}
        sizes |= {f"{layer}.ffn_{name}.weight": (SHAPE.inner_width, SHAPE.width) for name in ("gate", "up")}
        sizes[f"{layer}.ffn_down.weight"] = (SHAPE.width, SHAPE.inner_width)
    rng = np.random.default_rng(seed)
    return {name: (rng.normal(size=size) / 2).astype(np.float32) for name, size in sizes.items()}


def reference(weights: dict[str, Floats], ids: NDArray[np.int64]) -> Floats:
    """Llama in float64 for one text, int64 [tokens] to [tokens, vocabulary].

    Rotary embeddings as complex numbers of neighbouring pairs (the paper's form, which is that of GGUF files), keys and
    values repeated for each query head, and for each position only the positions up to it.
    """

    def norm(x: Floats, name: str) -> Floats:
        mean = (x**2).mean(-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + SHAPE.norm_epsilon) * weights[f"{name}.weight"])

    def turned(x: Floats) -> Floats:
        pairs = x[:, 0::2] + 1j * x[:, 1::2]
        frequency = SHAPE.rope_theta ** (-np.arange(0, SHAPE.head_width, 2) / SHAPE.head_width)
        pairs = pairs * np.exp(1j * np.outer(np.arange(len(x)), frequency))
        return np.stack([pairs.real, pairs.imag], axis=-1).reshape(x.shape)

    def attention(x: Floats, layer: str) -> Floats:
        query, key, value = (
            (x @ weights[f"{layer}.attn_{name}.weight"].T).reshape(len(x), -1, SHAPE.head_width) for name in "qkv"
        )
        repeats = SHAPE.heads // SHAPE.kv_heads
        key, value = np.repeat(key, repeats, axis=1), np.repeat(value, repeats, axis=1)
        mixed = np.empty_like(query)
        for head in range(SHAPE.heads):
            q, k = turned(query[:, head]), turned(key[:, head])
            for position in range(len(x)):
                scores = k[: position + 1] @ q[position] / np.sqrt(SHAPE.head_width)
                mixed[position, head] = softmax(scores) @ value[: position + 1, head]
        return np.asarray(mixed.reshape(len(x), -1) @ weights[f"{layer}.attn_output.weight"].T)

    x = weights["token_embd.weight"][ids]
    for layer in (f"blk.{index}" for index in range(SHAPE.layers)):
        x = x + attention(norm(x, f"{layer}.attn_norm"), layer)
        normed = norm(x, f"{layer}.ffn_norm")
        gate, up = (normed @ weights[f"{layer}.ffn_{name}.weight"].T for name in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{layer}.ffn_down.weight"].T
    return np.asarray(norm(x, "output_norm") @ weights["token_embd.weight"].T)


def tokens(*shape: int, seed: int = 3) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(0, SHAPE.vocabulary, shape)


def logits(model: Llama, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    import torch

    with torch.inference_mode():
        return np.asarray(model(torch.from_numpy(ids)))


@pytest.fixture
def model() -> Llama:
    return load_model(METADATA, checkpoint())


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of the small model, gains folded."""
    folded = load_model(METADATA, checkpoint())
    fold_gains(folded)
    path = tmp_path_factory.mktemp("llama") / "language.onnx"
    onnx.save(exported(folded), path)
    return path


def test_the_decoder_is_llama(model: Llama) -> None:
    weights = {name: array.astype(np.float64) for name, array in checkpoint().items()}
    ids = tokens(3, 11)
    np.testing.assert_allclose(logits(model, ids), [reference(weights, row) for row in ids], atol=2e-5)


def test_the_decoder_of_transformers_is_llama_with_folded_gains() -> None:
    import torch

    for name in ("gguf", "transformers"):
        pytest.importorskip(name, reason="the extra `genai`")
    with quiet_transformers():
        demo = decoder_of(METADATA, checkpoint())
    weights = {name: array.astype(np.float64) for name, array in checkpoint().items()}
    ids = tokens(3, 11)
    with torch.inference_mode():
        found = demo(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(found, [reference(weights, row) for row in ids], atol=2e-5)
    state = {name: tensor.numpy() for name, tensor in demo.state_dict().items()}
    gains = {name: gain for name, gain in state.items() if name.endswith("layernorm.weight")}
    assert len(gains) == 2 * SHAPE.layers and all((gain == 1).all() for gain in gains.values())
    first = checkpoint()
    np.testing.assert_array_equal(state["model.norm.weight"], first["output_norm.weight"])
    np.testing.assert_array_equal(
        state["model.layers.0.mlp.up_proj.weight"], first["blk.0.ffn_up.weight"] * first["blk.0.ffn_norm.weight"]
    )


def test_a_later_token_changes_no_earlier_logits(model: Llama) -> None:
    ids = tokens(1, 12)
    before = logits(model, ids)[0]
    for position in range(12):
        changed = ids.copy()
        changed[0, position] = (changed[0, position] + 1) % SHAPE.vocabulary
        after = logits(model, changed)[0]
        np.testing.assert_array_equal(after[:position], before[:position])
        assert (np.abs(after[position:] - before[position:]).max(axis=-1) > 1e-4).all()


def test_folding_changes_the_weights_and_not_the_function(model: Llama) -> None:
    ids = tokens(2, 20)
    before, query = logits(model, ids), model.get_parameter("layers.0.attention.query.weight").clone()
    assert fold_gains(model) == 2 * SHAPE.layers
    np.testing.assert_allclose(logits(model, ids), before, atol=1e-4)
    gain = checkpoint()["blk.0.attn_norm.weight"]
    folded = model.get_parameter("layers.0.attention.query.weight")
    np.testing.assert_allclose(folded, gain[:, None] * query.numpy(), rtol=1e-6)
    assert [name for name, _ in model.named_parameters() if name.endswith("gain")] == ["norm.gain"]
    assert fold_gains(model) == 0
    np.testing.assert_allclose(logits(model, ids), before, atol=1e-4)


@given(
    position=st.integers(0, 8191), half=st.integers(1, 16), theta=st.sampled_from([1e4, 1e5]), seed=st.integers(0, 9)
)
def test_rotation_is_multiplication_by_a_complex_number(position: int, half: int, theta: float, seed: int) -> None:
    import torch

    x = np.random.default_rng(seed).normal(size=2 * half)
    cosine, sine = (table[position:] for table in rotary_tables(position + 1, 2 * half, theta))
    got = rotate(torch.from_numpy(x)[None].float(), cosine, sine).numpy()[0]
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * position * theta ** (-np.arange(half) / half))
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag]), atol=1e-5)


def test_rows_of_heads_come_apart_into_halves() -> None:
    import torch

    rows = torch.arange(12)[:, None]  # two heads of three pairs
    assert halves_apart(rows, heads=2).flatten().tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_a_checkpoint_of_another_size_is_refused() -> None:
    weights = checkpoint()
    with pytest.raises(RuntimeError, match="inner_norm"):
        load_model(METADATA, weights | {"blk.1.ffn_norm.weight": np.ones(23, np.float32)})
    with pytest.raises(KeyError, match=r"blk\.1\.ffn_up"):
        load_model(METADATA, {name: array for name, array in weights.items() if name != "blk.1.ffn_up.weight"})
    with pytest.raises(SourceError, match="mamba"):
        load_model(METADATA | {"general.architecture": "mamba"}, weights)


def test_the_export_has_dynamic_axes_and_plain_weights(program: Path) -> None:
    proto = onnx.load(program)
    assert (proto.ir_version, proto.opset_import[0].version) == (10, 21)
    axes = {
        item.name: [d.dim_param or d.dim_value for d in item.type.tensor_type.shape.dim] for item in proto.graph.input
    }
    assert axes == {"input_ids": ["batch", "sequence"]}
    weights = {initializer.name: initializer for initializer in proto.graph.initializer}
    linear = [node for node in proto.graph.node if node.op_type == "MatMul" and node.input[1] in weights]
    assert len(linear) == 7 * SHAPE.layers
    assert all(f"{node.name}.weight" == node.input[1] for node in linear)
    # The tied embedding lies in the file once: looked up in, and transposed for the head.
    size = SHAPE.vocabulary * SHAPE.width
    assert [name for name, item in weights.items() if np.prod(item.dims) == size] == ["tokens.weight"]


def test_onnx_runtime_computes_the_same_for_any_batch_and_length(program: Path, model: Llama) -> None:
    with language.open_scorer(program, threads=1) as score:
        for shape in ((1, 1), (1, 24), (3, 7)):
            np.testing.assert_allclose(score(tokens(*shape)), logits(model, tokens(*shape)), atol=1e-4)


def test_windows_are_scored_one_at_a_time() -> None:
    rng = np.random.default_rng(8)
    windows, scores = rng.integers(0, 6, (3, 5)), rng.normal(size=(3, 5, 6)).astype(np.float32) * 30
    asked: list[list[int]] = []

    def score(ids: Windows) -> NDArray[np.float32]:
        asked.extend(ids.tolist())
        return scores[len(asked) - 1][None]

    losses = language.window_losses(score, windows)
    likely = log_softmax(scores[:, :-1].astype(np.float64), axis=-1)
    expected = -np.take_along_axis(likely, windows[:, 1:, None], axis=-1)[..., 0].mean(axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert asked == windows.tolist()


# Blocks by hand. Q4_1: step 0.5, least -2, bytes 0x?0 + i with high halves 15 - i. Q8_0: step 0.25, values -16 to 15.
Q4_1_BLOCK = struct.pack("<2e16B", 0.5, -2.0, *(i | (15 - i) << 4 for i in range(16)))
Q4_1_VALUES = [i * 0.5 - 2 for i in range(16)] + [(15 - i) * 0.5 - 2 for i in range(16)]
Q8_0_BLOCK = struct.pack("<e32b", 0.25, *range(-16, 16))
Q8_0_VALUES = [i * 0.25 for i in range(-16, 16)]


def text_of(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_file(tensors: dict[str, tuple[int, tuple[int, ...], bytes]]) -> bytes:
    """A GGUF file with one value of each kind that is used, and `tensors` by name: type, dimensions as stored, bytes."""
    values = [
        text_of("general.name") + struct.pack("<I", 8) + text_of("naïve"),
        text_of("count") + struct.pack("<II", 4, 7),
        text_of("rate") + struct.pack("<If", 6, 0.5),
        text_of("flag") + struct.pack("<I?", 7, True),
        text_of("words") + struct.pack("<IIQ", 9, 8, 2) + text_of("a") + text_of("bc"),
        text_of("kinds") + struct.pack("<IIQ3i", 9, 5, 3, -1, 0, 1),
    ]
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values)
    data = b""
    for name, (kind, dimensions, raw) in tensors.items():
        data += b"\0" * (-len(data) % 32)
        header += text_of(name) + struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, kind, len(data))
        data += raw
    return header + b"\0" * (-len(header) % 32) + data


GGUF = gguf_file(
    {
        "plain": (0, (3, 2), struct.pack("<6f", 1, 2, 3, 4, 5, 6)),
        "half": (1, (2,), struct.pack("<2e", -0.5, 8)),
        "four": (3, (64, 1), Q4_1_BLOCK + struct.pack("<2e16B", 1, 0, *[0x21] * 16)),
        "eight": (8, (32,), Q8_0_BLOCK),
    }
)


def test_a_gguf_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gguf", reason="the extra `genai`")
    monkeypatch.setattr("tasks.demo.language.fetch", lambda asset, state: state / "a.whl")
    monkeypatch.setattr("tasks.demo.language.read_wheel", lambda path, member: GGUF)
    metadata, tensors = read_gguf(tmp_path)
    assert {key: value for key, value in metadata.items() if not key.startswith("GGUF.")} == {
        "general.name": "naïve",
        "count": 7,
        "rate": 0.5,
        "flag": True,
        "words": ["a", "bc"],
        "kinds": [-1, 0, 1],
    }
    assert {name: array.tolist() for name, array in tensors.items()} == {
        "plain": [[1, 2, 3], [4, 5, 6]],
        "half": [-0.5, 8],
        "four": [[*Q4_1_VALUES, *[1.0] * 16, *[2.0] * 16]],
        "eight": Q8_0_VALUES,
    }
    assert {array.dtype for array in tensors.values()} == {np.dtype(np.float32)}


def test_text_becomes_tokens_by_merges_and_single_digits() -> None:
    words = ["<|end|>", "Ġ", "a", "b", "1", "2", "ab", "Ġab", "Ã", "¯", "12"]
    tokenizer = tokenizer_of({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": ["a b", "Ġ ab", "1 2"]})
    encoded = tokenizer.encode("ab ab12ï")
    assert encoded.tokens == ["ab", "Ġab", "1", "2", "Ã", "¯"]
    assert tokenizer.decode(encoded.ids) == "ab ab12ï"


LONG = "long enough to be a paragraph of prose and no caption, label, or leftover of a table " * 2


def page(title: str, text: str, namespace: int = 0) -> str:
    return f'<page>\n<title>{title}</title>\n<ns>{namespace}</ns>\n<text xml:space="preserve">{text}</text>\n</page>'


def test_articles_are_prose_by_title() -> None:
    xml = page("A &amp; B", f"'''A''' &amp;amp; B is {LONG}") + page("Old", "#REDIRECT [[New]]")
    xml += page("Help", LONG, namespace=4) + page("C", LONG)
    assert read_articles(xml) == {"A & B": f"A & B is {LONG.strip()}", "C": LONG.strip()}


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (
            f"See [[self-governance|self-governed]] [[city|cities]] and [[Rome]]: {LONG}",
            "See self-governed cities and Rome: ",
        ),
        (f"{{{{box|x={{{{inner|y}}}}}}}}So{{{{cite|z}}}} it is {LONG}", "So it is "),
        (f'A<ref name="b" /> and<ref>A [[note]] <br/>of b</ref> c<!-- hidden\n -->: {LONG}', "A and c: "),
        (f"[[File:a.jpg|thumb|A [[link]] in it]][[Category:All]]The {LONG}", "The "),
        (f"{{|\n| cell {LONG}\n{{|\n| nested\n|}}\nstill a cell {LONG}\n|}}\nAfter {LONG}", "After "),
        (f"* item {LONG}\n== Heading {LONG} ==\n: indented {LONG}\nshort\nLast {LONG}", "Last "),
        (f"''In'' a [https://x.org/y site] with<math>a^2</math> {LONG}", "In a site with "),
    ],
)
def test_prose_is_what_a_reader_sees(markup: str, text: str) -> None:
    assert prose(markup) == (text + LONG).strip()


def test_windows_are_whole_runs_of_one_article() -> None:
    words = ["a", "b"]
    tokenizer: Any = tokenizer_of({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": []})
    windows = windows_of(["a" * 1100, "b" * 511, "b" * 512, "ab" * 256], tokenizer, seed=1)
    assert windows.shape == (4, 512) and windows.dtype == np.int64
    assert sorted((int(row.sum()), int(row[0])) for row in windows) == [(0, 0), (0, 0), (256, 0), (512, 1)]


def test_windows_are_spread_over_the_articles() -> None:
    """A long article gives no more than the others, as long as these have windows."""
    words = ["a", "b", "c", "d"]
    tokenizer: Any = tokenizer_of({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": []})
    texts = ["a" * 80, "b" * 20, "c" * 9, "d" * 45]
    windows, articles = spread_windows(texts, tokenizer, length=10, count=8, seed=3)
    assert windows.shape == (8, 10) and windows.dtype == np.int64
    # Windows of one word each: that of their article. The third article has none.
    assert all((row == article).all() for row, article in zip(windows, articles, strict=True))
    assert sorted(articles[:3]) == [0, 1, 3] and sorted(articles[3:6]) == [0, 1, 3] and sorted(articles[6:]) == [0, 3]
    assert len(spread_windows(texts, tokenizer, length=10, count=99, seed=3)[0]) == 8 + 2 + 4


@given(count=st.integers(5, 60), seed=st.integers(0, 99))
def test_no_article_is_on_both_sides(count: int, seed: int) -> None:
    articles = {f"title {index}": f"text {index}" for index in range(count)}
    calibration, evaluation = split_articles(articles, seed)
    assert sorted(calibration + evaluation) == sorted(articles.values())
    assert abs(len(calibration) - 0.4 * count) <= 0.5
    assert (calibration, evaluation) == split_articles(dict(reversed(articles.items())), seed)


@pytest.mark.slow
def test_the_language_demo(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra `genai`")
    pool = language.language_pool(tmp_path)
    assert pool.calibration.shape[1] == pool.evaluation.shape[1] == 512
    assert len(pool.calibration) >= 128 and len(pool.evaluation) >= 128
    shared = {row.tobytes() for row in pool.calibration} & {row.tobytes() for row in pool.evaluation}
    assert not shared
    with language.open_scorer(pool.model, threads=2) as score:
        losses = language.window_losses(score, pool.evaluation[:6])
    # Any mistake in the weights' layout, the rotation or the tokens gives hundreds at least.
    assert 15 < perplexity(losses) < 25
    pool.model.unlink()  # pytest keeps the folders of its last runs, and this file is 540 MB
