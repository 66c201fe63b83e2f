"""The ranges read from a quantized file: what the file itself, run, leaves as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.fixed_ranges import read_fixed_ranges
from tasks.runtimes.ort import open_session, run_outputs
from validators.records.run import SessionSettings


def quantizer(path: Path, zero: Any, scale: Any, kind: int | None) -> Path:
    """A file that quantizes `x` and turns it back."""
    weights = [numpy_helper.from_array(np.asarray(scale, np.float32), "scale")]
    names = ["scale"]
    if kind is not None:
        weights.append(helper.make_tensor("zero", kind, np.shape(zero), np.ravel(zero)))
        names.append("zero")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *names], ["q"]),
        helper.make_node("DequantizeLinear", ["q", *names], ["y"]),
    ]
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"])] for name in ("x", "y")]
    graph = helper.make_graph(nodes, "some", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("kind", "zero", "scale"),
    [
        (TensorProto.UINT8, 100, 0.05),
        (TensorProto.INT8, 0, 0.02),
        (TensorProto.INT8, -17, 0.02),
        (TensorProto.UINT16, 30_000, 0.001),
        (TensorProto.FLOAT8E4M3FN, 0, 0.01),
        (None, None, 0.5),  # of uint8, with zero at 0
    ],
)
def test_range_is_where_the_runtime_changes_only_by_rounding(
    tmp_path: Path, kind: int | None, zero: int | None, scale: float
) -> None:
    path = quantizer(tmp_path / "m.onnx", zero, scale, kind)
    low, high = read_fixed_ranges(path)["x"]
    x = np.linspace(low - (high - low) * 0.2 - 1, high + (high - low) * 0.2 + 1, 20_001).astype(np.float32)
    with open_session(path, SessionSettings("CPUExecutionProvider", 1)) as session:
        (y,) = run_outputs(session, {"x": x}, ["y"])
    # An integer is right to half a step, and so is the range; FP8 E4M3, with 3 bits of mantissa, to a sixteenth of the value.
    rounding = np.abs(x) / 16 + scale * 2**-9 if kind == TensorProto.FLOAT8E4M3FN else np.full(x.shape, scale / 2)
    blur = rounding if kind == TensorProto.FLOAT8E4M3FN else 0
    slack = 1e-5 * (high - low)
    kept = np.abs(y - x) <= rounding + slack
    inside = (x >= low) & (x <= high)
    assert kept[inside].all()
    beyond = (x < low - blur - 2 * slack) | (x > high + blur + 2 * slack)
    assert beyond.any() and not kept[beyond].any()


def test_weights_channel_ranges_and_computed_ones_are_left_out(tmp_path: Path) -> None:
    path = quantizer(tmp_path / "m.onnx", [0, 0], [0.1, 0.2], TensorProto.INT8)
    assert read_fixed_ranges(path) == {}
    model = onnx.load(quantizer(path, 0, 0.1, TensorProto.INT8))
    for change in ("x", "scale"):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        if change == "x":  # a weight
            changed.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "x"))
        else:  # found while it runs
            del changed.graph.initializer[0]
        onnx.save(changed, path)
        assert read_fixed_ranges(path) == {}
