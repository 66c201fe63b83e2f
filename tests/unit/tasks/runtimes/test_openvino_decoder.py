"""Decoders in OpenVINO, beside ONNX Runtime, which computes the same file as the model builder's library does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tiny_decoder import CONTEXT, HEAD_WIDTH, KV_HEADS, TOKENS, tiny_weights, write_decoder

from tasks.engines.openvino_decoder.session import open_model
from tasks.engines.openvino_decoder.shipped import model as decoder_model
from tasks.engines.openvino_decoder.shipped.model import OpenVinoDecoder
from tasks.ptq.eight_bit.tied import untie
from tasks.ptq.graph.rotate import rotate
from tasks.ptq.weight_only.matmul_nbits import BlockForm, BlockWeights, plan_weights, quantize_weights
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings
from validators.target_facts import OPENVINO_DECODER

OPTIONS = {
    "new_tokens": "6",
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}
SETTINGS = SessionSettings(OPENVINO_DECODER, 1, provider_options=OPTIONS)


def written(folder: Path, **attention: Any) -> Path:
    """A decoder with its configuration, whose softmax is sharp enough that each key matters."""
    path = folder / "model.onnx"
    write_decoder(path, tiny_weights(3), **attention)
    return configured(path)


def configured(path: Path, **decoder: Any) -> Path:
    config = {"model": {"context_length": CONTEXT, "vocab_size": TOKENS, "decoder": decoder}}
    path.with_name("genai_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def windows(rows: int, length: int) -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, TOKENS, (rows, length))


def expected(path: Path, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """The logits of whole windows in ONNX Runtime."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    rows, length = tokens.shape
    feed: dict[str, Any] = {
        "input_ids": tokens,
        "seqlens": np.full(rows, length - 1, np.int32),
        "total": np.array(length, np.int32),
    }
    for value in session.get_inputs():
        if value.name.startswith("past."):
            feed[value.name] = np.zeros((rows, KV_HEADS, 0, HEAD_WIDTH), np.float32)
    return np.asarray(session.run(["logits"], feed)[0])


@pytest.mark.parametrize(
    "attention",
    [{}, {"local_window_size": 5}, {"scale": 0.5}, {"do_rotary": 0}],
    ids=["plain", "window", "scale", "no rotation"],
)
def test_scores_through_the_cache_are_those_of_onnx_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: dict[str, Any]
) -> None:
    path, tokens = written(tmp_path, **attention), windows(3, 20)
    # Parts of 7, 7 and 6 tokens: the later ones read what the earlier ones left.
    monkeypatch.setattr(decoder_model, "PART", 7)
    with open_runner(path, SETTINGS) as runner:
        (found,) = runner.run({"input_ids": tokens}, ["logits"])
    assert found.dtype == np.float32 and found.shape == (3, 20, TOKENS)
    np.testing.assert_allclose(found, expected(path, tokens), atol=2e-4)


def test_weights_in_several_forms_score_as_in_onnx_runtime(tmp_path: Path) -> None:
    """INT4 in blocks of 32, 64 and 128 beside INT8, as a search mixes them."""
    path, tokens = written(tmp_path), windows(3, 20)
    plain = expected(path, tokens)
    weights = BlockWeights("rtn", 32, True, accuracy_level=0)
    cycled = [BlockForm(4, 64), BlockForm(8, 128), BlockForm(4, 128), BlockForm(4, 32)]
    names = [site.node.name for site in plan_weights(onnx.load(path).graph, weights).sites]
    forms = dict(zip(names, cycle(cycled), strict=False))
    report = quantize_weights(path, path, replace(weights, forms=forms))
    assert set(report.quantized.values()) == {4, 8}
    with open_runner(path, SETTINGS) as runner:
        (found,) = runner.run({"input_ids": tokens}, ["logits"])
    np.testing.assert_allclose(found, expected(path, tokens), atol=2e-4)
    assert np.abs(found - plain).max() > 0.1


@pytest.mark.parametrize(("layers", "windows_at"), [([], [0, 1]), ([1], [1])])
def test_a_window_of_the_configuration_is_one_of_the_graph(
    tmp_path: Path, layers: list[int], windows_at: list[int]
) -> None:
    """onnxruntime-genai slides its caches, so that the graph of its model builder says nothing of the window."""
    tokens = windows(2, 20)
    path = configured(written(tmp_path), sliding_window={"window_size": 5, "layers": layers})
    proto = onnx.load(path)
    nodes = [node for node in proto.graph.node if node.op_type == "GroupQueryAttention"]
    for layer in windows_at:
        nodes[layer].attribute.append(onnx.helper.make_attribute("local_window_size", 5))
    onnx.save(proto, tmp_path / "windowed.onnx")
    found = OpenVinoDecoder(path, 1, OPTIONS).scores(tokens)
    np.testing.assert_allclose(found, expected(tmp_path / "windowed.onnx", tokens), atol=2e-4)
    assert np.abs(found - expected(path, tokens)).max() > 0.1


def greedy(path: Path, tokens: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The likeliest tokens one by one, each from the whole text before it."""
    whole = tokens
    for _ in range(count):
        whole = np.concatenate([whole, expected(path, whole)[:, -1:].argmax(axis=2)], axis=1)
    return whole[:, tokens.shape[1] :]


def test_answers_are_the_likeliest_tokens_of_each_row(tmp_path: Path) -> None:
    path, prompts = written(tmp_path), windows(4, 9)
    decoder = OpenVinoDecoder(path, 1, OPTIONS)
    found = decoder.generate(prompts)
    assert found.dtype == np.int32 and found.shape == (4, 6)
    np.testing.assert_array_equal(found, greedy(path, prompts, 6))
    # Without what follows an end, it stops where the last text ends.
    decoder.config["eos_token_id"] = found[:, 1].tolist()
    ended = decoder.generate(prompts, past_end=False)
    assert ended.shape[1] < 6 and np.isin(ended, found[:, 1]).any(axis=1).all()
    np.testing.assert_array_equal(ended, found[:, : ended.shape[1]])
    # Other prompts in the same request find an empty cache.
    np.testing.assert_array_equal(decoder.generate(prompts[:1, :4], 3), greedy(path, prompts[:1, :4], 3))


def test_threads_answer_at_once_with_caches_of_their_own(tmp_path: Path) -> None:
    path, prompts = written(tmp_path), windows(6, 8)
    decoder = OpenVinoDecoder(path, 1, OPTIONS)
    one_by_one = [decoder.generate(prompt[None]) for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        together = [*pool.map(lambda prompt: decoder.generate(prompt[None]), prompts)]
    np.testing.assert_array_equal(together, one_by_one)
    assert len({row.tobytes() for row in one_by_one}) > 1


def test_an_abandoned_answer_leaves_no_tokens_behind(tmp_path: Path) -> None:
    path, prompts = written(tmp_path), windows(2, 8)
    decoder = OpenVinoDecoder(path, 1, OPTIONS)
    before = decoder.generate(prompts)
    answer: Iterator[NDArray[np.int64]] = decoder.follow(prompts[:, ::-1], 5)
    next(answer)
    del answer
    np.testing.assert_array_equal(decoder.generate(prompts), before)


@pytest.mark.parametrize(("bits", "tied"), [(4, False), (4, True), (8, True)])
def test_blocks_of_weights_are_multiplied_as_they_are_stored(tmp_path: Path, bits: Any, tied: bool) -> None:
    whole = tmp_path / "float.onnx"
    write_decoder(whole, tiny_weights(3), tied=tied)
    path = tmp_path / "model.onnx"
    # Without rounding of activations on either side.
    quantize_weights(whole, path, BlockWeights("rtn", 32, symmetric=True, bits=bits, accuracy_level=0))
    tokens, size = windows(2, 12), path.stat().st_size
    wanted = expected(path, tokens)
    assert np.abs(wanted - expected(whole, tokens)).max() > 0.05
    # Codes, scales and zero points of the head are constants of their own.
    assert untie(path) == (3 if tied else 0)
    assert (path.stat().st_size > size) == tied
    np.testing.assert_array_equal(expected(path, tokens), wanted)
    with open_runner(configured(path), SETTINGS) as runner:
        (found,) = runner.run({"input_ids": tokens}, ["logits"])
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_a_rotated_decoder_scores_alike(tmp_path: Path) -> None:
    path, tokens = written(tmp_path, tied=True), windows(2, 12)
    wanted = expected(path, tokens)
    rotate(path, path, 7)
    with open_runner(path, SETTINGS) as runner:
        (found,) = runner.run({"input_ids": tokens}, ["logits"])
    np.testing.assert_allclose(found, wanted, atol=2e-3)


def test_caches_in_fewer_bits_lose_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tokens = written(tmp_path), windows(4, 30)
    # The tokens of one part read each other before they are stored.
    monkeypatch.setattr(decoder_model, "PART", 7)
    scores = {
        kind: OpenVinoDecoder(path, 1, OPTIONS | {"KV_CACHE_PRECISION": kind}).scores(tokens)
        for kind in ("f32", "u8", "u4")
    }
    losses = [float(np.abs(scores[kind] - scores["f32"]).mean()) for kind in ("f32", "u8", "u4")]
    assert losses[0] == 0 and all(less < more for less, more in pairwise(losses))


@pytest.mark.parametrize(
    ("attention", "kind", "words"),
    [
        ({"softcap": 30.0}, "unsupported", "a soft cap of 30"),
        ({"rotary_interleaved": 1}, "invalid", "rotary embedding of neighbours"),
        ({"smooth_softmax": 1}, "invalid", "a softmax with a sink"),
    ],
)
def test_attention_that_openvino_computes_otherwise_is_refused(
    tmp_path: Path, attention: dict[str, Any], kind: str, words: str
) -> None:
    with pytest.raises(CandidateRefused) as caught, open_model(written(tmp_path, **attention), SETTINGS):
        pass
    assert caught.value.kind == kind and words in caught.value.found


def test_inputs_after_those_of_a_plain_attention_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    proto = onnx.load(path)
    node = next(node for node in proto.graph.node if node.op_type == "GroupQueryAttention")
    node.input.extend(["", "bias"])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("bias", 1, ["batch", 1, "length", "length"]))
    onnx.save(proto, path)
    with pytest.raises(CandidateRefused, match="a bias"), open_model(path, SETTINGS):
        pass


def test_more_tokens_than_the_context_are_refused(tmp_path: Path) -> None:
    with open_runner(written(tmp_path), SETTINGS) as runner:
        runner.run({"input_ids": windows(1, CONTEXT)}, ["logits"])
        with pytest.raises(CandidateRefused, match=f"{CONTEXT + 1} tokens"):
            runner.run({"input_ids": windows(1, CONTEXT + 1)}, ["logits"])
        with pytest.raises(CandidateRefused, match=f"context has {CONTEXT}"):
            runner.bound({"input_ids": windows(1, CONTEXT - 5)})()


def test_a_graph_without_caches_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Gather", ["table", "input_ids"], ["logits"])
    tokens = onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", "length"])
    logits = onnx.helper.make_tensor_value_info("logits", 1, ["batch", "length", 2])
    table = onnx.numpy_helper.from_array(np.zeros((TOKENS, 2), np.float32), "table")
    graph = onnx.helper.make_graph([node], "plain", [tokens], [logits], [table])
    opsets = [onnx.helper.make_opsetid("", 21)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "model.onnx")
    path = configured(tmp_path / "model.onnx")
    with pytest.raises(CandidateRefused, match="no GroupQueryAttention"), open_model(path, SETTINGS):
        pass
