"""Times of kernels and whose they are: names as the runtime makes them, and those that it really gives."""

from __future__ import annotations

from collections.abc import Collection
from math import isfinite
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import Hard, static_int8, statistics_of
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.slow_parts import profile_costs
from tasks.runtimes import kernel_times as module
from tasks.runtimes.kernel_times import kernel_events, node_times, profile, time_kernels
from tasks.trials.materials import part_cost
from validators.records.run import SessionSettings

SETTINGS = SessionSettings("CPUExecutionProvider", 1)


def graph_of(*nodes: onnx.NodeProto) -> onnx.GraphProto:
    return helper.make_graph(list(nodes), "some", [], [])


@pytest.mark.parametrize(
    "kernel",
    ["layer", "layer_token_12", "fused layer", "layer/MatMulAddFusion", "fused layer/MatMulAddFusion_token_3",
     "layer/MatMulScaleFusion/"],
)  # fmt: skip  # one line a spelling would hide what they share
def test_a_kernel_belongs_to_the_node_that_it_is_named_after(kernel: str) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    assert node_times(graph_of(node), {kernel: 5.0}) == {"layer": 5.0}


@pytest.mark.parametrize(
    "kernel", ["layer_dequantize", "layer/duplicated", "Layer", "layer1", "y_quantize", "a fused layer"]
)
def test_other_kernels_are_nobodys(kernel: str) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="layer")
    assert node_times(graph_of(node), {kernel: 5.0}) == {}


def test_node_names_that_look_made_up_are_taken_as_they_are() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name=name) for name in ("a", "a/MatMulAddFusion")]
    assert node_times(graph_of(*nodes), {"a/MatMulAddFusion": 3.0, "a": 2.0}) == {"a": 2.0, "a/MatMulAddFusion": 3.0}


def test_a_convolution_in_blocks_is_found_by_what_it_gives() -> None:
    conv = helper.make_node("Conv", ["x", "w"], ["c"], name="conv")
    relu = helper.make_node("Relu", ["c"], ["r"], name="relu")
    other = helper.make_node("Relu", ["c"], ["s"], name="other")
    assert node_times(graph_of(conv, relu), {"r_nchwc": 4.0}) == {"conv": 4.0}
    assert node_times(graph_of(conv, relu), {"c_nchwc": 3.0, "r_nchwc": 4.0}) == {"conv": 3.0}
    # Read by two, it is in neither.
    assert node_times(graph_of(conv, relu, other), {"r_nchwc": 4.0}) == {}


def test_time_is_the_median_without_the_first_times_its_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up of 1 and 3 requests: once a request 90, then 1, 5, 3; twice a request, as in a loop, 2 each."""

    def event(name: str, time: float) -> dict[str, object]:
        return {"cat": "Node", "name": f"{name}_kernel_time", "dur": time, "args": {}}

    once = [event("once", time) for time in (90.0, 1.0, 5.0, 3.0)]
    twice = [event("twice", time) for time in (70.0, 70.0, *[2.0] * 6)]
    monkeypatch.setattr(module, "WARM_UP", 1)
    found = time_kernels([*once, *twice], 4)
    assert {kernel.name: kernel.microseconds for kernel in found} == {"once": 3.0, "twice": 4.0}


def test_a_cost_is_the_sum_over_the_nodes_of_a_part_or_unknown() -> None:
    """(9 - 4) + (6 - 8); never made up of those that are known."""
    assert part_cost(("a", "b"), {"a": 4.0, "b": 8.0}, {"a": 9.0, "b": 6.0}) == 3.0
    assert part_cost(("a", "b"), {"a": 4.0}, {"a": 9.0, "b": 6.0}) is None
    assert part_cost(("a", "b"), {"a": 4.0, "b": 8.0}, {"b": 6.0}) is None


def test_each_kernel_runs_once_a_request(hard: Hard) -> None:
    x = np.load(hard.evaluation)["x"][:4]
    events = list(kernel_events(profile(hard.model, SETTINGS, {"x": x}, requests=3)))
    names = [event.name for event in events]
    assert names.count("head") == 3 and names.count("fused first") + names.count("first") == 3
    assert all(event.args["provider"] == "CPUExecutionProvider" and event.microseconds >= 0 for event in events)


@pytest.mark.parametrize("dynamic", [False, True])
def test_kept_nodes_are_found_in_both_variants(hard: Hard, tmp_path: Path, dynamic: bool) -> None:
    """QLinearMatMul, MatMulIntegerToFloat and DynamicQuantizeMatMul, and MatMul in their place."""
    prepared = tmp_path / "prepared.onnx"
    prepare_graph(hard.model, prepared)
    ranges = read_ranges(statistics_of(prepared, hard.calibration), "minmax", symmetric=False)

    def quantize(path: Path, kept: Collection[str]) -> dict[str, float]:
        if dynamic:
            quantize_dynamic(prepared, path, weights=Int8Weights(), keep_float=kept)
        else:
            static_int8(prepared, ranges, path, keep_float=kept)
        return profile_costs([path], {"x": np.load(hard.evaluation)["x"][:4]}, SETTINGS)[0].by_node

    before, after = quantize(tmp_path / "all.onnx", ()), quantize(tmp_path / "kept.onnx", ("first", "second"))
    for name in ("first", "second", "third", "head"):
        cost = part_cost((name,), before, after)
        assert cost is not None and isfinite(cost), name
    assert part_cost(("no such node",), before, after) is None


def test_convolutions_are_found_in_float_and_in_integers(tmp_path: Path) -> None:
    """QLinearConv gets a new name with its layout, the float one that of a tensor."""
    rng = np.random.default_rng(5)
    shapes = {"w1": (16, 3, 3, 3), "w2": (16, 16, 3, 3), "w3": (8, 16, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], name="one", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="two", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["c", "w3"], ["y"], name="three"),
    ]
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8, 8, 8])],
        [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in shapes.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    x = rng.normal(size=(4, 3, 8, 8)).astype(np.float32)
    ranges = dict.fromkeys("xacy", (-5.0, 5.0)) | {"b": (0.0, 5.0)}
    static_int8(tmp_path / "m.onnx", ranges, tmp_path / "all.onnx")
    static_int8(tmp_path / "m.onnx", ranges, tmp_path / "kept.onnx", keep_float=("two",))
    for name in ("m", "all", "kept"):
        path = tmp_path / f"{name}.onnx"
        assert {"one", "two", "three"} <= set(profile_costs([path], {"x": x}, SETTINGS)[0].by_node), name
