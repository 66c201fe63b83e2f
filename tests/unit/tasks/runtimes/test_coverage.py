"""Coverage: multiply-accumulates counted by hand, and float kernels found behind INT8 labels; sessions that refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, static_int8, statistics_of, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.ptq.calibrate.calibration import read_ranges
from tasks.ptq.calibrate.range_methods import Range
from tasks.ptq.eight_bit.dynamic import quantize_dynamic
from tasks.ptq.eight_bit.int8_weights import Int8Weights
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.weight_only.matmul_nbits import BlockWeights, quantize_weights
from tasks.runtimes.coverage import coverage_of, measure_coverage, profile_kernels
from tasks.runtimes.macs import MAC_RULES
from tasks.runtimes.ort import describe_inputs, describe_outputs, installed_runtime, open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.measurements import Coverage, KernelProfile, KernelTime
from validators.records.run import SessionSettings
from validators.samples.datasets import Samples, TensorSpec, load_samples
from validators.targets import BUILT_IN, facts_of_provider

FLOAT = TensorProto.FLOAT
CPU = "CPUExecutionProvider"
ALL, BASIC = SessionSettings(CPU, 1), SessionSettings(CPU, 1, optimization="basic")
Array = NDArray[Any]
Model = tuple[list[onnx.NodeProto], dict[str, Array], dict[str, Array]]


def draw(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def save(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, Array], batch: dict[str, Array]) -> Path:
    """A model whose inputs are those of a batch and whose output is `y`."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in batch.items()
    ]
    output = helper.make_tensor_value_info("y", FLOAT, None)
    weights = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "graph", inputs, [output], weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def matmul(left: tuple[int, ...], right: tuple[int, ...], *, constant: str = "") -> Model:
    """A product of two activations, or with one of them a constant."""
    arrays = {"a": draw(*left), "b": draw(*right)}
    node = helper.make_node("MatMul", ["a", "b"], ["y"], name="product")
    constants = {name: arrays.pop(name) for name in constant}
    return [node], constants, arrays


def gemm(trans_a: int, trans_b: int) -> Model:
    """3 x 8 times 8 x 5."""
    node = helper.make_node("Gemm", ["a", "w", "bias"], ["y"], name="product", transA=trans_a, transB=trans_b)
    weights = {"w": draw(5, 8) if trans_b else draw(8, 5), "bias": draw(5)}
    return [node], weights, {"a": draw(8, 3) if trans_a else draw(3, 8)}


def conv(group: int, stride: int, *, relu: bool = False, dims: int = 2) -> Model:
    """4 channels to 6 over 8 positions in each direction, kernel 3, padding 1."""
    padding = {"pads": [1] * 2 * dims, "strides": [stride] * dims, "group": group}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c" if relu else "y"], name="conv", **padding)]
    if relu:
        nodes.append(helper.make_node("Relu", ["c"], ["y"], name="relu"))
    return nodes, {"w": draw(6, 4 // group, *[3] * dims)}, {"x": draw(1, 4, *[8] * dims)}


def quantized_conv() -> Model:
    """A Conv between Q/DQ pairs: 4 channels to 6 in two groups over 8 x 8 positions, stride 2."""
    scale, zero = np.float32(0.02), np.uint8(128)
    node = helper.make_node
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["xq"], name="q"),
        node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"], name="d"),
        node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], name="w_d", axis=0),
        node("Conv", ["xd", "wd"], ["c"], name="conv", group=2, strides=[2, 2], pads=[1, 1, 1, 1]),
        node("QuantizeLinear", ["c", "scale", "zero"], ["cq"], name="c_q"),
        node("DequantizeLinear", ["cq", "scale", "zero"], ["y"], name="c_d"),
    ]
    weight = np.random.default_rng(0).integers(-127, 128, (6, 2, 3, 3)).astype(np.int8)
    constants = {"w": weight, "w_scale": np.full(6, 0.01, np.float32), "w_zero": np.zeros(6, np.int8)}
    return nodes, constants | {"scale": scale, "zero": zero}, {"x": draw(1, 4, 8, 8)}


def attention() -> Model:
    """A fused attention of 2 sequences of 5 tokens, 12 features in, 8 out in 2 heads."""
    node = helper.make_node(
        "Attention", ["x", "w", "bias"], ["y"], name="attention", num_heads=2, domain="com.microsoft"
    )
    return [node], {"w": draw(12, 24), "bias": draw(24)}, {"x": draw(2, 5, 12)}


def recurrent(kind: str, gates: int) -> Model:
    """7 steps of 2 sequences, 12 features in, 8 hidden."""
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], name="recurrent", hidden_size=8)
    return [node], {"w": draw(1, gates * 8, 12), "r": draw(1, gates * 8, 8)}, {"x": draw(7, 2, 12)}


def einsum(equation: str, left: tuple[int, ...], right: tuple[int, ...], *, constant: str = "") -> Model:
    _, constants, batch = matmul(left, right, constant=constant)
    return [helper.make_node("Einsum", ["a", "b"], ["y"], name="product", equation=equation)], constants, batch


def attention_of_three() -> Model:
    """2 sequences of 5 queries and 9 keys, 16 features in 2 heads."""
    node = helper.make_node(
        "MultiHeadAttention", ["q", "k", "v"], ["y"], name="attention", num_heads=2, domain="com.microsoft"
    )
    return [node], {}, {"q": draw(2, 5, 16), "k": draw(2, 9, 16), "v": draw(2, 9, 16)}


def computed_weight() -> Model:
    """A Conv whose weight is no constant: 4 channels to 6 over 8 x 8 positions, kernel 3, padding 1."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1, 1, 1, 1])
    return [node], {}, {"x": draw(1, 4, 8, 8), "w": draw(6, 4, 3, 3)}


# By hand: elements of the output times the length of the sum behind each.
COUNTED: dict[str, tuple[Callable[[], Model], dict[str, int]]] = {
    "matmul": (lambda: matmul((3, 8), (8, 5), constant="b"), {"MatMul": 3 * 5 * 8}),
    "matmul with leading axes": (lambda: matmul((2, 7, 3, 8), (8, 5), constant="b"), {"MatMul": 2 * 7 * 3 * 5 * 8}),
    "matmul of two activations": (lambda: matmul((2, 3, 8), (2, 8, 5)), {"MatMul": 2 * 3 * 5 * 8}),
    "matmul that broadcasts": (lambda: matmul((4, 1, 3, 8), (2, 8, 5)), {"MatMul": 4 * 2 * 3 * 5 * 8}),
    "matmul, weight on the left": (lambda: matmul((3, 8), (8, 5), constant="a"), {"MatMul": 3 * 5 * 8}),
    "matmul, vector": (lambda: matmul((8,), (8, 5), constant="b"), {"MatMul": 5 * 8}),
    "gemm": (lambda: gemm(0, 0), {"Gemm": 3 * 5 * 8}),
    "gemm, transA": (lambda: gemm(1, 0), {"Gemm": 3 * 5 * 8}),
    "gemm, transB": (lambda: gemm(0, 1), {"Gemm": 3 * 5 * 8}),
    "gemm, both": (lambda: gemm(1, 1), {"Gemm": 3 * 5 * 8}),
    "conv, groups": (lambda: conv(2, 1), {"Conv": 6 * 8 * 8 * 2 * 3 * 3}),
    "conv, groups and stride": (lambda: conv(2, 2), {"Conv": 6 * 4 * 4 * 2 * 3 * 3}),
    "conv, one dimension": (lambda: conv(1, 2, dims=1), {"Conv": 6 * 4 * 4 * 3}),
    "fused conv": (lambda: conv(2, 2, relu=True), {"FusedConv": 6 * 4 * 4 * 2 * 3 * 3}),
    "quantized conv": (quantized_conv, {"QLinearConv": 6 * 4 * 4 * 2 * 3 * 3}),
    "conv, its weight computed": (computed_weight, {"Conv": 6 * 8 * 8 * 4 * 3 * 3}),
    "gru": (lambda: recurrent("GRU", 3), {"GRU": 7 * 2 * 3 * 8 * (12 + 8)}),
    "lstm": (lambda: recurrent("LSTM", 4), {"LSTM": 7 * 2 * 4 * 8 * (12 + 8)}),
    "rnn": (lambda: recurrent("RNN", 1), {"RNN": 7 * 2 * 8 * (12 + 8)}),
    "einsum": (lambda: einsum("bik,hkn->bhin", (3, 4, 16), (2, 16, 8), constant="b"), {"Einsum": 3 * 4 * 2 * 8 * 16}),
    "einsum, no arrow": (lambda: einsum("bk,kn", (3, 16), (16, 8)), {"Einsum": 3 * 16 * 8}),
    "einsum, ellipsis": (lambda: einsum("...k,nk->...n", (2, 3, 16), (8, 16)), {"Einsum": 2 * 3 * 16 * 8}),
    "attention of three": (attention_of_three, {"MultiHeadAttention": 2 * (2 * 5 * 9 * 16)}),
    "attention": (attention, {"Attention": 2 * 5 * 12 * 24 + 2 * (2 * 5 * 5 * 8)}),
}


@pytest.mark.parametrize("case", COUNTED)
def test_multiply_accumulates_are_those_counted_by_hand(tmp_path: Path, case: str) -> None:
    """By the kernel that ran, whichever operand is the weight, with groups, strides and leading axes."""
    make, expected = COUNTED[case]
    nodes, constants, batch = make()
    seen = measure_coverage(save(tmp_path / "model.onnx", nodes, constants, batch), ALL, batch)
    assert seen.macs_by_kernel == expected
    assert seen.providers == (CPU,)
    low = set(expected) <= facts_of_provider(CPU).low_precision
    assert seen.share == (1.0 if low else 0.0)
    assert bool(seen.float_nodes) != low


# The prepared tiny model, its ranges, and its calibration samples.
Ready = tuple[Path, dict[str, Range], Samples]


@pytest.fixture(scope="module")
def ready(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Ready:
    """The prepared tiny model, its ranges, and its calibration samples."""
    folder = tmp_path_factory.mktemp("coverage")
    spec = (TensorSpec("x", "float32", ("batch", 64)),)
    samples = load_samples(tiny.calibration, spec, label="label", role="calibration")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics = statistics_of(folder / "prepared.onnx", tiny.calibration)
    return folder / "prepared.onnx", read_ranges(statistics, "minmax", symmetric=False), samples


FIRST, SECOND, ROWS = 64 * 128, 128 * 4, 3


def quantized(ready: Ready, name: str, path: Path) -> Path:
    prepared, ranges, _ = ready
    candidate = decode(name)
    if candidate.precision == "int4":
        quantize_weights(prepared, path, BlockWeights("rtn", 32, True))
    elif candidate.dynamic:
        quantize_dynamic(prepared, path, weights=Int8Weights(candidate.granularity == "pc"))
    else:
        static_int8(prepared, ranges, path)
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("int8-static-minmax-pc@ort-cpu", {"QGemm": ROWS * FIRST, "MatMulIntegerToFloat": ROWS * SECOND}),
        ("int8-dynamic-pc@ort-cpu", {"DynamicQuantizeMatMul": ROWS * (FIRST + SECOND)}),
        ("int4-g32-rtn@ort-cpu", {"MatMulNBits": ROWS * (FIRST + SECOND)}),
    ],
)
def test_a_variant_whose_kernels_are_integer_is_covered_whole(
    ready: Ready, tmp_path: Path, name: str, expected: dict[str, int]
) -> None:
    """The tiny model's two products, for three rows, by the kernels that the runtime made of each recipe."""
    path = quantized(ready, name, tmp_path / "variant.onnx")
    seen = measure_coverage(path, ALL, {"x": ready[2].inputs["x"][:ROWS]})
    assert seen.macs_by_kernel == expected
    assert (seen.share, seen.float_nodes) == (1.0, ())
    assert seen.low_precision == tuple(sorted(expected))


def test_the_float_model_covers_nothing(tiny: Tiny, ready: Ready) -> None:
    """Both products are named, the larger first."""
    seen = measure_coverage(ready[0], ALL, {"x": ready[2].inputs["x"][:ROWS]})
    assert sum(seen.macs_by_kernel.values()) == ROWS * (FIRST + SECOND)
    assert seen.share == 0.0 and seen.low_precision == ()
    assert len(seen.float_nodes) == 2
    assert "first_matmul" in seen.float_nodes[0] and "second_matmul" in seen.float_nodes[1]


def test_an_int8_file_that_runs_float_kernels_is_found_out(ready: Ready, tmp_path: Path) -> None:
    """At the level basic nothing fuses Q/DQ pairs: the file is INT8, its products are not."""
    path = quantized(ready, "int8-static-minmax-pc@ort-cpu", tmp_path / "variant.onnx")
    assert {"QuantizeLinear", "DequantizeLinear"} <= {node.op_type for node in onnx.load(path).graph.node}
    seen = measure_coverage(path, BASIC, {"x": ready[2].inputs["x"][:ROWS]})
    assert seen.share == 0.0
    assert seen.float_nodes == ("first_matmul/MatMulAddFusion", "second_matmul")
    assert seen.macs_by_kernel == {"Gemm": ROWS * FIRST, "MatMul": ROWS * SECOND}


def test_one_side_in_float_is_a_float_kernel(tmp_path: Path) -> None:
    """Activations through a Q/DQ pair, weights in float: the file has the operators, no product is of integers."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="q"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="d"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="product"),
    ]
    constants = {"w": draw(8, 5), "scale": np.float32(0.02), "zero": np.uint8(128)}
    batch = {"x": draw(3, 8)}
    seen = measure_coverage(save(tmp_path / "model.onnx", nodes, constants, batch), ALL, batch)
    assert (seen.share, seen.macs_by_kernel, seen.float_nodes) == (0.0, {"MatMul": 120}, ("product",))


def test_a_half_quantized_model_is_covered_by_its_share(tiny: Tiny, ready: Ready, tmp_path: Path) -> None:
    """A float product beside the quantized ones: shares add up to the multiply-accumulates of all three."""
    path = quantized(ready, "int8-static-minmax-pc@ort-cpu", tmp_path / "variant.onnx")
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(draw(64, 50), "beside"))
    model.graph.node.append(helper.make_node("MatMul", ["x", "beside"], ["z"], name="float_product"))
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, ["batch", 50]))
    onnx.save(model, path)
    seen = measure_coverage(path, ALL, {"x": ready[2].inputs["x"][:ROWS]})
    floats, whole = 64 * 50, FIRST + SECOND + 64 * 50
    assert sum(seen.macs_by_kernel.values()) == ROWS * whole
    assert seen.share == pytest.approx(1 - floats / whole)
    assert seen.float_nodes == ("float_product",)
    work = {product.name: product for product in seen.products}
    assert sorted(product.macs for product in seen.products) == sorted(ROWS * macs for macs in (FIRST, SECOND, floats))
    assert seen.precision(work["float_product"].kernel) == "float"
    assert [seen.precision(product.kernel) for product in seen.products].count("low") == 2


def test_shares_of_a_table() -> None:
    """The share is that of the kernels named as low precision; a model without any product covers nothing."""
    kernels = {"QGemm": 60, "MatMul": 30, "MatMulNBits": 10}
    assert Coverage(kernels, ("QGemm", "MatMulNBits"), ("m",), ()).share == 0.7
    assert Coverage(kernels, (), ("m",), ()).share == 0.0
    assert Coverage({}, (), (), ()).share == 0.0


def test_every_low_precision_kernel_has_a_rule() -> None:
    """One without a rule would count nothing where it ran."""
    products = ("MatMul", "Gemm", "Conv", "Attention", "LSTM")
    multiply = {
        name for one in BUILT_IN.values() for name in one.low_precision if any(kind in name for kind in products)
    }
    assert multiply - set(MAC_RULES) == {"QOrderedLongformerAttention"}, "its window is not in the profile"


def test_the_tables_name_kernels_that_exist() -> None:
    """A name that no runtime has would never be met: those of the CPU are registered here, those of CUDA are operators."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    here = {kernel.op_name for kernel in state.get_all_opkernel_def() if kernel.provider == CPU}
    assert facts_of_provider(CPU).low_precision <= here
    operators = {schema.name for schema in state.get_all_operator_schema()}
    assert facts_of_provider("CUDAExecutionProvider").low_precision <= operators


@pytest.mark.parametrize("names", [("", "", ""), ("same", "same", "same")])
def test_nodes_without_a_name_of_their_own_are_counted(tmp_path: Path, names: tuple[str, str, str]) -> None:
    """Three products in float, of which the profile's names fit no node of the file."""
    nodes, constants, batch = matmul((3, 8), (8, 8), constant="b")
    nodes[0].output[0] = "t0"
    for place in (1, 2):
        nodes.append(helper.make_node("Erf", [f"t{place - 1}"], [f"e{place}"]))
        nodes.append(helper.make_node("MatMul", [f"e{place}", "b"], ["y" if place == 2 else f"t{place}"]))
    for node, name in zip((node for node in nodes if node.op_type == "MatMul"), names, strict=True):
        node.name = name
    seen = measure_coverage(save(tmp_path / "model.onnx", nodes, constants, batch), ALL, batch)
    assert seen.macs_by_kernel == {"MatMul": 3 * (3 * 8 * 8)}
    assert len(set(seen.float_nodes)) == 3


# Time, and what else ran


def event(name: str, kind: str, dur: int, provider: str = CPU, **types: str) -> dict[str, Any]:
    shapes = [{dtype: [2, 3]} for dtype in types.values()]
    args = {"op_name": kind, "provider": provider, "input_type_shape": shapes, "output_type_shape": shapes}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": dur, "args": args}


EMPTY = helper.make_graph([], "empty", [], [])


def test_shares_of_time_are_those_of_a_table_made_by_hand() -> None:
    """30 us in integers, 20 in float16, 40 in float, 10 by another provider; what holds a body has no time of its own."""
    events = [
        event("a", "QGemm", 30, x="uint8"),
        event("b", "Erf", 20, x="float16"),
        event("c", "Cast", 15, x="float16"),
        event("d", "Softmax", 25, x="float"),
        event("e", "QGemm", 10, "OtherExecutionProvider", x="uint8"),
        event("f", "If", 500, x="bool"),
    ]
    seen = coverage_of(EMPTY, events, CPU, 1)
    assert seen.us_by_kernel == {
        "QGemm": 30.0, "Erf in float16": 20.0, "Cast": 15.0, "Softmax": 25.0, "QGemm on OtherExecutionProvider": 10.0
    }  # fmt: skip
    assert (seen.time_share, seen.half_time_share) == (0.3, 0.5)
    assert seen.providers == (CPU, "OtherExecutionProvider")


def kernel(name: str, kind: str, us: float = 1.0) -> KernelTime:
    return KernelTime(name, kind, CPU, us)


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        # One more than before: the one of a new name.
        ([("a", "Cast", 5), ("b", "Cast", 3)], [("a", "Cast")], ["b"]),
        # As many as before under other names: a difference of none is none.
        ([("x", "Cast", 5), ("y", "Cast", 3)], [("a", "Cast"), ("b", "Cast")], []),
        # One more, of three new names: the one that takes longest.
        ([("x", "Cast", 5), ("y", "Cast", 3), ("z", "Cast", 9)], [("a", "Cast"), ("b", "Cast")], ["z"]),
        # Kinds do not make up for one another; what is no glue is not looked at.
        ([("t", "Transpose", 1), ("s", "Softmax", 1)], [("r", "ReorderInput"), ("q", "ReorderOutput")], ["t"]),
        ([], [("a", "Cast")], []),
    ],
)
def test_what_was_inserted_is_a_difference(
    ours: list[tuple[str, str, int]], theirs: list[tuple[str, str]], expected: list[str]
) -> None:
    before = KernelProfile(tuple(kernel(*each) for each in theirs))
    seen = coverage_of(EMPTY, [event(*each, x="float") for each in ours], CPU, 1, before)
    assert [each.name for each in seen.inserted] == expected
    assert sum(seen.inserted_counts.values()) == len(expected)


def test_an_integer_convolution_brings_two_transposes(tmp_path: Path) -> None:
    """The runtime's integer kernel wants channels last: beside its float twin, both ends are turned."""
    nodes, constants, batch = quantized_conv()
    path = save(tmp_path / "quantized.onnx", nodes, constants, batch)
    weight = constants["w"] * constants["w_scale"][:, None, None, None]
    twin = [helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=2, strides=[2, 2], pads=[1, 1, 1, 1])]
    before = profile_kernels(save(tmp_path / "float.onnx", twin, {"w": weight}, batch), ALL, batch)
    seen = measure_coverage(path, ALL, batch, baseline=before, folder=tmp_path)
    assert seen.inserted_counts == {"Transpose": 2}
    assert measure_coverage(path, ALL, batch).inserted == ()
    assert seen.kernels_path is not None
    listed = json.loads(seen.kernels_path.read_text())
    assert {each["kind"] for each in listed} == {"QuantizeLinear", "Transpose", "QLinearConv", "DequantizeLinear"}
    assert sum(each["microseconds"] for each in listed) == pytest.approx(sum(seen.us_by_kernel.values()))


def test_a_blocked_convolution_is_timed_as_it_runs(tmp_path: Path) -> None:
    """Work is counted without the padding of channels, time with the reorders around them."""
    nodes, constants, batch = conv(1, 1, relu=True)
    constants["w"], batch["x"] = draw(16, 16, 3, 3), draw(1, 16, 8, 8)
    seen = measure_coverage(save(tmp_path / "model.onnx", nodes, constants, batch), ALL, batch)
    assert sum(seen.macs_by_kernel.values()) == 16 * 8 * 8 * 16 * 9
    assert {"ReorderInput", "ReorderOutput"} <= set(seen.us_by_kernel)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 10**12), max_size=6), st.sets(st.sampled_from("abcdef"))
)
def test_shares_stay_between_nothing_and_all(amounts: dict[str, int], low: set[str]) -> None:
    """And those of low, half and unknown together are at most one."""
    times = {name: float(amount) for name, amount in amounts.items()}
    seen = Coverage(amounts, tuple(low), (), (), tuple(set("abc") - low), us_by_kernel=times)
    assert 0 <= seen.share <= seen.half_share <= 1
    assert (seen.time_share is None) == (not amounts)
    if seen.time_share is not None and seen.half_time_share is not None:
        assert 0 <= seen.time_share <= seen.half_time_share <= 1
        assert seen.time_share == pytest.approx(seen.share)


# Sessions


def test_a_session_says_what_the_model_takes_and_gives(tiny: Tiny) -> None:
    """Names, numpy dtypes, and dynamic axes by name."""
    with open_session(tiny.model, ALL) as session:
        assert describe_inputs(session) == (TensorSpec("x", "float32", ("batch", 64)),)
        assert describe_outputs(session) == (TensorSpec("logits", "float32", ("batch", 4)),)
        x = draw(7, 64)
        outputs = run_batches(session, [{"x": x[:5]}, {"x": x[5:]}], "logits")
    first, bias, second = tiny.weights
    np.testing.assert_allclose(outputs, np.maximum(x @ first + bias, 0) @ second, rtol=1e-4, atol=1e-4)


def test_a_file_that_does_not_load_is_refused(tmp_path: Path) -> None:
    """Kind invalid, with the runtime's reason in one line."""
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with (
        pytest.raises(CandidateRefused, match=r"does not load model\.onnx") as caught,
        open_session(tmp_path / "model.onnx", ALL),
    ):
        pass
    assert caught.value.kind == "invalid" and "\n" not in caught.value.found


def test_samples_that_do_not_run_are_refused(tiny: Tiny) -> None:
    """Kind invalid, when the runtime fails while it runs."""
    with (
        open_session(tiny.model, ALL) as session,
        pytest.raises(CandidateRefused, match="fails on the model") as caught,
    ):
        run_batches(session, [{"x": draw(2, 63)}], "logits")
    assert caught.value.kind == "invalid"


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_another_provider_than_asked_for_is_refused(tiny: Tiny) -> None:
    """The runtime falls back to the CPU in silence: that is a refusal of kind unsupported, not a session."""
    with (
        pytest.raises(CandidateRefused, match="CPUExecutionProvider") as caught,
        open_session(tiny.model, SessionSettings("NoSuchExecutionProvider", 1)),
    ):
        pass
    assert caught.value.kind == "unsupported" and "NoSuchExecutionProvider" in caught.value.expected


def test_settings_reach_the_session(tmp_path: Path, tiny: Tiny) -> None:
    """The level decides what the runtime makes of the graph, threads and entries are those given."""
    onnx.save(tiny_model(*tiny.weights), tmp_path / "model.onnx")
    settings = SessionSettings(CPU, 1, "basic", {"session.intra_op.allow_spinning": "0"})
    with open_session(tmp_path / "model.onnx", settings, optimized_model=tmp_path / "optimized.onnx") as session:
        options = session.get_session_options()
        assert options.intra_op_num_threads == 1 and options.inter_op_num_threads == 1
        assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds == ["Gemm", "Relu", "MatMul"]
    with open_session(tmp_path / "model.onnx", ALL, optimized_model=tmp_path / "optimized.onnx"):
        pass
    assert "FusedGemm" in {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}


def test_the_installed_runtime_is_the_one_that_runs() -> None:
    """Name and version as the module itself says."""
    import onnxruntime as ort

    assert installed_runtime() == ("onnxruntime", ort.__version__)


def branch(name: str) -> onnx.GraphProto:
    node = helper.make_node("MatMul", ["x", "w"], [name], name=f"product_{name}")
    return helper.make_graph([node], name, [], [helper.make_tensor_value_info(name, FLOAT, None)])


def test_products_in_a_branch_count(tmp_path: Path) -> None:
    """The branch that ran, 2 x 8 times 8 x 5: a float product does not hide in it."""
    nodes = [helper.make_node("If", ["yes"], ["y"], name="if", then_branch=branch("a"), else_branch=branch("b"))]
    batch = {"x": draw(2, 8), "yes": np.array(True)}
    path = save(tmp_path / "model.onnx", nodes, {"w": draw(8, 5)}, batch)
    seen = measure_coverage(path, ALL, batch)
    assert seen.macs_by_kernel == {"MatMul": 80} and seen.float_nodes == ("product_a",)


@pytest.mark.parametrize(("shape", "heads"), [((1, 2, 6, 8), {}), ((1, 6, 16), {"q_num_heads": 2, "kv_num_heads": 2})])
def test_standard_attention_counts(tmp_path: Path, shape: tuple[int, ...], heads: dict[str, int]) -> None:
    """Opset 23's Attention has no projection: 2 heads, 6 queries, 6 keys, 8 features; scores and context."""
    nodes = [helper.make_node("Attention", ["q", "k", "v"], ["y"], name="attention", **heads)]
    batch = {name: draw(*shape) for name in "qkv"}
    path = save(tmp_path / "model.onnx", nodes, {}, batch)
    model = onnx.load(path)
    model.opset_import[0].version = 23
    onnx.save(model, path)
    seen = measure_coverage(path, ALL, batch)
    assert seen.macs_by_kernel == {"Attention": 2 * (2 * 6 * 6 * 8)}


@pytest.mark.parametrize(("channels", "out", "group"), [(3, 6, 1), (16, 20, 1), (8, 8, 8), (16, 32, 1)])
def test_channels_that_the_runtime_pads_count_once(tmp_path: Path, channels: int, out: int, group: int) -> None:
    """ONNX Runtime stores float channels in blocks of 8 or 16; what is counted is the convolution, not the padding."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", group=group, strides=[2, 2], pads=[1, 1, 1, 1])
    batch = {"x": draw(1, channels, 8, 8)}
    weight = draw(out, channels // group, 3, 3)
    path = save(tmp_path / "model.onnx", [node], {"w": weight}, batch)
    seen = measure_coverage(path, ALL, batch)
    assert sum(seen.macs_by_kernel.values()) == out * 4 * 4 * (channels // group) * 3 * 3


def test_a_transposed_convolution_counts(tmp_path: Path) -> None:
    """4 channels of 8 x 8 positions, each meeting 5 kernels of 3 x 3."""
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], name="conv")
    batch = {"x": draw(1, 4, 8, 8)}
    path = save(tmp_path / "model.onnx", [node], {"w": draw(4, 5, 3, 3)}, batch)
    assert sum(measure_coverage(path, ALL, batch).macs_by_kernel.values()) == 4 * 8 * 8 * 5 * 3 * 3


def test_a_variant_that_loads_and_does_not_run_is_refused(tmp_path: Path) -> None:
    """An index beyond the product's columns: ONNX Runtime loads the file, and fails at the first request."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["t"], name="product"),
        node("Gather", ["t", "beyond"], ["y"], name="gather", axis=1),
    ]
    constants = {"w": draw(16, 8), "beyond": np.array([99], np.int64)}
    batch = {"x": draw(4, 16)}
    path = save(tmp_path / "model.onnx", nodes, constants, batch)
    with pytest.raises(CandidateRefused, match=r"fails on the model.*Gather") as caught:
        measure_coverage(path, ALL, batch)
    assert caught.value.kind == "invalid"
