"""Facts of damaged graphs: a named error or an answer, never a traceback or a walk without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from tasks.evidence.model_facts import _read_graph
from validators.errors import SourceError


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("nodes", "error"),
    [
        ([helper.make_node("Identity", ["y"], ["y"])], ""),
        ([helper.make_node("Identity", ["z"], ["y"]), helper.make_node("Identity", ["y"], ["z"])], ""),
        ([helper.make_node("Identity", [], ["y"])], "IndexError"),
        ([helper.make_node("If", ["x"], ["y"], then_branch=helper.make_graph([], "none", [], []))], "IndexError"),
    ],
    ids=["a circle", "a circle of two", "no input", "a branch without outputs"],
)
def test_damaged_graph_has_facts_or_a_named_error(tmp_path: Path, nodes: list[object], error: str) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=[helper.make_opsetid("", 21)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    if error:
        with pytest.raises(SourceError, match=error):
            _read_graph(path, "models:/damaged/1")
    else:
        assert _read_graph(path, "models:/damaged/1")[3] == frozenset()
