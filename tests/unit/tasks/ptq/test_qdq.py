"""Q/DQ models: patterns against integers computed by hand, the runtime's kernels, and its own quantizer on real models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import static_int8
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import BITS_HERE

from tasks.engines.ort.pairs import PAIRS
from tasks.ptq.calibrate.calibration import calibrate, read_ranges
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.affine import WeightBits
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.eight_bit.placement import IN_HALF
from tasks.ptq.eight_bit.qdq import QdqReport, quantize_qdq
from tasks.ptq.graph.edits import scratch
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.ort import open_session, run_batches, run_outputs
from validators.errors import CandidateRefused
from validators.records.run import DataFile, SessionSettings
from validators.samples.datasets import Samples

Floats = NDArray[np.float64]
Array = NDArray[Any]
CPU = "CPUExecutionProvider"
# The first runs integer kernels, whose sums are exact with `BITS_HERE` alone; the second Q/DQ in float, exact with any weights.
ALL, BASIC = SessionSettings(CPU, 1), SessionSettings(CPU, 1, "basic")


@dataclass(frozen=True)
class Case:
    """A float model from `x` to `y` with the values of all tensors on some samples."""

    path: Path
    x: NDArray[np.float32]
    values: dict[str, Array]

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {name: (float(array.min()), float(array.max())) for name, array in self.values.items()}

    def quantize(self, **changes: Any) -> tuple[Path, QdqReport]:
        """The Q/DQ form, and what was done."""
        options: dict[str, Any] = {
            "rules": PAIRS,
            "every_operator": False,
            "activation": "int8" if changes.get("rules") is IN_HALF else "uint8",
            "weights": Int8Weights(),
        }
        variant = self.path.with_name("variant.onnx")
        ranges = changes.pop("ranges", self.ranges)
        return variant, quantize_qdq(self.path, variant, ranges, **(options | changes))


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


def build(
    folder: Path,
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    shape: tuple[int, ...],
    *,
    opset: int = 21,
    dtype: Any = np.float32,
    more: tuple[str, ...] = (),
    rank: int | None = None,
) -> Case:
    """A model on disk; nodes get the names of their outputs."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for node in nodes:
        node.name = node.name or node.output[0]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["n", *shape])],
        [helper.make_tensor_value_info(name, kind, rank and [None] * rank) for name in ("y", *more)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    path = folder / "float.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    x = draw(64, *shape, seed=1).astype(dtype)
    tensors = [node.output[0] for node in nodes]
    watched = onnx.load(path)
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_tensor_value_info(name, kind, None) for name in tensors)
    onnx.save(watched, folder / "watched.onnx")
    with open_session(folder / "watched.onnx", BASIC) as session:
        values = dict(zip(tensors, run_outputs(session, {"x": x}, tensors), strict=True))
    return Case(path, x, {"x": x} | values)


def op(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def run(model: Path, x: Array, settings: SessionSettings = ALL) -> Floats:
    with open_session(model, settings) as session:
        return run_batches(session, [{"x": x}], "y").astype(np.float64)


def kernels(model: Path) -> Counter[str]:
    """The operators of the graph that the runtime really runs."""
    optimized = model.with_name("optimized.onnx")
    with open_session(model, ALL, optimized_model=optimized, without=("NchwcTransformer",)):
        pass
    return Counter(node.op_type for node in onnx.load(optimized).graph.node)


def sqnr_db(exact: Array, found: Array) -> float:
    exact = exact.astype(np.float64)
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


# The reference: integers in float64, which holds them exactly.


@dataclass(frozen=True)
class Steps:
    """UINT8 (or INT8 with zero 0) over a range that holds zero."""

    scale: float
    zero: float
    ends: tuple[int, int] = (0, 255)

    @classmethod
    def over(cls, low: float, high: float) -> Steps:
        low, high = min(low, 0.0), max(high, 0.0)
        scale = float(np.float32((high - low) / 255))
        return cls(scale, float(np.rint(-low / scale)))

    def store(self, real: Array) -> Floats:
        return np.clip(np.rint(real.astype(np.float64) / self.scale) + self.zero, *self.ends)

    def fake(self, real: Array) -> Floats:
        return (self.store(real) - self.zero) * self.scale


def store_weight(weight: Array, axis: int, limit: int = 127) -> tuple[Floats, Floats]:
    """Integers and the scale of each channel, which broadcasts against them."""
    others = tuple(i for i in range(weight.ndim) if i != axis)
    scale = (np.abs(weight).max(axis=others, keepdims=True) / limit).astype(np.float32).astype(np.float64)
    return np.clip(np.rint(weight / scale), -limit, limit), scale


def convolve(x: Floats, weight: Floats) -> Floats:
    """Stride 1, no padding: `(n, c, h, w)` and `(out, c, k, k)` to `(n, out, h - k + 1, w - k + 1)`."""
    windows = sliding_window_view(x, weight.shape[2:], axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight)


def conv_by_hand(x: Array, steps: Steps, weight: Array, bias: Array, limit: int = 127) -> Floats:
    """Sums of integers, with an integer bias, as the real numbers that they stand for."""
    stored, scale = store_weight(weight, 0, limit)
    total = steps.scale * scale.reshape(-1)
    sums = convolve(steps.store(x) - steps.zero, stored) + np.rint(bias / total)[:, None, None]
    return sums * total[:, None, None]


def conv_clip_conv(folder: Path) -> Case:
    constants = {"w": draw(8, 4, 3, 3), "b": draw(8), "w2": draw(6, 8, 1, 1), "b2": draw(6), "low": np.float32(0)}
    constants["high"] = np.float32(6)
    nodes = [op("Conv", "x w b", "c"), op("Clip", "c low high", "r"), op("Conv", "r w2 b2", "y")]
    return build(folder, nodes, constants, (4, 8, 8))


def conv_add_pool(folder: Path) -> Case:
    """Two convolutions, their sum, MaxPool and a third; the sum has a scale of its own."""
    constants = {name: draw(4, 4, 3, 3, seed=seed) for seed, name in enumerate(("w", "w2"))}
    constants |= {"b": draw(4), "b2": draw(4, seed=2), "w3": draw(5, 4, 1, 1), "b3": draw(5)}
    nodes = [
        op("Conv", "x w b", "c"),
        op("Conv", "x w2 b2", "d"),
        op("Add", "c d", "s"),
        op("MaxPool", "s", "p", kernel_shape=[2, 2]),
        op("Conv", "p w3 b3", "y"),
    ]
    return build(folder, nodes, constants, (4, 8, 8))


def gemm_by_hand(x: Array, steps: Steps, weight: Array, bias: Array) -> Floats:
    """`x @ weight + bias` for a weight of shape `(k, n)`."""
    stored, scale = store_weight(weight, 1)
    total = steps.scale * scale.reshape(-1)
    return ((steps.store(x) - steps.zero) @ stored + np.rint(bias / total)) * total


@pytest.mark.parametrize("bits", [8, 7])
def test_conv_clip_conv_is_what_integers_give(tmp_path: Path, bits: int) -> None:
    """Clip goes into saturation; the last output is quantized too, as the kernel has no float output."""
    case = conv_clip_conv(tmp_path)
    variant, report = case.quantize(weights=Int8Weights(bits=bits))
    limit = {8: 127, 7: 64}[bits]
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(case.path).graph.initializer}
    steps = {name: Steps.over(*case.ranges[name]) for name in ("x", "r", "y")}
    first = conv_by_hand(case.x, steps["x"], weights["w"], weights["b"], limit)
    hidden = steps["r"].fake(first)
    y = steps["y"].fake(conv_by_hand(hidden, steps["r"], weights["w2"], weights["b2"], limit))
    found = run(variant, case.x, BASIC)
    assert (np.abs(found - y) <= 1.001 * steps["y"].scale).all() and (np.abs(found - y) < 1e-4).mean() > 0.99
    assert report.quantized == ("c", "y") and not report.left
    assert kernels(variant)["QLinearConv"] == 2 and not kernels(variant).keys() & {"Conv", "FusedConv", "Clip"}
    assert np.abs(case.values["y"] - y).max() > steps["y"].scale  # the reference is not the float model


@pytest.mark.parametrize("second", ["", "places"])
def test_a_pool_that_tells_places_stays_in_float(tmp_path: Path, second: str) -> None:
    """Its second output has integers that no scale fits; an empty one is none."""
    constants = {"w": draw(4, 4, 3, 3), "b": draw(4), "w3": draw(5, 4, 1, 1), "b3": draw(5)}
    pool = op("MaxPool", "c", "p", kernel_shape=[2, 2])
    pool.output.append(second)
    last = "y" if not second else "k"
    nodes = [op("Conv", "x w b", "c"), pool, op("Conv", "p w3 b3", last)]
    if second:
        nodes += [
            op("Cast", "places", "f", to=1),
            op("ReduceMean", "f", "m"),
            op("Mul", "m tiny", "t"),
            op("Add", "k t", "y"),
        ]
        constants["tiny"] = np.float32(1e-3)
    case = build(tmp_path, nodes, constants, (4, 8, 8))
    variant, report = case.quantize(every_operator=True)
    assert ("p" in report.quantized) == (not second)
    assert sqnr_db(case.values["y"], run(variant, case.x, BASIC)) > 25


def test_residual_sum_and_pool_run_in_integers(tmp_path: Path) -> None:
    case = conv_add_pool(tmp_path)
    variant, report = case.quantize(every_operator=True)
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(case.path).graph.initializer}
    steps = {name: Steps.over(*case.ranges[name]) for name in ("x", "c", "d", "s", "y")}
    one = steps["c"].fake(conv_by_hand(case.x, steps["x"], weights["w"], weights["b"]))
    two = steps["d"].fake(conv_by_hand(case.x, steps["x"], weights["w2"], weights["b2"]))
    total = steps["s"].fake(one + two)
    pooled = sliding_window_view(total, (2, 2), axis=(2, 3)).max(axis=(4, 5))
    # MaxPool gives what it was given: no scale of its own.
    y = steps["y"].fake(conv_by_hand(pooled, steps["s"], weights["w3"], weights["b3"]))
    found = run(variant, case.x, BASIC)
    assert np.quantile(np.abs(found - y), 0.99) <= 1.001 * steps["y"].scale
    assert (np.abs(found - y) < 1e-4).mean() > 0.97
    assert report.quantized == ("c", "d", "s", "p", "y")
    ran = kernels(variant)
    assert ran["QLinearConv"] == 3 and ran["QLinearAdd"] == 1 and ran["QuantizeLinear"] == 1
    assert ran["DequantizeLinear"] == 1


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 2.0)])
def test_gemm_is_what_integers_give(tmp_path: Path, trans_b: int, alpha: float, beta: float) -> None:
    """Its factors go into weight and bias; the output stays float, for which its kernel asks nothing."""
    weight, bias = draw(16, 8), draw(8)
    constants = {"w": weight.T.copy() if trans_b else weight, "b": bias}
    case = build(tmp_path, [op("Gemm", "x w b", "y", transB=trans_b, alpha=alpha, beta=beta)], constants, (16,))
    variant, _ = case.quantize()
    expected = gemm_by_hand(case.x, Steps.over(*case.ranges["x"]), alpha * weight, beta * bias)
    np.testing.assert_allclose(run(variant, case.x, BASIC), expected, atol=1e-4)
    assert kernels(variant) == {"QuantizeLinear": 1, "QGemm": 1}


def test_matmul_and_add_become_one_integer_product(tmp_path: Path) -> None:
    """The runtime would make a float Gemm of the last two; between the products Relu and both conversions vanish."""
    constants = {"w": draw(16, 8), "b": draw(8), "w2": draw(8, 4), "b2": draw(4)}
    nodes = [op("MatMul", "x w", "m"), op("Add", "m b", "a"), op("Relu", "a", "r")]
    nodes += [op("MatMul", "r w2", "k"), op("Add", "b2 k", "y")]
    case = build(tmp_path, nodes, constants, (16,))
    variant, report = case.quantize()
    hidden = Steps.over(*case.ranges["r"])
    first = gemm_by_hand(case.x, Steps.over(*case.ranges["x"]), constants["w"], constants["b"])
    expected = gemm_by_hand(hidden.fake(first), hidden, constants["w2"], constants["b2"])
    np.testing.assert_allclose(run(variant, case.x, BASIC), expected, atol=hidden.scale * np.abs(constants["w2"]).max())
    assert report.quantized == ("m", "k")
    assert kernels(variant) == {"QuantizeLinear": 1, "QGemm": 2}


def test_a_sum_with_a_float_tensor_stays_in_float(tmp_path: Path) -> None:
    """To quantize the other operand for this alone costs a conversion and its error."""
    weights = {"w": draw(4, 4, 1, 1), "w2": draw(6, 4, 1, 1)}
    nodes = [op("Conv", "x w", "c"), op("Erf", "x", "e"), op("Add", "c e", "s"), op("Conv", "s w2", "y")]
    variant, report = build(tmp_path, nodes, weights, (4, 8, 8)).quantize(every_operator=True)
    assert report.quantized == ("c", "y") and report.left["s"] == "not between integer kernels"
    ran = kernels(variant)
    assert ran["QLinearConv"] == 2 and ran["Add"] == 1 and not ran["QLinearAdd"]


def test_an_all_but_dead_channel_keeps_its_bias(tmp_path: Path) -> None:
    """Its own scale would be so small that the bias saturates in 32 bits."""
    weight = draw(8, 4, 3, 3)
    weight[2] = 1e-12
    case = build(tmp_path, [op("Conv", "x w b", "y")], {"w": weight, "b": np.full(8, 3, np.float32)}, (4, 8, 8))
    variant, _ = case.quantize()
    np.testing.assert_allclose(run(variant, case.x, BASIC)[:, 2], 3.0, atol=Steps.over(*case.ranges["y"]).scale)


@pytest.mark.parametrize("bits", BITS_HERE)
def test_products_of_two_activations_belong_to_the_wide_scope(tmp_path: Path, bits: WeightBits) -> None:
    constants = {"w": draw(8, 8)}
    nodes = [op("MatMul", "x w", "m"), op("Transpose", "m", "t", perm=[0, 2, 1]), op("MatMul", "m t", "y")]
    case = build(tmp_path, nodes, constants, (5, 8))
    variant, report = case.quantize(weights=Int8Weights(bits=bits))
    assert report.quantized == ("m",) and "no constant" in report.left["y"]
    assert kernels(variant)["MatMulIntegerToFloat"] == 1
    variant, report = case.quantize(weights=Int8Weights(bits=bits), every_operator=True)
    assert report.quantized == ("m", "y")
    assert not kernels(variant).keys() & {"MatMul", "FusedMatMul"}
    assert sqnr_db(case.values["y"], run(variant, case.x)) > 30


CHAINS: dict[str, tuple[onnx.NodeProto, dict[str, Array], str]] = {
    "Sigmoid": (op("Sigmoid", "c", "z"), {}, "QLinearSigmoid"),
    "LeakyRelu": (op("LeakyRelu", "c", "z", alpha=0.1), {}, "QLinearLeakyRelu"),
    "Softmax": (op("Softmax", "c", "z", axis=1), {}, "QLinearSoftmax"),
    "AveragePool": (op("AveragePool", "c", "z", kernel_shape=[2, 2]), {}, "QLinearAveragePool"),
    "GlobalAveragePool": (op("GlobalAveragePool", "c", "z"), {}, "QLinearGlobalAveragePool"),
    "Mul": (op("Mul", "c c", "z"), {}, "QLinearMul"),
    "Add of a constant": (op("Add", "c k", "z"), {"k": draw(8, 1, 1)}, "QLinearAdd"),
    "Concat": (op("Concat", "c c", "z", axis=2), {}, "QLinearConcat"),
    "Transpose": (op("Transpose", "c", "z", perm=[0, 1, 3, 2]), {}, "Transpose"),
    "Slice": (op("Slice", "c k l l", "z"), {"k": np.array([0]), "l": np.array([2])}, "Slice"),
    "Tile": (op("Tile", "c k", "z"), {"k": np.array([1, 1, 1, 2])}, "Tile"),
    "ReduceMax": (op("ReduceMax", "c k", "z"), {"k": np.array([3])}, "ReduceMax"),
}


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("name", CHAINS)
def test_an_operator_between_convolutions_stays_in_integers(tmp_path: Path, name: str, bits: WeightBits) -> None:
    """One QuantizeLinear at the start, one DequantizeLinear at the end, and nothing in float between."""
    node, constants, kernel = CHAINS[name]
    weights = {"w": draw(8, 4, 3, 3), "b": draw(8), "w2": draw(6, 8, 1, 1), "b2": draw(6)}
    node = onnx.NodeProto.FromString(node.SerializeToString())
    nodes = [op("Conv", "x w b", "c"), node, op("Conv", "z w2 b2", "y")]
    case = build(tmp_path, nodes, weights | constants, (4, 8, 8))
    variant, report = case.quantize(weights=Int8Weights(bits=bits), every_operator=True)
    ran = kernels(variant)
    assert ran["QLinearConv"] == 2 and ran[kernel] >= 1
    assert ran["QuantizeLinear"] == ran["DequantizeLinear"] == 1
    assert report.quantized == ("c", "z", "y")
    assert sqnr_db(case.values["y"], run(variant, case.x)) > 25
    # Alone, before a float operator, it would turn integers into float for nobody.
    nodes = [nodes[0], node, op("Erf", "z", "y")]
    case = build(tmp_path, nodes, {"w": weights["w"], "b": weights["b"]} | constants, (4, 8, 8))
    _, report = case.quantize(every_operator=True)
    assert report.quantized == ("c",) and report.left["z"] == "not between integer kernels"


@pytest.mark.parametrize("bits", BITS_HERE)
@pytest.mark.parametrize("keep", [True, False])
def test_a_clip_that_is_no_relu_leaves_no_float_convolution(tmp_path: Path, keep: bool, bits: WeightBits) -> None:
    """The runtime itself folds only what starts at zero. Asked to stay, the Clip stays, between two conversions."""
    constants = {"w": draw(8, 4, 3, 3), "b": draw(8), "low": np.float32(-1), "high": np.float32(1)}
    constants |= {"w2": draw(6, 8, 1, 1)}
    nodes = [op("Conv", "x w b", "c"), op("Clip", "c low high", "r"), op("Conv", "r w2", "y")]
    case = build(tmp_path, nodes, constants, (4, 8, 8))
    wide = case.ranges | {"r": (-3.0, 3.0)}  # a calibrator may widen: never beyond what Clip lets through
    kept = ["r"] if keep else []
    variant, _ = case.quantize(weights=Int8Weights(bits=bits), ranges=wide, keep_float=kept)
    ran = kernels(variant)
    assert ran["QLinearConv"] == 2 and ran["Clip"] == keep
    assert sqnr_db(case.values["y"], run(variant, case.x)) > 25


@pytest.mark.parametrize("activation", ["uint8", "int8"])
@pytest.mark.parametrize(("low", "high"), [(1e-3, 10.0), (-10.0, -1e-3)])
@pytest.mark.parametrize("kind", ["Gemm", "MatMul", "Conv"])
def test_a_clip_whose_range_lacks_zero_is_not_folded(
    tmp_path: Path, kind: str, low: float, high: float, activation: str
) -> None:
    """Integers always stand for zero too, so that saturation cannot do its work: Log of 1e-3 would become Log of 0."""
    rank = {"Gemm": 2, "MatMul": 3, "Conv": 4}[kind]
    shape = {2: (16,), 3: (4, 16), 4: (16, 3, 3)}[rank]
    weight = draw(8, 16, 1, 1) if kind == "Conv" else draw(16, 8)
    constants = {"w": weight, "low": np.float32(low), "high": np.float32(high), "w2": draw(8, 5)}
    nodes = [
        op(kind, "x w", "c"),
        op("Clip", "c low high", "r"),
        op("Abs", "r", "a"),
        op("Log", "a", "y"),
        # A second reader, in integers, may see the clipped tensor quantized; the Log may not.
        *([op("MatMul", "r w2", "z")] if kind == "MatMul" else []),
    ]
    case = build(tmp_path, nodes, constants, shape, more=("z",) if kind == "MatMul" else ())
    weights = Int8Weights(bits=BITS_HERE[-1])
    variant, report = case.quantize(weights=weights, activation=activation, every_operator=True)
    assert "c" in report.quantized
    ran = kernels(variant)
    assert ran["Clip"] == 1 and not ran.keys() & {kind, f"Fused{kind}"}
    found = run(variant, case.x)
    assert np.isfinite(found).all() and found.min() >= np.log(1e-3) - 1e-4
    assert np.median(np.abs(found - case.values["y"])) < 0.05


# TensorRT


def graph_of(path: Path) -> Iterator[tuple[onnx.NodeProto, dict[str, onnx.NodeProto], dict[str, Array]]]:
    graph = onnx.load(path).graph
    made = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in graph.node:
        yield node, made, constants


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tensorrt_gets_symmetric_pairs_on_inputs_only(tmp_path: Path, dtype: Any) -> None:
    """The rules of its parser and builder, one by one: what breaks one is refused there, or silently runs in float."""
    constants: dict[str, Array] = {"w": draw(8, 4, 3, 3).astype(dtype), "b": draw(8).astype(dtype)}
    constants |= {"w2": draw(8, 8, 1, 1).astype(dtype), "shape": np.array([0, -1])}
    constants |= {"w3": draw(8 * 36, 5).astype(dtype), "w4": draw(3, 5).astype(dtype)}
    nodes = [op("Conv", "x w b", "c"), op("Relu", "c", "r"), op("Conv", "r w2", "d"), op("Add", "d r", "s")]
    nodes += [op("Reshape", "s shape", "f"), op("MatMul", "f w3", "m"), op("Gemm", "m w4", "y", transB=1)]
    case = build(tmp_path, nodes, constants, (4, 8, 8), dtype=dtype)
    variant, report = case.quantize(rules=IN_HALF)
    assert report.quantized == ("c", "d", "m", "y")
    axes = {"c": 0, "d": 0, "m": 1, "y": 0}
    readers = Counter[str]()
    for node, made, stored in graph_of(variant):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert stored[node.input[1]].dtype == dtype and (stored[node.input[1]] > 0).all()
            zero = stored[node.input[2]]
            assert zero.dtype == np.int8 and not zero.any()
        elif node.name in axes:
            data, weight = made[node.input[0]], made[node.input[1]]
            assert data.op_type == weight.op_type == "DequantizeLinear"
            assert made[data.input[0]].op_type == "QuantizeLinear" and stored[data.input[1]].shape == ()
            assert stored[weight.input[0]].dtype == np.int8
            assert stored[weight.input[1]].shape == (stored[weight.input[0]].shape[axes[node.name]],)
            assert helper.get_node_attr_value(weight, "axis") == axes[node.name]
            assert len(node.input) < 3 or node.input[2] == "b"
        else:  # Relu, Add and Reshape read what they did
            readers.update(name for name in node.input if name in made and made[name].op_type == "DequantizeLinear")
    assert not readers
    relu = next(node for node, _, _ in graph_of(variant) if node.op_type == "Relu")
    assert relu.input[0] == "c"
    assert sqnr_db(case.values["y"], run(variant, case.x, BASIC)) > 25


# What is left alone, and what is refused


def test_nodes_left_in_float_come_with_the_reason(tmp_path: Path) -> None:
    constants = {"w": draw(8, 8), "w2": draw(8, 8), "w3": draw(8, 8)}
    nodes = [op("MatMul", "x w", "a"), op("FastGelu", "a", "g", domain="com.microsoft"), op("MatMul", "g w2", "m")]
    nodes += [op("MatMul", "m w3", "k"), op("MatMul", "w k", "y")]
    case = build(tmp_path, nodes, constants, (8, 8), rank=3)  # behind a custom operator nobody knows
    ranges = {name: case.ranges[name] for name in case.ranges if name != "m"}
    variant, report = case.quantize(ranges=ranges, keep_float=["a"])
    assert report.quantized == ("m",)
    assert report.left["g"] == "custom operator com.microsoft:FastGelu"
    assert report.left["a"] == "kept in float as asked"
    assert report.left["k"] == "no calibrated range of 'm'"
    assert "constant" in report.left["y"]
    before, after = onnx.load(case.path).graph, onnx.load(variant).graph
    assert list(before.input) == list(after.input) and list(before.output) == list(after.output)
    assert kernels(variant)["MatMulIntegerToFloat"] == 1


@pytest.mark.parametrize("bits", BITS_HERE)
def test_an_output_that_something_else_reads_keeps_its_name(tmp_path: Path, bits: WeightBits) -> None:
    """An inner convolution's result is an output of the model as well: it is quantized under the name that it had."""
    constants = {"w": draw(8, 4, 3, 3), "b": draw(8), "w2": draw(6, 8, 1, 1)}
    case = build(tmp_path, [op("Conv", "x w b", "c"), op("Conv", "c w2", "y")], constants, (4, 8, 8), more=("c",))
    variant, _ = case.quantize(weights=Int8Weights(bits=bits))
    assert kernels(variant)["QLinearConv"] == 2
    with open_session(variant, ALL) as session:
        c, y = run_outputs(session, {"x": case.x}, ["c", "y"])
    assert sqnr_db(case.values["c"], c) > 35 and sqnr_db(case.values["y"], y) > 30


def test_a_shared_weight_is_stored_once(tmp_path: Path) -> None:
    case = build(tmp_path, [op("MatMul", "x w", "a"), op("MatMul", "a w", "y")], {"w": draw(8, 8)}, (8,))
    variant, _ = case.quantize()
    assert (
        sum(
            tensor.data_type == TensorProto.INT8 and len(tensor.dims) == 2
            for tensor in onnx.load(variant).graph.initializer
        )
        == 1
    )


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "unsigned for TensorRT": ({"rules": IN_HALF, "activation": "uint8"}, "unsupported", "uint8 activations"),
    "unknown node": ({"keep_float": ["nothing"]}, "invalid", "nothing"),
    "nothing left": ({"keep_float": ["c", "y"]}, "unsupported", "no node to quantize"),
    "no ranges": ({"ranges": {}}, "unsupported", "no calibrated range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused(tmp_path: Path, name: str) -> None:
    changes, kind, found = REFUSED[name]
    with pytest.raises(CandidateRefused, match=found) as caught:
        conv_clip_conv(tmp_path).quantize(**changes)
    assert caught.value.kind == kind and caught.value.fix


def test_a_quantized_model_an_old_opset_and_float16_are_refused(tmp_path: Path) -> None:
    case = conv_clip_conv(tmp_path)
    variant, _ = case.quantize()
    with pytest.raises(CandidateRefused, match="quantized already"):
        Case(variant, case.x, case.values).quantize()
    old = build(tmp_path, [op("MatMul", "x w", "y")], {"w": draw(8, 8)}, (8,), opset=17)
    with pytest.raises(CandidateRefused, match="opset 17"):
        old.quantize(rules=IN_HALF)
    half = build(tmp_path, [op("MatMul", "x w", "y")], {"w": draw(8, 8).astype(np.float16)}, (8,), dtype=np.float16)
    with pytest.raises(CandidateRefused, match="float16"):
        half.quantize()


# Against the runtime's own quantizer, on real models


def by_runtime(prepared: Path, ranges: dict[str, Range], path: Path, *, every: bool) -> None:
    """What ONNX Runtime's quantizer makes of the same ranges: per channel, UINT8 activations."""
    from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static, save_tensors_data
    from onnxruntime.quantization.calibrate import TensorsData

    ends = {name: tuple(np.array(end, np.float32) for end in found) for name, found in ranges.items()}
    save_tensors_data(TensorsData(CalibrationMethod.MinMax, ends), path.with_suffix(".json"))
    with scratch():  # keeps its advice to itself
        quantize_static(
            onnx.load(prepared),
            str(path),
            calibration_cache_path=path.with_suffix(".json"),
            op_types_to_quantize=None if every else ["MatMul", "Gemm", "Conv"],
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            reduce_range=BITS_HERE[-1] == 7,
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["image", "text"])
def test_real_model_is_as_right_as_with_the_runtimes_quantizer(tmp_path: Path, name: str) -> None:
    """Same ranges, scope, types and bits: 64 samples to calibrate, 64 others to compare; every weighted node in integers."""
    from models.pools import image_pool, text_pool

    pool = {"image": image_pool, "text": text_pool}[name](tmp_path)
    rows = np.random.default_rng(0).permutation(len(pool.labels))
    calibration = pool.take(np.sort(rows[:64]))
    evaluation = Samples(DataFile(Path("e"), "0" * 64, 64), pool.take(np.sort(rows[64:128])).inputs, None)
    prepared, statistics = tmp_path / "prepared.onnx", tmp_path / "statistics.npz"
    prepare_graph(give_head(pool.model), prepared)
    calibrate(prepared, calibration, statistics, threads=2, max_memory_mb=1000)
    ranges = read_ranges(statistics, "minmax", symmetric=False)
    weighted = sum(is_weighted(node, onnx.load(prepared).graph) for node in onnx.load(prepared).graph.node)

    def outputs(model: Path) -> Array:
        with open_session(model, SessionSettings(CPU, 2)) as session:
            return run_batches(session, evaluation.batches(16), pool.output)

    exact = outputs(prepared)
    for every in (False, True):
        by_runtime(prepared, ranges, tmp_path / "theirs.onnx", every=every)
        theirs = sqnr_db(exact, outputs(tmp_path / "theirs.onnx"))
        variant = tmp_path / "ours.onnx"
        static_int8(prepared, ranges, variant, every=every, bits=BITS_HERE[-1])
        # A tenth of a decibel is what a seed moves.
        assert sqnr_db(exact, outputs(variant)) > theirs - 0.1
        ran = kernels(variant)
        integer = sum(ran[kind] for kind in ("QLinearConv", "QLinearMatMul", "MatMulIntegerToFloat", "QGemm"))
        assert integer >= weighted and not ran.keys() & {"Conv", "FusedConv", "Gemm"}


def is_weighted(node: onnx.NodeProto, graph: onnx.GraphProto) -> bool:
    return node.op_type in ("Conv", "MatMul", "Gemm") and node.input[1] in {tensor.name for tensor in graph.initializer}


def give_head(path: Path) -> Path:
    """The pools' heads are zeros, which any quantization leaves exact."""
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("head.weight"):
            tensor.CopyFrom(numpy_helper.from_array(draw(*tensor.dims) / 20, tensor.name))
    onnx.save(model, path)
    return path
