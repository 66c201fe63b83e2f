"""FP8 E4M3: scales by a table, rounding by the format's definition, and the Q/DQ variant against a numpy simulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from conftest import Tiny, statistics_of, tiny_model
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.engines.variants import session_settings
from tasks.ptq.build_variant import ranges_for
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import E4M3, E4M3_MAX, fit_e4m3_weight, store_e4m3
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import EXPLICIT
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode

Floats = NDArray[np.float64]
PER_CHANNEL, PER_TENSOR = decode("fp8-amax-pc@ort-cpu"), decode("fp8-amax-pt@ort-cpu")


def e4m3_values() -> Floats:
    """Every value of the format that is not negative, from its definition: 4 bits of exponent (bias 7), 3 of mantissa.

    Exponent 0 holds the subnormals; the last code, all ones, is NaN, so that the largest value is 1.75 * 2^8 = 448.
    """
    subnormal = [mantissa / 8 * 2.0**-6 for mantissa in range(8)]
    normal = [(1 + mantissa / 8) * 2.0 ** (exponent - 7) for exponent in range(1, 16) for mantissa in range(8)]
    return np.array(subnormal + normal[:-1])


def round_e4m3(values: Floats) -> Floats:
    """The nearest value of the format, ties to the even code, saturated."""
    table = e4m3_values()
    magnitude = np.minimum(np.abs(values), table[-1])
    above = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    low, high = table[above - 1], table[above]
    to_high = (magnitude - low > high - magnitude) | ((magnitude - low == high - magnitude) & (above % 2 == 0))
    return np.sign(values) * np.where(to_high, high, low)


@pytest.mark.parametrize(
    ("weight", "axis", "scales"),
    [
        ([[448.0, 1.0], [-896.0, 0.0]], None, 2.0),
        ([[448.0, 1.0], [-896.0, 0.0]], 0, [1.0, 2.0]),
        ([[448.0, 1.0], [-896.0, 0.0]], 1, [2.0, 1 / 448]),
        ([[0.0, 0.0], [-224.0, 3.0]], 0, [1.0, 0.5]),
        ([[0.0, 0.0], [0.0, 0.0]], None, 1.0),
        ([[[448.0, 0.0]], [[0.0, 44.8]]], 0, [1.0, 0.1]),
    ],
)
def test_scales_of_weights(weight: Any, axis: int | None, scales: Any) -> None:
    """amax / 448 of the whole or of each channel, and 1 where there is nothing but zeros."""
    seen = fit_e4m3_weight(np.array(weight, np.float32), axis)
    assert seen.dtype == np.float32 and seen.shape == np.shape(scales)
    np.testing.assert_allclose(seen, scales, rtol=1e-6)


def test_the_table_of_the_format_is_that_of_the_library() -> None:
    """All 127 codes by definition are all 127 codes of ml_dtypes, and rounding agrees on and between them."""
    codes = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(codes, e4m3_values())
    assert e4m3_values()[-1] == E4M3_MAX
    middles = (codes[1:] + codes[:-1]) / 2
    values = np.concatenate([codes, middles, middles * (1 + 1e-6), middles * (1 - 1e-6), -middles])
    expected = values.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
    np.testing.assert_array_equal(round_e4m3(values.astype(np.float32).astype(np.float64)), expected)
    assert round_e4m3(np.array([449.0, 1e9, -1e9])).tolist() == [448.0, 448.0, -448.0]


def dequantized(values: Floats, scale: Floats | float) -> Floats:
    """What a Q/DQ pair gives back; scales are float32."""
    scale = np.asarray(scale, np.float32).astype(np.float64)
    return round_e4m3((values / scale).astype(np.float32).astype(np.float64)) * scale


def run(model: Path, x: NDArray[np.float32]) -> Floats:
    with open_session(model, session_settings(PER_CHANNEL, 1)) as session:
        return run_batches(session, [{"x": x}], "logits").astype(np.float64)


def prepare(model: onnx.ModelProto, tiny: Tiny, folder: Path) -> tuple[Path, dict[str, Range]]:
    """The prepared graph and its minmax ranges."""
    onnx.save(model, folder / "model.onnx")
    prepare_graph(folder / "model.onnx", folder / "prepared.onnx")
    return folder / "prepared.onnx", minmax(folder / "prepared.onnx", tiny)


def quantize_fp8(model: Path, ranges: dict[str, Range], candidate: Candidate, variant: Path) -> QdqReport:
    """The FP8 form, for any engine."""
    weights = Int8Weights(candidate.granularity == "pc")
    options: dict[str, Any] = {"every_operator": False, "activation": "e4m3", "weights": weights}
    return quantize_qdq(model, variant, ranges, rules=EXPLICIT, **options)


def minmax(prepared: Path, tiny: Tiny) -> dict[str, Range]:
    return ranges_for(PER_CHANNEL, statistics_of(prepared, tiny.calibration), EXPLICIT)


@pytest.mark.parametrize("candidate", [PER_CHANNEL, PER_TENSOR], ids=["per channel", "per tensor"])
def test_the_variant_computes_what_the_simulation_does(tiny: Tiny, tmp_path: Path, candidate: Any) -> None:
    """Weights stored as the format rounds them; outputs as float arithmetic on rounded weights and inputs gives them."""
    prepared, ranges = prepare(tiny_model(*tiny.weights), tiny, tmp_path)
    done = quantize_fp8(prepared, ranges, candidate, tmp_path / "variant.onnx")
    assert len(done.quantized) == 2 and not done.left

    first, bias, second = (array.astype(np.float64) for array in tiny.weights)
    axis = 1 if candidate.granularity == "pc" else None
    others = None if axis is None else 0
    constants = {item.name: item for item in onnx.load(tmp_path / "variant.onnx").graph.initializer}
    weights = {}
    for name, weight in (("first", first), ("second", second)):
        assert constants[f"{name}_quantized"].data_type == TensorProto.FLOAT8E4M3FN and name not in constants
        scale = (np.abs(weight).max(axis=others) / 448).astype(np.float32)
        np.testing.assert_allclose(numpy_helper.to_array(constants[f"{name}_scale"]), scale, rtol=1e-6)
        weights[name] = dequantized(weight, numpy_helper.to_array(constants[f"{name}_scale"]))
        stored = numpy_helper.to_array(constants[f"{name}_quantized"]).astype(np.float64)
        np.testing.assert_array_equal(stored * scale.astype(np.float64), weights[name])

    calibration = np.load(tiny.calibration)["x"].astype(np.float64)
    amax_hidden = np.maximum(calibration @ first + bias, 0).max()
    x = np.load(tiny.evaluation)["x"][:300]
    inputs = dequantized(x.astype(np.float64), np.abs(calibration).max() / 448)
    hidden = np.maximum(inputs @ weights["first"] + bias, 0)
    expected = dequantized(hidden, amax_hidden / 448) @ weights["second"]
    # Sums in float32 against float64: a hidden value between two codes may fall on either, a step of at most 1/8 of it.
    step = hidden.max() / 8 * np.abs(weights["second"]).max()
    apart = np.abs(run(tmp_path / "variant.onnx", x) - expected)
    assert apart.max() <= step
    assert np.quantile(apart, 0.99) < 1e-3
    # Rounding itself is far larger: a variant that stayed in float would be seen.
    floats = np.maximum(x @ first + bias, 0) @ second
    assert np.abs(floats - expected).mean() > 0.1


def test_a_channel_of_zeros_stays_zero_and_makes_no_nan(tiny: Tiny, tmp_path: Path) -> None:
    """A zero scale would divide zero by zero: the channel's outputs are its bias, all others are finite."""
    first, bias, second = (array.copy() for array in tiny.weights)
    first[:, 5], second[:, 2] = 0, 0
    prepared, ranges = prepare(tiny_model(first, bias, second), tiny, tmp_path)
    quantize_fp8(prepared, ranges, PER_CHANNEL, tmp_path / "variant.onnx")
    outputs = run(tmp_path / "variant.onnx", np.load(tiny.evaluation)["x"][:50])
    assert np.isfinite(outputs).all()
    assert (outputs[:, 2] == 0).all() and (outputs[:, 1] != 0).all()


def test_values_beyond_the_calibrated_range_saturate(tiny: Tiny, tmp_path: Path) -> None:
    """An input ten times the calibrated extreme counts as that extreme, and gives no NaN (the format has no infinity)."""
    prepared, ranges = prepare(tiny_model(*tiny.weights), tiny, tmp_path)
    quantize_fp8(prepared, ranges, PER_TENSOR, tmp_path / "variant.onnx")
    amax = np.abs(np.load(tiny.calibration)["x"]).max()
    x = np.sign(np.load(tiny.evaluation)["x"][:20]) * amax
    far = run(tmp_path / "variant.onnx", (x * 10).astype(np.float32))
    assert np.isfinite(far).all()
    np.testing.assert_array_equal(far, run(tmp_path / "variant.onnx", x.astype(np.float32)))


def test_scales_come_from_the_larger_of_both_ends(tiny: Tiny, tmp_path: Path) -> None:
    prepared, ranges = prepare(tiny_model(*tiny.weights), tiny, tmp_path)
    quantize_fp8(prepared, ranges | {"x": (-3.0, 2.0), "hidden": (-1.0, 2.5)}, PER_TENSOR, tmp_path / "variant.onnx")
    constants = {tensor.name: tensor for tensor in onnx.load(tmp_path / "variant.onnx").graph.initializer}
    scales = {name: float(numpy_helper.to_array(constants[f"{name}_scale"])) for name in ("x", "hidden")}
    assert scales == pytest.approx({"x": 3.0 / E4M3_MAX, "hidden": 2.5 / E4M3_MAX})


def test_weight_and_input_of_two_products_are_quantized_once(tiny: Tiny, tmp_path: Path) -> None:
    """Sharing survives: one pair for the weight, one for the input, four products rewired."""
    model = tiny_model(*tiny.weights)
    graph = model.graph
    graph.node.append(helper.make_node("MatMul", ["x", "first"], ["twice"], name="again"))
    graph.node.append(helper.make_node("MatMul", ["hidden", "second"], ["thrice"], name="once_more"))
    graph.output.append(helper.make_tensor_value_info("twice", TensorProto.FLOAT, ["batch", 128]))
    graph.output.append(helper.make_tensor_value_info("thrice", TensorProto.FLOAT, ["batch", 4]))
    onnx.save(model, tmp_path / "model.onnx")
    ranges = minmax(tmp_path / "model.onnx", tiny)
    done = quantize_fp8(tmp_path / "model.onnx", ranges, PER_CHANNEL, tmp_path / "variant.onnx")
    assert len(done.quantized) == 4
    kinds = [node.op_type for node in onnx.load(tmp_path / "variant.onnx").graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (2, 4)


def test_a_model_without_constant_weights_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """No float file goes by the name of FP8."""
    _, ranges = prepare(tiny_model(*tiny.weights), tiny, tmp_path)
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["logits"], name="relu")],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 64])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "r.onnx")
    with pytest.raises(CandidateRefused, match="no node to quantize: no Conv, MatMul or Gemm") as caught:
        quantize_fp8(tmp_path / "r.onnx", ranges, PER_CHANNEL, tmp_path / "variant.onnx")
    assert caught.value.kind == "unsupported" and not (tmp_path / "variant.onnx").exists()


def test_a_scale_that_float32_cannot_hold_is_its_smallest() -> None:
    """A channel of 1e-44: its scale would be zero, and its values NaN."""
    scales = fit_e4m3_weight(np.array([[1e-44, 0.0], [448.0, 0.0]], np.float32), 0)
    assert scales.tolist() == [np.finfo(np.float32).smallest_normal, 1.0]


def test_weights_in_float16_are_rounded_on_float16_scales() -> None:
    """The quotient of a scale that float16 rounds down is above 448, and is the largest number, not NaN."""
    weight = np.array([[1.0, 0.3], [0.001, 0.0007]], np.float16)
    scales = fit_e4m3_weight(weight, 0)
    assert scales.dtype == np.float16
    exact = np.abs(weight.astype(np.float64)).max(axis=1) / 448
    expected = np.maximum(exact.astype(np.float16), np.finfo(np.float16).smallest_normal)
    np.testing.assert_array_equal(scales, expected)
    assert weight[0, 0] / np.float64(scales[0]) > 448
    stored = store_e4m3(weight, scales, 0)
    assert stored.dtype == E4M3 and stored.shape == weight.shape
    wide = weight.astype(np.float64) / scales.astype(np.float64)[:, None]
    np.testing.assert_array_equal(stored.astype(np.float64), round_e4m3(wide))
