"""Bytes of a decoder by its graph: tables are read by rows, caches by element type and shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.runtimes.decoder_bytes import decoder_bytes
from validators.records.generation import DecoderBytes

HEADS, WIDTH, VOCABULARY = 2, 8, 10


def write(folder: Path, cache: int, *, head_size: int = 4, shared: bool = False) -> Path:
    """A graph of two layers: an embedding, a head, and caches that nothing reads."""
    table = numpy_helper.from_array(np.ones((VOCABULARY, WIDTH), np.float32), "table")
    head = numpy_helper.from_array(np.ones((WIDTH, VOCABULARY), np.int8), "head")
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x"]),
        helper.make_node("Cast", ["head"], ["h"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "h"], ["logits"]),
    ]
    if shared:
        nodes.append(helper.make_node("Transpose", ["table"], ["again"]))
    caches = [
        helper.make_tensor_value_info(f"past_key_values.{layer}.{kind}", cache, ["batch", HEADS, "past", head_size])
        for layer in range(2)
        for kind in ("key", "value")
    ]
    graph = helper.make_graph(
        nodes,
        "decoder",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"]), *caches],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, None)],
        [table, head],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save_model(
        model, folder / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    (folder / "genai_config.json").write_text(json.dumps({"model": {"context_length": 64}}))
    # Only the graph is read.
    (folder / "model.onnx.data").unlink()
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("cache", "changes", "expected"),
    [
        # Four caches of 2 x 4 values; the table is 320 bytes, the head 80.
        (TensorProto.FLOAT, {}, DecoderBytes(400, 80, 128, 64)),
        (TensorProto.FLOAT16, {}, DecoderBytes(400, 80, 64, 64)),
        (TensorProto.INT8, {}, DecoderBytes(400, 80, 32, 64)),
        (TensorProto.INT4, {}, DecoderBytes(400, 80, 16, 64)),
        # Two values of 4 bits a byte.
        (TensorProto.UINT8, {"head_size": 2}, DecoderBytes(400, 80, 16, 64)),
        # Another reader reads all of the table.
        (TensorProto.FLOAT, {"shared": True}, DecoderBytes(400, 400, 128, 64)),
    ],
)
def test_bytes_of_a_decoder_are_those_of_its_graph(
    tmp_path: Path, cache: int, changes: dict[str, Any], expected: DecoderBytes
) -> None:
    assert decoder_bytes(write(tmp_path, cache, **changes)) == expected
