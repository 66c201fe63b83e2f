"""The files for TensorRT: what its parser refuses, or silently runs in float, is in none of them; numbers against numpy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny, statistics_of
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from processors import AMX, AVX2
from real_builds import build
from tensorrt_rules import Array, check_form, draw, op

from tasks.engines.catalog import lint
from tasks.engines.tensorrt.build import build_engine
from tasks.engines.tensorrt.costs import EngineCosts
from tasks.engines.tensorrt.coverage import coverage_of_layers
from tasks.engines.tensorrt.engine import BUILDER
from tasks.engines.tensorrt.forms import make_form
from tasks.engines.variants import make_variant, refuse_other_targets, why_unmeasured
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.calibration import calibrate
from tasks.ptq.calibrate.collect import collect_statistics
from tasks.ptq.calibrate.statistics import save_statistics
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.graph.edits import model_bytes
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.slow_parts import SlowParts, find_slow_parts
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.records.engines import BuildSettings, ShapeRange
from validators.records.measurements import Coverage
from validators.records.run import SessionSettings
from validators.targets import facts_of

BASIC = SessionSettings("CPUExecutionProvider", 2, "basic")
# ONNX Runtime 1.31.1 would store the float16 biases of convolutions as INT32 with scales that float16 rounds to zero.
EXCEPT = ("WeightBiasQuantization",)
Floats = NDArray[np.float64]
FORMS = ("fp16", "int8-static-minmax-pc", "int8-static-mse-pt", "fp8-amax-pc", "int4-g64-rtn")


def patterns(folder: Path, kernel: int = 3) -> tuple[Path, Path, NDArray[np.float32]]:
    """Two convolutions with a residual sum, a concatenation, MatMul, Gemm of both orders, a product of two activations.

    Returns the graph, its statistics and samples `[64, 4, 8, 8]`.
    """
    constants: dict[str, Array] = {
        "w": draw(8, 4, kernel, kernel) / 4,
        "b": draw(8),
        "w2": draw(8, 1, 1, 1),
        "b2": draw(8),
    }
    constants |= {"shape": np.array([0, -1]), "w3": draw(1024, 64) / 30, "w4": draw(64, 64) / 8, "b4": draw(64)}
    constants |= {"w5": draw(128, 64) / 8, "b5": draw(128), "w6": draw(100, 8) / 8, "end": np.array([100])}
    constants |= {"start": np.array([0]), "axes": np.array([1])}
    nodes = [
        op("Conv", "x w b", "c", pads=[kernel // 2] * 4),
        op("Relu", "c", "r"),
        op("Conv", "r w2 b2", "d", group=8),
        op("Add", "d r", "s"),
        op("Concat", "s r", "k", axis=1),
        op("Reshape", "k shape", "f"),
        op("MatMul", "f w3", "m"),
        op("Gemm", "m w4 b4", "g"),
        op("Gemm", "g w5 b5", "h", transB=1),
        op("Slice", "h start end axes", "l"),
        op("MatMul", "l w6", "y"),
    ]
    graph = helper.make_graph(
        nodes,
        "patterns",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), folder / "patterns.onnx")
    x = draw(64, 4, 8, 8, seed=1)
    found = collect_statistics(
        folder / "patterns.onnx",
        lambda size: iter([{"x": x}]),
        threads=1,
        max_memory_mb=500,
        fixed_batch=None,
    )
    save_statistics(folder / "patterns.npz", found.statistics)
    return folder / "patterns.onnx", folder / "patterns.npz", x


def sqnr_db(exact: Array, found: Array) -> float:
    exact = exact.astype(np.float64)
    return float(10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum()))


LEAST_DB = {"fp16": 55, "int8-static-minmax-pc": 25, "int8-static-mse-pt": 22, "fp8-amax-pc": 22, "int4-g64-rtn": 14}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_breaks_no_rule_and_keeps_the_function(tmp_path: Path, name: str) -> None:
    model, statistics, x = patterns(tmp_path)
    candidate = decode(f"{name}@tensorrt")
    changes = make_form(candidate, model, statistics, tmp_path / "form.onnx")
    kinds = check_form(tmp_path / "form.onnx", candidate.precision)
    assert changes["nodes in float16"] == 11 and kinds["Cast"] == 2
    pairs = {"fp16": (0, 0), "int8": (6, 12), "fp8": (6, 12), "int4": (0, 3)}[candidate.precision]
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"]) == pairs
    if candidate.precision == "int4":
        assert changes["MatMul in INT4"] == 3
        assert changes["MatMul left in float16: blocks of 64 do not divide its 100 channels"] == 1
    exact, found = (
        np.asarray(ReferenceEvaluator(onnx.load(path)).run(None, {"x": x})[0])
        for path in (model, tmp_path / "form.onnx")
    )
    assert found.dtype == np.float32
    assert LEAST_DB[name] < sqnr_db(exact, found) < LEAST_DB[name] + 12


def test_the_forms_are_built_with_the_products_that_they_promise(tmp_path: Path) -> None:
    """By TensorRT-RTX, layer by layer; INT4 in a single block is dequantized apart, as the linter says and the build shows."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    model, statistics, _ = patterns(tmp_path)
    paths = [tmp_path / f"{index}.onnx" for index in range(len(FORMS))]
    for name, path in zip(FORMS, paths, strict=True):
        make_form(decode(f"{name}@tensorrt"), model, statistics, path)
    for name, path, built in zip(FORMS, paths, build(*paths), strict=True):
        assert built.engine and not built.errors
        found = [(item.rule, item.node) for item in lint(path, "tensorrt")]
        precision = decode(f"{name}@tensorrt").precision
        if precision in ("int8", "fp8"):
            assert all(built.multiplies_integers(node) for node in ("c", "d", "m", "g", "h", "y"))
            assert found == [("TRT304 padded-channels", "d")]
        elif precision == "int4":
            assert [built.reads(node, "Int4") for node in ("m", "g_MatMul", "h_MatMul")] == [True, False, False]
            assert found == [("TRT206 int4-apart", "g_MatMul"), ("TRT206 int4-apart", "h_MatMul")]
        else:
            assert found == [] and "Int8" not in built.types


BUILD = BuildSettings({"x": ShapeRange((1, 4, 8, 8), (4, 4, 8, 8), (8, 4, 8, 8))})
FAST = decode("int8-static-minmax-pc-fast@tensorrt")


def find_in_engines(folder: Path, *capabilities: str, name: str = FAST.name, large: int = 3) -> SlowParts:
    """Products of `patterns` whose pairs are removed, by real engines for these compute capabilities."""
    model, statistics, x = patterns(folder, large)
    candidate, in_float = decode(name), folder / "float16.onnx"
    make_form(replace(candidate, precision="fp16"), model, statistics, in_float)
    costs = EngineCosts([replace(BUILD, compute_capabilities=(one,)) for one in capabilities], None, {"x": x}, in_float)

    def quantize(_: Path, keep_float: Collection[str], path: Path) -> None:
        make_form(candidate, model, statistics, path, keep_float=keep_float)

    return find_slow_parts(in_float, quantize, costs)


def coverage_without(folder: Path, keep_float: Collection[str]) -> tuple[Coverage, int]:
    """Coverage of the engine for 7.5, and the products with pairs in its file."""
    path = folder / "without.onnx"
    changes = make_form(FAST, folder / "patterns.onnx", folder / "patterns.npz", path, keep_float=keep_float)
    build = replace(BUILD, compute_capabilities=("7.5",))
    engine = build_engine(path, build, folder / "engine", gpu=None, timing_caches=None)
    return coverage_of_layers(path, engine.layers, {"x": draw(4, 4, 8, 8)}), changes["nodes in INT8"]


def test_pairs_that_an_engine_does_not_use_are_removed(tmp_path: Path) -> None:
    """For 7.5, TensorRT-RTX 1.7.1 has no INT8 convolution: with pairs, both run in float16 behind layers that only convert."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    found = find_in_engines(tmp_path, "7.5")
    assert set(found.nodes) == {"c", "d"} and not found.timed
    assert found.after < found.before - 2, "two products in float less, and fewer layers added"
    before, pairs_before = coverage_without(tmp_path, ())
    after, pairs_after = coverage_without(tmp_path, found.nodes)
    assert (pairs_before, pairs_after) == (6, 4)
    assert before.share == after.share > 0, "the same products in INT8, by fewer pairs"
    # With INT8 convolutions nothing is useless, and one file serves both.
    assert find_in_engines(tmp_path, "8.9").nodes == find_in_engines(tmp_path, "7.5", "8.9").nodes == ()


def test_large_kernels_in_fp8_lose_their_pairs(tmp_path: Path) -> None:
    """TensorRT-RTX 1.7.1 has FP8 convolutions for kernels of 3 by 3, and none for 7 by 7."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    name = "fp8-amax-pc-fast@tensorrt"
    assert find_in_engines(tmp_path, "8.9", "12.0", name=name, large=7).nodes == ("c",)
    assert find_in_engines(tmp_path, "8.9", "12.0", name=name).nodes == ()


def half(values: Array) -> Floats:
    """Rounded to float16."""
    return values.astype(np.float16).astype(np.float64)


def test_int8_and_fp8_products_are_what_numpy_computes(tiny: Tiny, tmp_path: Path) -> None:
    """Two layers by hand: float16 weights, scales in float16, codes by rounding, sums in float64."""
    prepare_graph(tiny.model, tmp_path / "prepared.onnx")
    statistics = statistics_of(tmp_path / "prepared.onnx", tiny.calibration)
    x = np.load(tiny.evaluation)["x"][:200]
    seen = np.load(tiny.calibration)["x"]
    first, bias, second = (half(array) for array in tiny.weights)
    for name, largest in (("int8-static-minmax-pc", 127.0), ("fp8-amax-pc", 448.0)):
        make_form(decode(f"{name}@tensorrt"), tmp_path / "prepared.onnx", statistics, tmp_path / "form.onnx")

        def fake(values: Floats, amax: Any, most: float = largest) -> Floats:
            scale = (np.asarray(amax) / most).astype(np.float16).astype(np.float64)
            # The reference divides in the type of the scale.
            codes = np.clip(half(half(values) / scale), -most, most)
            rounded = np.rint(codes) if most == 127 else codes.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)
            return half(rounded * scale)

        weights = [fake(weight, np.abs(weight).max(axis=0)) for weight in (first, second)]
        hidden = np.maximum(seen @ tiny.weights[0] + tiny.weights[1], 0)
        inputs = fake(x.astype(np.float64), np.abs(seen).max())
        layer = np.maximum(half(inputs @ weights[0]) + bias, 0)
        expected = fake(layer, hidden.max()) @ weights[1]
        found = np.asarray(ReferenceEvaluator(onnx.load(tmp_path / "form.onnx")).run(None, {"x": x})[0])
        floats = np.maximum(x @ tiny.weights[0] + tiny.weights[1], 0) @ tiny.weights[2]
        # The reference also adds in float16, which moves some hidden values to the next code.
        assert sqnr_db(expected, found) > sqnr_db(floats, found) + 6


# INT4 blocks


# From the candidate to the file


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prepared tiny model and its statistics."""
    folder = tmp_path_factory.mktemp("materials")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics_of(folder / "prepared.onnx", tiny.calibration)
    return folder


def materials(folder: Path) -> Materials:
    def no(*_: object) -> Any:
        raise AssertionError("not needed for this target")

    return Materials(
        prepared=lambda: folder / "prepared.onnx",
        fused=no,
        smoothed=lambda: SmoothedGraph(folder / "prepared.onnx", 0, 0),
        statistics=lambda of_smoothed: folder / "prepared.statistics.npz",
        ranking=no,
        batches=no,
        grams=no,
        processor=AVX2,
    )


@pytest.mark.parametrize(
    "name", [*facts_of("tensorrt").default_candidates, "int8-static-mse-pt-smooth@tensorrt", "fp8-amax-pt@tensorrt"]
)
def test_a_candidate_is_made_and_then_not_measured(tiny: Tiny, tmp_path: Path, folder: Path, name: str) -> None:
    """The file is there, valid, smaller, and nearly as right; the refusal behind it says so, and why."""
    variant = make_variant(decode(name), materials(folder), tmp_path, threads=2)
    check_form(variant.path, decode(name).precision)
    assert variant.path == tmp_path / "model.onnx" and variant.size_bytes == model_bytes(variant.path)
    assert variant.session == SessionSettings("TensorRT", 2) and variant.proof == "measured" and not variant.notes
    assert variant.size_bytes < 0.75 * model_bytes(folder / "prepared.onnx")
    x, label = (np.load(tiny.evaluation)[key][:300] for key in ("x", "label"))
    right = {}
    for path in (tiny.model, variant.path):
        with open_session(path, BASIC, without=EXCEPT) as session:
            right[path] = (run_batches(session, [{"x": x}], "logits").argmax(axis=1) == label).mean()
    assert right[variant.path] > 0.9 * right[tiny.model]
    refusal = why_unmeasured(variant, ["CPUExecutionProvider"])
    assert refusal is not None and refusal.kind == "unsupported"
    assert refusal.found == f"no TensorRT on this worker: {variant.path} was made and checked, and not measured"


def test_a_variant_of_the_cpu_is_measured(tiny: Tiny, tmp_path: Path, folder: Path) -> None:
    variant = make_variant(decode("int8-static-minmax-pc@ort-cpu"), materials(folder), tmp_path, threads=1)
    assert why_unmeasured(variant, ["CPUExecutionProvider"]) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fp32-fused@tensorrt", "fused graph"),
        ("int8-static-minmax-pc+fused@tensorrt", "fused operators"),
        ("int8-dynamic-pc@tensorrt", "at run time"),
        ("int4-g128-rtn-asym@tensorrt", "zero point"),
        ("int4-g256-rtn@tensorrt", "g256"),
        ("int4-g32-rtn@tensorrt", "g32"),
        ("int4-g128-gptq@tensorrt", "gptq"),
        ("int8-static-mse-pc-bc@tensorrt", "'bc'"),
        ("int8-static-mse-pc-40db@tensorrt", "forms of int8 parts"),
        ("int8-static-mse-pc-keep2@tensorrt", "keep2 for tensorrt"),
        ("fp16@ort-cpu", "fp16 on ort-cpu"),
    ],
)
def test_a_recipe_without_a_form_is_refused(name: str, words: str) -> None:
    with pytest.raises(CandidateRefused, match=words) as caught:
        refuse_other_targets(decode(name), AMX)
    assert caught.value.kind == "unsupported" and caught.value.fix


# Simulation on ONNX Runtime's CPU provider

AS_WRITTEN = dict(BUILDER.as_written)
SIMULATED = replace(BASIC, entries=AS_WRITTEN)
PAIRS = ("QuantizeLinear", "DequantizeLinear", "MatMul", "Gemm")


def optimized(model: Path, settings: SessionSettings, folder: Path) -> Counter[str]:
    """Return the number of pairs and products by type in the graph that the runtime makes of a model."""
    with open_session(model, settings, optimized_model=folder / "optimized.onnx"):
        return pairs_of(folder / "optimized.onnx")


def pairs_of(model: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(model).graph.node if node.op_type in PAIRS)


@pytest.mark.parametrize("name", ["fp16", "int8-static-minmax-pc", "int8-static-mse-pc", "int4-g64-rtn"])
def test_simulation_computes_the_pairs_of_the_file(tmp_path: Path, folder: Path, name: str) -> None:
    candidate = decode(f"{name}@tensorrt")
    path = make_variant(candidate, materials(folder), tmp_path, threads=1).path
    assert optimized(path, SIMULATED, tmp_path) == pairs_of(path)
    if candidate.precision != "fp16":
        assert optimized(path, BASIC, tmp_path) != pairs_of(path)


def test_simulation_moves_no_pair_before_a_reshape(tmp_path: Path) -> None:
    """The runtime would duplicate the pair of the second product before the Reshape."""
    constants: dict[str, Array] = {"w": draw(64, 64), "v": draw(16, 8), "shape": np.array([0, 4, 16])}
    nodes = [op("MatMul", "x w", "p"), op("Reshape", "p shape", "r"), op("MatMul", "r v", "y")]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4, 8]),
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "m.onnx")
    np.savez(tmp_path / "calibration.npz", x=draw(50, 64, seed=1), label=np.zeros(50))
    statistics = statistics_of(tmp_path / "m.onnx", tmp_path / "calibration.npz")
    make_form(decode("int8-static-minmax-pc@tensorrt"), tmp_path / "m.onnx", statistics, tmp_path / "form.onnx")
    moved = {key: names.replace("QDQPropagationTransformer;", "") for key, names in AS_WRITTEN.items()}
    assert optimized(tmp_path / "form.onnx", SIMULATED, tmp_path)["QuantizeLinear"] == 2
    assert optimized(tmp_path / "form.onnx", replace(SIMULATED, entries=moved), tmp_path)["QuantizeLinear"] > 2


def test_disabled_optimizers_exist_in_the_runtime() -> None:
    """The runtime ignores unknown names without a word, so look for them in its library."""
    library = next(Path(ort.__file__).parent.glob("capi/onnxruntime_pybind11_state*"))
    content = library.read_bytes()
    for name in AS_WRITTEN["optimization.disable_specified_optimizers"].split(";"):
        assert name.encode() in content


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool_name", "products", "least_db"),
    [
        ("text", 37, {"fp16": 50, "int8-static-mse-pt": 7, "fp8-amax-pc": 20, "int4-g64-rtn": 7}),
        ("image", 50, {"fp16": 40, "int8-static-minmax-pc": 12, "fp8-amax-pc": -5, "int4-g64-rtn": 18}),
    ],
)
def test_the_demo_models(tmp_path: Path, pool_name: str, products: int, least_db: dict[str, float]) -> None:
    """All products are quantized, no rule is broken, and the numbers are those of the precision."""
    from models.pools import image_pool, text_pool

    pool = {"image": image_pool, "text": text_pool}[pool_name](tmp_path)
    model = onnx.load(pool.model)
    for tensor in model.graph.initializer:
        if tensor.name.endswith("head.weight"):  # zeros in the pools, which any quantization leaves exact
            tensor.CopyFrom(numpy_helper.from_array(draw(*tensor.dims) / 20, tensor.name))
    onnx.save(model, pool.model)
    rows = np.random.default_rng(0).permutation(len(pool.labels))
    prepare_graph(pool.model, tmp_path / "prepared.onnx")
    calibrate(tmp_path / "prepared.onnx", pool.take(rows[:32]), tmp_path / "s.npz", threads=2, max_memory_mb=1000)
    batch = pool.take(rows[32:40]).inputs

    def outputs(path: Path) -> Array:
        with open_session(path, BASIC, without=EXCEPT) as session:
            return run_batches(session, [batch], pool.output)

    exact = outputs(tmp_path / "prepared.onnx")
    for name, least in least_db.items():
        candidate = decode(f"{name}@tensorrt")
        changes = make_form(candidate, tmp_path / "prepared.onnx", tmp_path / "s.npz", tmp_path / "form.onnx")
        check_form(tmp_path / "form.onnx", candidate.precision)
        key = {"int8": "nodes in INT8", "fp8": "nodes in FP8 E4M3", "int4": "MatMul in INT4"}.get(candidate.precision)
        if key:
            assert changes[key] == (1 if (pool_name, key) == ("image", "MatMul in INT4") else products)
        assert sqnr_db(exact, outputs(tmp_path / "form.onnx")) > least
