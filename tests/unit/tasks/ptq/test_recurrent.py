"""GRU layers and the bodies of If, Loop and Scan with ranges at run time; the float kernels of the runtime are the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE

from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.gru import LEAST_UNITS
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.graph.edits import name_nodes
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.ort import open_session
from validators.gates.coverage import judge_coverage
from validators.job.job_gates import Gates
from validators.records.run import SessionSettings
from validators.untrusted.external_data import graphs_of

RNG = np.random.default_rng(5)
WIDTH = 24
CPU = SessionSettings("CPUExecutionProvider", 1)


def weight(*shape: int) -> NDArray[np.float32]:
    return (RNG.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)


def save(
    path: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, NDArray[Any]],
    outputs: list[str],
    more: Sequence[Any] = (),
) -> Path:
    """A model of `x` [steps, batch, width] with named nodes."""
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["steps", "batch", WIDTH]), *more],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    name_nodes(graph)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


def run(model: Path, feed: dict[str, Any]) -> list[NDArray[Any]]:
    with open_session(model, CPU) as session:
        return list(session.run(None, feed))


def gru(units: int, direction: str, **options: Any) -> tuple[list[onnx.NodeProto], dict[str, NDArray[Any]]]:
    ways = 2 if direction == "bidirectional" else 1
    constants = {"W": weight(ways, 3 * units, WIDTH), "R": weight(ways, 3 * units, units), "B": weight(ways, 6 * units)}
    settings = {"hidden_size": units, "direction": direction, "linear_before_reset": 1} | options
    return [helper.make_node("GRU", ["x", "W", "R", "B"], ["y", "h"], name="gru", **settings)], constants


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_gru_becomes_integer_products(tmp_path: Path, direction: str, starts: bool, bits: WeightBits) -> None:
    nodes, constants = gru(LEAST_UNITS, direction)
    feed = {"x": RNG.normal(size=(7, 3, WIDTH)).astype(np.float32)}
    more = []
    if starts:
        ways = constants["W"].shape[0]
        nodes[0].input.extend(["", "start"])
        more = [helper.make_tensor_value_info("start", TensorProto.FLOAT, [ways, "batch", LEAST_UNITS])]
        feed["start"] = RNG.normal(size=(ways, 3, LEAST_UNITS)).astype(np.float32)
    model, variant = save(tmp_path / "m.onnx", nodes, constants, ["y", "h"], more), tmp_path / "v.onnx"
    assert quantize_dynamic(model, variant, weights=Int8Weights(bits=bits)).quantized == ("gru",)
    for exact, quantized in zip(run(model, feed), run(variant, feed), strict=True):
        assert exact.shape == quantized.shape
        assert 1e-7 < np.square(quantized - exact).mean() / np.square(exact).mean() < 2e-3
    before, after = (measure_coverage(path, CPU, feed) for path in (model, variant))
    assert after.share == 1.0 and sum(after.macs_by_kernel.values()) == sum(before.macs_by_kernel.values())


@pytest.mark.parametrize(
    ("units", "options", "reason"),
    [
        (LEAST_UNITS - 8, {}, "a GRU of fewer than 256 units, which integer kernels make slower"),
        (LEAST_UNITS, {"linear_before_reset": 0}, "a GRU in a form that has no quantized one"),
        (LEAST_UNITS, {"clip": 1.0}, "a GRU in a form that has no quantized one"),
    ],
)
def test_other_grus_stay_in_float_by_name(tmp_path: Path, units: int, options: dict[str, Any], reason: str) -> None:
    nodes, constants = gru(units, "forward", **options)
    constants["head"] = weight(units, 8)
    nodes.append(helper.make_node("MatMul", ["y", "head"], ["z"], name="head"))
    model, variant = save(tmp_path / "m.onnx", nodes, constants, ["z"]), tmp_path / "v.onnx"
    report = quantize_dynamic(model, variant, weights=Int8Weights())
    assert (report.quantized, report.left) == (("head",), {"gru": reason})
    feed = {"x": RNG.normal(size=(4, 2, WIDTH)).astype(np.float32)}
    verdict = judge_coverage("int8-dynamic-pc@ort-cpu", measure_coverage(variant, CPU, feed), Gates())
    # All products with an integer kernel ran in one; the rest is named.
    assert verdict is not None and (verdict.outcome, verdict.value) == ("pass", 1.0)
    assert "operators that have no low-precision kernel: gru (GRU)" in verdict.method


def test_a_model_without_any_such_kernel_fails(tmp_path: Path) -> None:
    nodes, constants = gru(16, "forward")
    model = save(tmp_path / "m.onnx", nodes, constants, ["y"])
    coverage = measure_coverage(model, CPU, {"x": RNG.normal(size=(4, 2, WIDTH)).astype(np.float32)})
    verdict = judge_coverage("int8-dynamic-pc@ort-cpu", coverage, Gates())
    assert verdict is not None and verdict.outcome == "fail"
    assert "the engine has no low-precision kernel for any of its products" in verdict.reason


@pytest.mark.parametrize("bits", BITS_HERE)
def test_bodies_are_quantized_with_own_and_outer_weights(tmp_path: Path, bits: WeightBits) -> None:
    def body(name: str, first: str) -> onnx.GraphProto:
        nodes = [
            helper.make_node("MatMul", ["x", first], [f"{name}_a"]),
            helper.make_node("MatMul", [f"{name}_a", f"{name}_own"], [f"{name}_y"]),
        ]
        out = [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)]
        own = [numpy_helper.from_array(weight(WIDTH, 8), f"{name}_own")]
        return helper.make_graph(nodes, name, [], out, own)

    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=body("yes", "one"), else_branch=body("no", "two"))]
    constants = {"one": weight(WIDTH, WIDTH), "two": weight(WIDTH, WIDTH)}
    more = [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    model, variant = save(tmp_path / "m.onnx", nodes, constants, ["y"], more), tmp_path / "v.onnx"
    report = quantize_dynamic(model, variant, weights=Int8Weights(bits=bits), rest=True)
    assert len(report.quantized) == len(set(report.quantized)) == 4 and report.left == {}
    kinds = [node.op_type for part in graphs_of(onnx.load(variant).graph) for node in part.node]
    assert kinds.count("DynamicQuantizeMatMul") == 4 and "MatMul" not in kinds
    assert not onnx.load(variant).graph.initializer
    x = RNG.normal(size=(3, 2, WIDTH)).astype(np.float32)
    for flag in (True, False):
        feed = {"x": x, "flag": np.array(flag)}
        (exact,), (quantized,) = run(model, feed), run(variant, feed)
        assert 1e-7 < np.square(quantized - exact).mean() / np.square(exact).mean() < 2e-3
        assert measure_coverage(variant, CPU, feed).share == 1.0


def test_nothing_is_written_where_pairs_reach_everything(tmp_path: Path) -> None:
    model = save(tmp_path / "m.onnx", [helper.make_node("MatMul", ["x", "w"], ["y"])], {"w": weight(WIDTH, 8)}, ["y"])
    report = quantize_dynamic(model, tmp_path / "v.onnx", weights=Int8Weights(), rest=True)
    assert not report.quantized and not (tmp_path / "v.onnx").exists()
