"""Tensors inside of a graph: their values as numpy computes them, whatever file the weights are in."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Tiny, tiny_model, tiny_samples
from hypothesis import given
from hypothesis import strategies as st

from tasks.ptq.calibrate.watched import open_watched, split_by_memory
from validators.errors import CandidateRefused
from validators.records.run import SessionSettings

SETTINGS = SessionSettings("CPUExecutionProvider", 1)


@pytest.mark.parametrize("as_written", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_values_are_those_of_the_graph(tiny: Tiny, tmp_path: Path, beside: bool, as_written: bool) -> None:
    """Of inner tensors, of an output and of an input, with weights in the file or beside it; nothing is written."""
    path = tmp_path / "model.onnx"
    onnx.save(
        tiny_model(*tiny.weights),
        path,
        save_as_external_data=beside,
        location="w" if beside else None,
        size_threshold=0,
    )
    files = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    first, bias, second = (weight.astype(np.float64) for weight in tiny.weights)
    x = tiny_samples(7, 5)["x"]
    hidden = np.maximum(x.astype(np.float64) @ first + bias, 0)
    expected = {"hidden": hidden, "logits": hidden @ second, "x": x}
    with open_watched(path, ["hidden", "x", "logits"], SETTINGS, as_written=as_written) as watched:
        found = watched.run({"x": x, "of no input": x})
        assert watched.types["hidden"] == "tensor(float)"
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-4, atol=1e-4)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == files


def test_shapes_alone_are_told(tiny: Tiny) -> None:
    with open_watched(tiny.model, ["x", "hidden"], SETTINGS, shapes=True) as watched:
        found = watched.run({"x": tiny_samples(7, 5)["x"]})
    assert {name: shape.tolist() for name, shape in found.items()} == {"x": [7, 64], "hidden": [7, 128]}


def test_a_graph_that_is_given_is_watched_and_given_back(tiny: Tiny) -> None:
    """Not the one in the file."""
    model = onnx.load(tiny.model)
    model.graph.node[2].op_type = "Neg"
    before = model.SerializeToString()
    x = tiny_samples(3, 5)["x"]
    for shapes in (True, False):
        with open_watched(tiny.model, ["sum", "hidden"], SETTINGS, proto=model, shapes=shapes) as watched:
            found = watched.run({"x": x})
        assert model.SerializeToString() == before
    np.testing.assert_array_equal(found["hidden"], -found["sum"])


def test_nothing_but_inputs_is_watched_without_a_run(tiny: Tiny) -> None:
    with open_watched(tiny.model, ["x"], SETTINGS) as watched:
        assert list(watched.run({"x": np.ones((2, 64), np.float32)})) == ["x"]


def test_a_tensor_that_is_not_there_is_refused(tiny: Tiny) -> None:
    with (
        pytest.raises(CandidateRefused, match=r"does not load tiny\.onnx") as caught,
        open_watched(tiny.model, ["nowhere"], SETTINGS),
    ):
        pass
    assert caught.value.kind == "invalid"


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=12),
    st.integers(100, 300),
)
def test_passes_hold_every_tensor_once_in_order_within_budget(sizes: list[tuple[int, int]], budget: int) -> None:
    """And no pass could have taken the first tensor of the next one."""
    held, at_work = ({str(place): size[which] for place, size in enumerate(sizes)} for which in (0, 1))
    groups = split_by_memory(held, at_work, budget)

    def taken(group: list[str]) -> int:
        return sum(held[name] for name in group) + max(at_work[name] for name in group)

    assert [name for group in groups for name in group] == list(held)
    assert all(taken(group) <= budget for group in groups)
    assert all(taken([*group, after[0]]) > budget for group, after in itertools.pairwise(groups))


def test_tensor_too_large_has_a_pass_of_its_own() -> None:
    held, at_work = {"a": 1, "b": 8, "c": 1}, {"a": 1, "b": 3, "c": 1}
    assert split_by_memory(held, at_work, 10) == [["a"], ["b"], ["c"]]
