"""Caches of keys and values in INT8 and INT4: the runtime's answers against attention over rounded caches in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from tasks.ptq.kv_cache import TYPES, make_cache_ranges, quantize_caches
from validators.errors import CandidateRefused
from validators.job.candidate_name import CacheBits
from validators.records.run import DataFile
from validators.samples.datasets import Samples

HEADS, CACHED, SIZE, TOKENS, VOCABULARY = 4, 2, 8, 6, 20
WIDTH = (HEADS + 2 * CACHED) * SIZE


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One attention over the rows of a table; it has no rotation, so that keys are what the table says."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(VOCABULARY, WIDTH)).astype(np.float32)
    # Channels of unlike size, which one scale for all would not fit.
    table[:, HEADS * SIZE :] *= np.linspace(0.2, 4, 2 * CACHED * SIZE, dtype=np.float32)
    constants = {"table": table, "one": np.array(1, np.int64), "axes": np.array([1], np.int64)}
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["qkv"]),
        helper.make_node("ReduceSum", ["attention_mask", "axes"], ["counts"], keepdims=0),
        helper.make_node("Sub", ["counts", "one"], ["last"]),
        helper.make_node("Cast", ["last"], ["seqlens"], to=TensorProto.INT32),
        helper.make_node("ReduceMax", ["counts"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["total"], to=TensorProto.INT32),
        helper.make_node(
            "GroupQueryAttention",
            ["qkv", "", "", "past_key_values.0.key", "past_key_values.0.value", "seqlens", "total"],
            ["logits", "present.0.key", "present.0.value"],
            name="attention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=CACHED,
            # As the model builder writes it.
            k_quant_type="NONE",
            v_quant_type="NONE",
        ),
    ]
    cache = ["batch", CACHED, None, SIZE]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", None])
        for name in ("input_ids", "attention_mask")
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", None, HEADS * SIZE])]
    for kind in ("key", "value"):
        inputs.append(helper.make_tensor_value_info(f"past_key_values.0.{kind}", TensorProto.FLOAT, cache))
        outputs.append(helper.make_tensor_value_info(f"present.0.{kind}", TensorProto.FLOAT, cache))
    graph = helper.make_graph(
        nodes,
        "decoder",
        inputs,
        outputs,
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def parts(model: Path, tokens: NDArray[Any]) -> list[NDArray[np.float64]]:
    """Queries, keys and values of one row of tokens, each `[heads, tokens, size]`."""
    table = next(item for item in onnx.load(model).graph.initializer if item.name == "table")
    rows = onnx.numpy_helper.to_array(table)[tokens].astype(np.float64)
    split = rows.reshape(len(tokens), -1, SIZE).transpose(1, 0, 2)
    return [split[:HEADS], split[HEADS : HEADS + CACHED], split[HEADS + CACHED :]]


def attention(queries: NDArray[Any], keys: NDArray[Any], values: NDArray[Any]) -> NDArray[np.float64]:
    """The answer to the last token, `[heads * size]`."""
    found = []
    for head in range(HEADS):
        cached = head // (HEADS // CACHED)
        scores = keys[cached] @ queries[head, -1] / np.sqrt(SIZE)
        weights = np.exp(scores - scores.max())
        found.append(weights / weights.sum() @ values[cached])
    return np.concatenate(found)


def rounded(values: NDArray[Any], ranges: NDArray[Any], bits: int) -> NDArray[np.float64]:
    """What the cache holds of `[heads, tokens, size]`: a channel in steps of its range over the top code."""
    top = 2 ** (bits - 1) - 1
    steps = (ranges / top).astype(np.float32).astype(np.float64)[:, None, :]
    return np.clip(np.rint(values / steps), -top - 1, top) * steps


def windows() -> NDArray[np.int64]:
    return np.random.default_rng(1).integers(0, VOCABULARY, (70, TOKENS))


def ranges(model: Path, bits: CacheBits, folder: Path) -> Path:
    samples = Samples(DataFile(Path("calibration.npz"), "digest", len(windows())), {"input_ids": windows()}, None)
    return make_cache_ranges(lambda: model, samples, 1, None, bits, folder)


def test_ranges_of_int8_are_the_largest_of_each_channel(model: Path, tmp_path: Path) -> None:
    every = [parts(model, row) for row in windows()]
    with np.load(ranges(model, 8, tmp_path)) as found:
        for name, index in (("present.0.key", 1), ("present.0.value", 2)):
            expected = np.abs([one[index] for one in every]).max(axis=(0, 2))
            np.testing.assert_allclose(found[name], expected, rtol=1e-6)


def test_ranges_of_int4_leave_least_error(model: Path, tmp_path: Path) -> None:
    """Of a dense grid of ranges, the best leaves little less: those tried lie 5 % apart."""
    every = [parts(model, row) for row in windows()]
    signs = set[bool]()
    with np.load(ranges(model, 4, tmp_path)) as found:
        for name, index in (("present.0.key", 1), ("present.0.value", 2)):
            values = np.concatenate([one[index] for one in every], axis=1)
            largest, chosen = np.abs(values).max(axis=1), found[name]

            def error(tried: NDArray[Any], values: NDArray[Any] = values) -> NDArray[np.float64]:
                return np.asarray(np.square(rounded(values, tried, 4) - values).sum(axis=1))

            shares = np.linspace(0.3, 1.1, 161)
            least = np.min([error(sign * share * largest) for share in shares for sign in (1, -1)], axis=0)
            assert (error(chosen) <= error(largest) * (1 + 1e-6)).all()
            assert error(chosen).sum() < min(1.1 * least.sum(), 0.9 * error(largest).sum())
            signs.update((chosen < 0).ravel().tolist())
    assert signs == {False, True}


@pytest.mark.parametrize("bits", [8, 4])
def test_answers_are_those_of_rounded_caches(bits: CacheBits, model: Path, tmp_path: Path) -> None:
    tokens = windows()[0]
    queries, keys, values = parts(model, tokens)
    found = ranges(model, bits, tmp_path)
    assert quantize_caches(model, found, bits) == 1
    onnx.checker.check_model(str(model))
    with np.load(found) as archive:
        kept = [rounded(keys, archive["present.0.key"], bits), rounded(values, archive["present.0.value"], bits)]
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    stored = {8: np.int8, 4: np.uint8}[bits]
    past = {
        f"past_key_values.0.{kind}": np.zeros((1, CACHED, 0, SIZE // TYPES[bits].in_byte), stored)
        for kind in ("key", "value")
    }
    mask = np.ones((1, TOKENS), np.int64)
    # The prompt, then one token, which sees the prompt through the cache alone.
    first = {"input_ids": tokens[None, :-1], "attention_mask": mask[:, :-1]} | past
    _, *caches = session.run(None, first)
    assert all(cache.dtype == stored and cache.shape == (1, CACHED, TOKENS - 1, SIZE * bits // 8) for cache in caches)
    filled = dict(zip(past, caches, strict=True))
    logits = session.run(["logits"], {"input_ids": tokens[None, -1:], "attention_mask": mask} | filled)[0]
    np.testing.assert_allclose(logits[0, -1], attention(queries, *kept), atol=2e-5)
    # The test can tell: without rounding the answer is another.
    assert np.abs(logits[0, -1] - attention(queries, keys, values)).max() > 1e-4


def test_a_graph_without_such_caches_is_refused(model: Path, tmp_path: Path) -> None:
    found, proto = ranges(model, 8, tmp_path), onnx.load(model)
    proto.graph.node[-1].op_type = "MultiHeadAttention"
    onnx.save(proto, tmp_path / "other.onnx")
    with pytest.raises(CandidateRefused) as caught:
        quantize_caches(tmp_path / "other.onnx", found, 8)
    assert caught.value.kind == "unsupported" and "past_key_values.0.key" in caught.value.found


def test_heads_of_an_odd_size_have_no_int4(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.npz"
    np.savez(odd, **{f"present.0.{kind}": np.ones((CACHED, 7), np.float32) for kind in ("key", "value")})
    with pytest.raises(CandidateRefused) as caught:
        quantize_caches(model, odd, 4)
    assert "heads of 7" in caught.value.found
