"""Costs by engines: layers and times written by hand, and a stand-in for a GPU that times the layers of a file by a table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_models import FLOAT16, op, save
from tensorrt_rules import draw

from tasks.engines.tensorrt import costs
from tasks.engines.tensorrt.costs import EngineCosts, added_layers, product_times
from tasks.ptq.slow_parts import SlowParts, find_slow_parts
from validators.errors import CandidateRefused
from validators.records.engines import BuildSettings, BuiltEngine, EngineLayer, EngineManifest
from validators.records.run import Gpu

GPU = Gpu("a GPU", "GPU-1", "9.0", "580.95.05", 80_000_000_000)
BATCH = {"x": np.ones((4, 32), np.float16)}
HALF, INT8 = ("float16",), ("int8",)
PRODUCTS = ("a", "b", "c")


def chain(path: Path, quantized: Collection[str]) -> Path:
    """Three products of 32 channels in a row, those of these names with pairs."""
    nodes, constants = [], {"s": np.array(0.02, np.float16), "z": np.array(0, np.int8)}
    tensor = "x"
    for name in PRODUCTS:
        if name in quantized:
            constants[f"{name}_w"] = np.ones((32, 32), np.int8)
            nodes += [
                op("QuantizeLinear", f"{tensor} s z", f"{name}_quantize"),
                op("DequantizeLinear", f"{name}_quantize s z", f"{name}_dequantize"),
                op("DequantizeLinear", f"{name}_w s z", f"{name}_weight"),
                op("MatMul", f"{name}_dequantize {name}_weight", name),
            ]
        else:
            constants[f"{name}_w"] = draw(32, 32).astype(np.float16)
            nodes.append(op("MatMul", f"{tensor} {name}_w", name))
        tensor = name
    nodes.append(op("Relu", tensor, "o"))
    return save(path, nodes, constants, dtype=FLOAT16)


def quantize(_model: Path, keep_float: Collection[str], path: Path) -> None:
    chain(path, set(PRODUCTS) - set(keep_float))


def layers_of(path: Path, low: Collection[str], us: Mapping[str, float]) -> list[EngineLayer]:
    """One layer for each product, in INT8 if it has a pair and is in `low`; one for each Q, and one for the Relu."""
    graph = onnx.load(path).graph
    found = []
    for node in graph.node:
        if node.op_type == "QuantizeLinear":
            found.append(EngineLayer(node.name, "kgen", HALF, (), INT8, "", (node.name,), us.get("pair")))
        if node.op_type == "MatMul":
            paired = f"{node.name}_dequantize" in node.input
            kind = INT8 if paired and node.name in low else HALF
            names = (node.name, f"{node.name}_dequantize") if paired else (node.name,)
            time = us.get(f"{node.name} in {kind[0]}")
            found.append(EngineLayer(f"{node.name}_gemm", "gemm", kind, kind, HALF, "", names, time))
        if node.op_type == "Relu":
            found.append(EngineLayer("last", "kgen", HALF, (), HALF, "", (node.name,), us.get("relu")))
    return found


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Builds and runs by `layers_of`, with `low` by compute capability and `us` by layer; the engines built are counted."""
    told: dict[str, object] = {"low": {}, "us": {}, "built": 0}

    def build(model: Path, build: BuildSettings, folder: Path, **_: object) -> BuiltEngine:
        told["built"] += 1  # type: ignore[operator]  # values of any type
        low = told["low"].get("".join(build.compute_capabilities), PRODUCTS)  # type: ignore[attr-defined]  # likewise
        manifest = EngineManifest("tensorrt", "11.4", None, "", None, build, "", "")
        return BuiltEngine(model, manifest, folder / "log", None, tuple(layers_of(model, low, {})))

    def inspect(plan: Path, _: object) -> tuple[str, dict[str, float]]:
        layers = layers_of(plan, PRODUCTS, told["us"])  # type: ignore[arg-type]  # likewise
        as_json = [
            {
                "Name": layer.name,
                "LayerType": layer.kind,
                "Inputs": [{"Name": "", "Datatype": kind} for kind in layer.inputs],
                "Constants": [{"Name": "", "Datatype": kind} for kind in layer.constants],
                "Outputs": [{"Name": "", "Datatype": kind} for kind in layer.outputs],
                "Metadata": "".join(f"[ONNX Layer: {name}]" for name in layer.nodes),
            }
            for layer in layers
        ]
        return json.dumps({"Layers": as_json}), {layer.name: (layer.microseconds or 0) / 1e3 for layer in layers}

    monkeypatch.setattr(costs, "build_engine", build)
    monkeypatch.setattr(costs, "inspect_engine", inspect)
    monkeypatch.setattr(costs, "request_ms", lambda plan, batch: sum(inspect(plan, batch)[1].values()))
    return told


def find(folder: Path, capabilities: Collection[str] = (), gpu: Gpu | None = None) -> SlowParts:
    in_float = chain(folder / "float.onnx", ())
    builds = [BuildSettings(compute_capabilities=(name,)) for name in capabilities] or [BuildSettings()]
    return find_slow_parts(in_float, quantize, EngineCosts(builds, gpu, BATCH, in_float))


def test_products_that_a_gpu_runs_slower_are_found(twin: dict[str, object], tmp_path: Path) -> None:
    """Of `c`, the product itself is slower; `b` gains 2 microseconds in its product and loses 3 in its pair."""
    in_float = {f"{name} in float16": 10.0 for name in PRODUCTS}
    twin["us"] = in_float | {"a in int8": 2.0, "b in int8": 8.0, "c in int8": 12.0, "pair": 3.0, "relu": 1.0}
    found = find(tmp_path, gpu=GPU)
    # 2 + 8 + 12 and three pairs, against 2 + 10 + 10 and one, and the Relu both times.
    assert found == SlowParts(("c", "b"), pytest.approx(32.0), pytest.approx(26.0))
    assert found.changes == {"faster in float: c": 1, "faster in float: b": 1}
    assert twin["built"] == 4, "each engine once: the float one, all in INT8, without `c` and `b`, without `c`"


@pytest.mark.parametrize(("gain", "nodes"), [(1.019, ()), (1.021, ("c",))])
def test_request_must_gain_two_percent(
    twin: dict[str, object], tmp_path: Path, gain: float, nodes: tuple[str, ...]
) -> None:
    """`c` in float16 saves a pair of 1 and 9 - x: of a request of 103 microseconds."""
    saved = 103 - 103 / gain
    twin["us"] = {"a in float16": 99.0, "b in float16": 99.0, "c in float16": 10 - saved}
    twin["us"] |= {"a in int8": 45.0, "b in int8": 45.0, "c in int8": 9.0, "pair": 1.0, "relu": 1.0}  # type: ignore[operator]  # values of any type
    assert find(tmp_path, gpu=GPU).nodes == nodes


def test_pairs_of_products_that_run_in_float_are_removed(twin: dict[str, object], tmp_path: Path) -> None:
    twin["low"] = {"7.5": ("a", "c"), "8.9": ("c",)}
    # Three layers of pairs and one product in float; then the layers of the other two.
    assert find(tmp_path, ["7.5"]) == SlowParts(("b",), 4.0, 2.0, timed=False)
    assert find(tmp_path, ["8.9"]) == SlowParts(("a", "b"), 5.0, 1.0, timed=False)
    # 8.9 alone computes `a` in float: in one file for both it keeps its pair.
    both = find(tmp_path, ["7.5", "8.9"])
    assert both == SlowParts(("b",), 9.0, 5.0, timed=False)
    assert both.changes == {"float in the engine even with pairs: b": 1}


def test_nothing_is_removed_where_all_products_are_low(twin: dict[str, object], tmp_path: Path) -> None:
    """Their layers of pairs may be worth it: nothing here times them."""
    assert find(tmp_path, ["8.9"]) == SlowParts((), 3.0, 3.0, timed=False)


def test_removal_that_loses_low_precision_is_rejected(
    twin: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A builder that computes `a` in INT8 only as long as `b` has a pair."""
    twin["low"] = {"8.9": ("a", "c")}
    plain = costs.build_engine

    def build(model: Path, build: BuildSettings, folder: Path, **options: object) -> BuiltEngine:
        twin["low"] = {"8.9": ("a", "c") if "b_dequantize" in str(onnx.load(model).graph) else ("c",)}
        return plain(model, build, folder, **options)  # type: ignore[arg-type]  # options of any type

    monkeypatch.setattr(costs, "build_engine", build)
    assert find(tmp_path, ["8.9"]).nodes == ()


def test_engine_without_low_precision_is_refused(twin: dict[str, object], tmp_path: Path) -> None:
    twin["low"] = {"7.5": ()}
    with pytest.raises(CandidateRefused, match="float kernels for each of 3 products"):
        find(tmp_path, ["7.5"])


def test_kernel_of_unknown_types_is_not_called_float(tmp_path: Path) -> None:
    """As attention with integers: its second product may run in either."""
    path = chain(tmp_path / "m.onnx", PRODUCTS)
    layers = [EngineLayer("_gemm_mha_v2_0", "kgen", INT8, (), INT8, "", PRODUCTS)]
    engine = BuiltEngine(
        path, EngineManifest("tensorrt_rtx", "", None, "", None, BuildSettings(), "", ""), path, None, ()
    )
    built = {path: [BuiltEngine(path, engine.manifest, path, None, tuple(layers))]}
    (found,) = EngineCosts([BuildSettings()], None, BATCH, path, None, built)([path])
    assert found.by_node == dict.fromkeys(PRODUCTS, 0.0) and found.total == 0


def test_times_of_shared_and_added_layers_are_divided(tmp_path: Path) -> None:
    graph = onnx.load(chain(tmp_path / "m.onnx", PRODUCTS)).graph
    layers = [
        EngineLayer("ab", "gemm", INT8, INT8, HALF, "", ("a", "b", "a_dequantize", "a_weight"), 8.0),
        EngineLayer("c", "gemm", INT8, INT8, HALF, "", ("c", "c_weight"), 5.0),
        # Bias of `a`, and the pair before `b`; the pair before `c` alone; fused with the Relu of the float engine.
        EngineLayer("1", "kgen", HALF, (), INT8, "", ("a", "b_quantize"), 6.0),
        EngineLayer("2", "kgen", HALF, (), INT8, "", ("c_quantize",), 2.0),
        EngineLayer("3", "kgen", HALF, (), INT8, "", ("o", "a_quantize"), 100.0),
        EngineLayer("jump", "shape_call", (), (), (), "", (), 100.0),
    ]
    in_float = layers_of(chain(tmp_path / "float.onnx", ()), (), {})
    assert [layer.name for layer in added_layers(layers, in_float)] == ["1", "2"]
    assert product_times(graph, layers, in_float) == {"a": 4.0 + 3.0, "b": 4.0 + 3.0, "c": 5.0 + 2.0}
