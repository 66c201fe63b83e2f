"""Odd models through every pass: half precision, contrib operators, functions, branches, loops, sizes that depend on the data.

Each variant is held against the source on other samples than calibration saw, as ONNX Runtime computes both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import static_int8
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tasks.measure.activations import open_tapped, view_samples
from tasks.measure.taps import find_taps
from tasks.ptq.bias_correction import correct_bias
from tasks.ptq.calibration import calibrate
from tasks.ptq.collect import collect_statistics
from tasks.ptq.grams import Gram, collect_grams, tensors_to_collect
from tasks.ptq.graph import gather_weights, notes_of, split_gemm, weighted_nodes
from tasks.ptq.make import Materials, make_variant, quantize_int8
from tasks.ptq.prepare import prepare_graph
from tasks.ptq.qdq import Report
from tasks.ptq.sensitivity import Sensitivity, find_parts, rank_parts
from tasks.ptq.smooth import SmoothedGraph, read_channels, smooth
from tasks.runtimes.coverage import measure_coverage
from validators.datasets import Arrays, Samples
from validators.onnx_graph import check_source_graph
from validators.recipe import Candidate, decode
from validators.records import DataFile, SessionSettings

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
SETTINGS = SessionSettings("CPUExecutionProvider", 1).without_spinning()
node = helper.make_node


def draw(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def info(name: str, kind: int = FLOAT, shape: list[Any] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weights(dtype: type = np.float32) -> dict[str, NDArray[Any]]:
    """Two layers, 64 to 128 to 64."""
    constants = {"w1": draw(64, 128, seed=1) / 8, "b1": draw(128, seed=2) / 4, "w2": draw(128, 64, seed=3) / 11}
    return {name: array.astype(dtype) for name, array in constants.items()}


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, NDArray[Any]],
    *,
    kind: int = FLOAT,
    domains: tuple[str, ...] = (),
    functions: tuple[onnx.FunctionProto, ...] = (),
    opset: int = 21,
) -> onnx.ModelProto:
    """A model of `x[batch, 64]` to `y`."""
    graph = helper.make_graph(
        nodes,
        "odd",
        [info("x", kind, ["batch", 64])],
        [info("y", kind, ["batch", 64])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def layers(*between: onnx.NodeProto) -> list[onnx.NodeProto]:
    """MatMul, Add, what makes `h` of `s`, and MatMul."""
    return [
        node("MatMul", ["x", "w1"], ["p"], name="first"),
        node("Add", ["p", "b1"], ["s"], name="add"),
        *between,
        node("MatMul", ["h", "w2"], ["y"], name="second"),
    ]


def half() -> onnx.ModelProto:
    """All of it float16, with a Cast to float32 and back inside, as exporters put around what overflows."""
    inside = [
        node("Cast", ["s"], ["s32"], to=FLOAT),
        node("Softplus", ["s32"], ["t32"]),
        node("Cast", ["t32"], ["t"], to=HALF),
        node("Constant", [], ["one"], value=numpy_helper.from_array(np.float16(1))),
        node("Sub", ["t", "one"], ["h"]),
    ]
    return model_of(layers(*inside), weights(np.float16), kind=HALF)


def half_weights() -> onnx.ModelProto:
    """Weights in float16, each behind a Cast to float32: nothing else is."""
    casts = [node("Cast", [f"{name}_half"], [name], to=FLOAT) for name in weights()]
    constants = {f"{name}_half": array for name, array in weights(np.float16).items()}
    return model_of([*casts, *layers(node("Relu", ["s"], ["h"]))], constants)


def contrib() -> onnx.ModelProto:
    """Operators of ONNX Runtime's own."""
    nodes = [
        node("MatMul", ["x", "w1"], ["p"], name="first"),
        node("BiasGelu", ["p", "b1"], ["g"], domain="com.microsoft", name="bias_gelu"),
        node("FastGelu", ["g"], ["h"], domain="com.microsoft", name="fast_gelu"),
        node("MatMul", ["h", "w2"], ["q"], name="second"),
        node("Unsqueeze", ["q", "axis"], ["q3"]),
        node("Unsqueeze", ["x", "axis"], ["x3"]),
        node("SkipLayerNormalization", ["q3", "x3", "gamma"], ["n3"], domain="com.microsoft", name="norm"),
        node("Squeeze", ["n3", "axis"], ["y"]),
    ]
    constants = weights() | {"gamma": np.ones(64, np.float32), "axis": np.array([1])}
    return model_of(nodes, constants, domains=("com.microsoft",))


def machine_learning() -> onnx.ModelProto:
    """An operator of ai.onnx.ml."""
    scaler = node("Scaler", ["s"], ["h0"], domain="ai.onnx.ml", name="scaler", offset=[0.5] * 128, scale=[1.5] * 128)
    return model_of(layers(scaler, node("Relu", ["h0"], ["h"])), weights(), domains=("ai.onnx.ml",))


def functions() -> onnx.ModelProto:
    """Functions of the file's own domain; one has the name of a standard operator and does something else."""
    opsets = [helper.make_opsetid("", 21)]
    swish = helper.make_function(
        "acme", "Swish", ["a"], ["b"], [node("Sigmoid", ["a"], ["c"]), node("Mul", ["a", "c"], ["b"])], opsets
    )
    product = helper.make_function(
        "acme",
        "MatMul",
        ["a", "b"],
        ["c"],
        [node("Transpose", ["b"], ["t"]), node("MatMul", ["a", "t"], ["c"])],
        opsets,
    )
    nodes = [
        *layers(node("Swish", ["s"], ["h"], domain="acme", name="swish"))[:-1],
        node("MatMul", ["h", "w2_turned"], ["y"], domain="acme", name="second"),
    ]
    constants = weights()
    constants["w2_turned"] = np.ascontiguousarray(constants.pop("w2").T)
    return model_of(nodes, constants, domains=("acme",), functions=(swish, product))


def branch() -> onnx.ModelProto:
    """An If whose bodies have products of their own and read tensors and weights of the graph."""
    yes = helper.make_graph([node("MatMul", ["s", "square"], ["yes_out"])], "yes", [], [info("yes_out")])
    no = helper.make_graph([node("Neg", ["s"], ["no_out"])], "no", [], [info("no_out")])
    nodes = layers(
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["c"], name="branch", then_branch=yes, else_branch=no),
        node("Relu", ["c"], ["h"]),
    )
    return model_of(nodes, weights() | {"square": draw(128, 128, seed=4) / 11, "zero": np.float32(0)})


def loop() -> onnx.ModelProto:
    """A Loop of three turns with a product in its body."""
    body = helper.make_graph(
        [
            node("MatMul", ["state", "square"], ["turned"]),
            node("Tanh", ["turned"], ["next"]),
            node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [info("turn", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("state")],
        [info("go_on", TensorProto.BOOL, []), info("next")],
    )
    nodes = layers(node("Loop", ["three", "", "s"], ["h"], name="loop", body=body))
    return model_of(nodes, weights() | {"square": draw(128, 128, seed=4) / 11, "three": np.array(3)})


def dependent() -> onnx.ModelProto:
    """Rows of tokens that are picked by their values, as many as there are, and whose mean is added to all."""
    nodes = layers(
        node("ReduceMax", ["s", "last"], ["most"], keepdims=0),
        node("Greater", ["most", "half"], ["large"]),
        node("Compress", ["s", "large"], ["picked"], axis=0),
        node("MatMul", ["picked", "square"], ["product"], name="picked"),
        node("ReduceMean", ["product", "first_axis"], ["mean"], keepdims=1),
        node("Add", ["s", "mean"], ["a"]),
        node("Relu", ["a"], ["h"]),
    )
    constants = {
        "square": draw(128, 128, seed=4) / 11,
        "half": np.float32(0.5),
        "last": np.array([1]),
        "first_axis": np.array([0]),
    }
    return model_of(nodes, weights() | constants)


def constants_as_inputs() -> onnx.ModelProto:
    """Weights that the file lists as inputs too, as old exporters do: a caller may replace them."""
    model = model_of(layers(node("Relu", ["s"], ["h"])), weights())
    model.graph.input.extend(info(name, FLOAT, list(array.shape)) for name, array in weights().items())
    return model


ODD = {
    made.__name__: made
    for made in (
        half,
        half_weights,
        contrib,
        machine_learning,
        functions,
        branch,
        loop,
        dependent,
        constants_as_inputs,
    )
}


@dataclass(frozen=True)
class Odd:
    """A source as it is after step 1, and all that passes start from."""

    source: Path
    folder: Path
    dtype: type

    def batch(self, rows: int, seed: int) -> Arrays:
        return {"x": draw(rows, 64, seed=seed).astype(self.dtype)}

    @cached_property
    def samples(self) -> Samples:
        return Samples(DataFile(self.source, "", 512), self.batch(512, 5), None, {})

    def batches(self) -> list[Arrays]:
        return list(self.samples.batches(8))

    @cached_property
    def prepared(self) -> Path:
        prepare_graph(self.source, self.folder / "prepared.onnx")
        return self.folder / "prepared.onnx"

    @cached_property
    def smoothed(self) -> SmoothedGraph:
        seen = read_channels(self.prepared, self.batches())
        ways = [one.way for one in smooth(self.prepared, self.folder / "smoothed.onnx", seen, symmetric=False).values()]
        return SmoothedGraph(self.folder / "smoothed.onnx", ways.count("folded"), ways.count("multiplied"))

    def statistics(self, of_smoothed: bool) -> Path:
        graph = self.smoothed.path if of_smoothed else self.prepared
        path = graph.with_suffix(".npz")
        calibrate(graph, self.samples, path, threads=1, max_memory_mb=200)
        return path

    def grams(self, candidate: Candidate, float_model: Path) -> dict[str, Gram]:
        tensors = tensors_to_collect(float_model, block_size=candidate.block_size or 32)
        return collect_grams(float_model, tensors, self.batches, max_memory_mb=200)

    def ranking(self, candidate: Candidate) -> tuple[Sensitivity, ...]:
        def quantize(model: Path, kept: Any, path: Path) -> Report:
            return quantize_int8(candidate, self.materials, model, path, keep_float=kept)

        everything = quantize(self.prepared, (), self.folder / "everything.onnx")
        parts = find_parts(onnx.load(self.prepared).graph, everything.quantized)

        return rank_parts(self.prepared, parts, quantize, self.samples, "y", SETTINGS)

    @property
    def materials(self) -> Materials:
        return Materials(
            prepared=lambda: self.prepared,
            fused=lambda: self.prepared,
            smoothed=lambda: self.smoothed,
            statistics=self.statistics,
            ranking=self.ranking,
            batches=self.batches,
            grams=self.grams,
        )


def run(model: Path, batch: Arrays, optimization: str = "all") -> NDArray[Any]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimization == "basic":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    outputs: NDArray[Any] = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(["y"], batch)[
        0
    ]
    return outputs


def distance(one: NDArray[Any], other: NDArray[Any]) -> float:
    """The root of the mean squared difference, in units of the first."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    return float(np.sqrt(np.square(a - b).mean() / np.square(a).mean()))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Odd]:
    """Each odd source once, gathered as step 1 does."""
    seen: dict[str, Odd] = {}

    def get(name: str) -> Odd:
        if name not in seen:
            folder = tmp_path_factory.mktemp(name)
            onnx.save(ODD[name](), folder / "registered.onnx")
            check_source_graph(folder / "registered.onnx")
            gather_weights(folder / "registered.onnx", folder / "source.onnx")
            seen[name] = Odd(folder / "source.onnx", folder, np.float16 if name == "half" else np.float32)
        return seen[name]

    return get


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_prepared_to_the_same_function(made: Callable[[str], Odd], name: str) -> None:
    """Rounding apart; half precision rounds itself, by 2^-11 a value."""
    odd = made(name)
    batch = odd.batch(32, 9)
    before, after = run(odd.source, batch), run(odd.prepared, batch)
    assert before.dtype == after.dtype == odd.dtype
    assert distance(before, after) < (2e-3 if name == "half" else 1e-6)


# The bounds are what INT8, INT4 and FP8 of random weights and values lose: 2^-8, 2^-4 and 2^-4 of a range, over two layers.
CANDIDATES = {
    "int8-static-minmax-pc@ort-cpu": 0.04,
    "int8-static-minmax-pc-all@ort-cpu": 0.06,
    "int8-static-mse-pc-smooth@ort-cpu": 0.08,
    "int8-static-mse-pc-bc@ort-cpu": 0.06,
    "int8-static-minmax-pc-keep1@ort-cpu": 0.04,
    "int8-dynamic-pc@ort-cpu": 0.04,
    "int4-g32-rtn@ort-cpu": 0.25,
    "int4-g32-gptq@ort-cpu": 0.25,
    "int4-g32-awq@ort-cpu": 0.25,
    "fp8-amax-pc@ort-cpu": 0.1,
}


@pytest.mark.parametrize("candidate", CANDIDATES)
@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_goes_through_every_pass(
    made: Callable[[str], Odd], tmp_path: Path, name: str, candidate: str
) -> None:
    """The variant runs low-precision kernels, is not the source, and computes nearly the same."""
    odd = made(name)
    batch = odd.batch(32, 9)
    variant = make_variant(decode(candidate), odd.materials, tmp_path, threads=1)
    lost = distance(run(odd.source, batch), run(variant.path, batch, variant.session.optimization))
    assert 1e-4 < lost < CANDIDATES[candidate]
    coverage = measure_coverage(variant.path, variant.session, batch)
    assert sum(coverage.macs_by_kernel.values()) >= 32 * 64 * 128
    assert variant.is_simulated or coverage.share > 0


@pytest.mark.parametrize("name", ODD)
def test_an_odd_source_is_viewed(made: Callable[[str], Odd], name: str) -> None:
    """What the checks of calibration data look at: finite ranges of what the layers read, a vector a sample."""
    odd = made(name)
    other = Samples(DataFile(odd.source, "", 64), odd.batch(64, 6), None, {})
    with open_tapped(odd.source, SETTINGS, lambda graph: find_taps(graph, "y", None)) as watch:
        view = view_samples(watch, odd.samples, other, most=32, fixed_batch=None, seed=0)
    assert view is not None and np.isfinite(view.reference.vectors).all()
    assert len(view.clipping) >= 1 and all(np.isfinite([one.low, one.high]).all() for one in view.clipping)


def test_half_precision_is_noted_in_the_file_and_nothing_else_is(made: Callable[[str], Odd]) -> None:
    assert notes_of(made("half").prepared) == {
        "widened": "from float16 to float32, which CPU kernels compute in; 4 constants"
    }
    assert notes_of(made("half_weights").prepared).keys() == {"widened"}
    assert notes_of(made("contrib").prepared) == {}


LEFT = {
    "contrib": {
        "bias_gelu": "custom operator com.microsoft:BiasGelu",
        "fast_gelu": "custom operator com.microsoft:FastGelu",
        "norm": "custom operator com.microsoft:SkipLayerNormalization",
    },
    "machine_learning": {"scaler": "custom operator ai.onnx.ml:Scaler"},
    "functions": {},  # the runtime puts their bodies in their place, and those are quantized
}


@pytest.mark.parametrize("name", LEFT)
def test_operators_of_other_domains_are_left_in_float_and_listed(made: Callable[[str], Odd], name: str) -> None:
    """With what they are, beside the two layers that are quantized around them."""
    odd = made(name)
    report = quantize_int8(
        decode("int8-static-minmax-pc@ort-cpu"), odd.materials, odd.prepared, odd.folder / "static.onnx"
    )
    assert len(report.quantized) == 2
    assert report.left == LEFT[name]


def test_products_of_another_domain_are_no_products(tmp_path: Path) -> None:
    """An operator that has the name of a standard one is neither split, nor rounded, nor taken for a layer."""
    nodes = [
        node("MatMul", ["x", "w1"], ["p"], domain="acme", name="first"),
        node("Gemm", ["p", "w2"], ["y"], domain="acme", name="second", transB=0),
    ]
    graph = model_of(nodes, weights(), domains=("acme",)).graph
    assert weighted_nodes(graph) == [] and split_gemm(graph) == 0
    assert [one.op_type for one in graph.node] == ["MatMul", "Gemm"]
    assert find_taps(graph, "y", None).watched == () and find_taps(graph, "y", None).representation == "y"


def test_constants_that_are_inputs_are_constants_alone(made: Callable[[str], Odd]) -> None:
    """In what step 1 makes of the source, so that every pass may store them as it likes."""
    assert [value.name for value in onnx.load(made("constants_as_inputs").source).graph.input] == ["x"]


def test_samples_of_differing_length_go_through_calibration_and_correction(tmp_path: Path) -> None:
    """Tokens by the batch: each batch has a length of its own, and means count every token once."""
    nodes = layers(node("Relu", ["s"], ["h"]))
    model = model_of(nodes, weights())
    for value in (model.graph.input[0], model.graph.output[0]):
        value.CopyFrom(info(value.name, FLOAT, ["batch", "length", 64]))
    onnx.save(model, tmp_path / "source.onnx")
    batches = [{"x": draw(2, length, 64, seed=length)} for length in (3, 17, 1, 40)]
    prepare_graph(tmp_path / "source.onnx", tmp_path / "prepared.onnx")
    seen = collect_statistics(
        tmp_path / "prepared.onnx", None, lambda size: iter(batches), threads=1, max_memory_mb=100, fixed_batch=None
    ).statistics
    ranges = {name: (float(one.minimum), float(one.maximum)) for name, one in seen.items()}
    assert seen["x"].finite == 2 * 61 * 64 and ranges["x"][1] == max(batch["x"].max() for batch in batches)
    static_int8(tmp_path / "prepared.onnx", ranges, tmp_path / "variant.onnx")
    done = correct_bias(tmp_path / "prepared.onnx", tmp_path / "variant.onnx", tmp_path / "corrected.onnx", batches)
    assert list(done.largest) == ["first"]
    grams = collect_grams(tmp_path / "prepared.onnx", {"x": 64}, lambda: batches, max_memory_mb=100)
    tokens = np.concatenate([batch["x"].reshape(-1, 64) for batch in batches]).astype(np.float64)
    np.testing.assert_allclose(grams["x"].matrix, tokens.T @ tokens, rtol=1e-9)
    for batch in batches:
        lost = distance(run(tmp_path / "source.onnx", batch), run(tmp_path / "corrected.onnx", batch))
        assert 1e-4 < lost < 0.04
