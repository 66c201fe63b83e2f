"""Graphs with caches of keys and values, seen as models of token ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from tasks.ptq.calibrate.staged import StagedRun
from tasks.runtimes.decoder_session import DecoderSession
from tasks.runtimes.ort import describe_inputs, describe_outputs, open_session, run_outputs
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER

SETTINGS = SessionSettings(CPU_PROVIDER, 1)


def graph(path: Path, *, caches: bool = True) -> Path:
    """Return a graph that adds ids, mask and positions; its cache grows by the ids."""
    ids, mask, positions = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", length])
        for name, length in (("input_ids", "length"), ("attention_mask", "total"), ("position_ids", "length"))
    )
    nodes = [
        helper.make_node("Add", ["input_ids", "position_ids"], ["placed"]),
        helper.make_node("Add", ["placed", "attention_mask"], ["logits"]),
    ]
    inputs, outputs = [ids, mask, positions], [helper.make_tensor_value_info("logits", TensorProto.INT64, None)]
    if caches:
        shape = ["batch", 2, "past", 4]
        inputs.append(helper.make_tensor_value_info("past_key_values.0.key", TensorProto.FLOAT, shape))
        outputs.append(helper.make_tensor_value_info("present.0.key", TensorProto.FLOAT, ["batch", 2, "more", 4]))
        nodes.append(helper.make_node("Identity", ["past_key_values.0.key"], ["present.0.key"]))
    made = helper.make_model(
        helper.make_graph(nodes, "decoder", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.save(made, path)
    return path


def test_whole_windows_have_empty_caches_full_masks_positions(tmp_path: Path) -> None:
    """Positions start from 0."""
    ids = np.array([[10, 20, 30], [40, 50, 60]])
    with open_session(graph(tmp_path / "model.onnx"), SETTINGS) as session:
        assert [spec.name for spec in describe_inputs(session)] == ["input_ids"]
        assert [spec.name for spec in describe_outputs(session)] == ["logits"]
        (logits,) = session.run(None, {"input_ids": ids})
        (cache,) = run_outputs(session, {"input_ids": ids}, ["present.0.key"])
        assert session.get_providers() == [CPU_PROVIDER]
    # Ids, plus 1 of the mask, plus positions.
    assert logits.tolist() == [[11, 22, 33], [41, 52, 63]]
    assert cache.shape == (2, 2, 0, 4)


def test_a_given_mask_is_kept(tmp_path: Path) -> None:
    with open_session(graph(tmp_path / "model.onnx"), SETTINGS) as session:
        (logits,) = session.run(None, {"input_ids": np.array([[5, 5]]), "attention_mask": np.array([[0, 1]])})
    assert logits.tolist() == [[5, 7]]


def test_a_graph_without_caches_is_as_it_is(tmp_path: Path) -> None:
    with open_session(graph(tmp_path / "model.onnx", caches=False), SETTINGS) as session:
        assert not isinstance(session, DecoderSession)
        assert [spec.name for spec in describe_inputs(session)] == ["input_ids", "attention_mask", "position_ids"]


def test_later_stages_read_masks_positions_and_caches(tmp_path: Path) -> None:
    """Whatever a stage reads that no node computed: the first has token ids alone, the last the cache alone."""
    path = graph(tmp_path / "model.onnx")
    ids = np.array([[10, 20, 30], [40, 50, 60]])
    wanted = {"placed": [[10, 21, 32], [40, 51, 62]], "logits": [[11, 22, 33], [41, 52, 63]]}
    run = StagedRun(onnx.load(path), path, [*wanted, "present.0.key"], [{"input_ids": ids}], tmp_path, SETTINGS)
    for name, values in wanted.items():
        (found,) = run.values(name, run.position(name) + 1)
        assert found.tolist() == values
    (cache,) = run.values("present.0.key", run.position("present.0.key") + 1)
    assert cache.shape == (2, 2, 0, 4)
