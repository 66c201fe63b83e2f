"""The files for ONNX Runtime's CUDA provider: numbers on the CPU provider, and recipes with a form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Tiny, statistics_of
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from processors import AMX, AVX2

from tasks.engines.ort.forms import make_form
from tasks.engines.variants import make_variant, refuse_other_targets, session_settings, why_unmeasured
from tasks.ptq.build_variant import Materials
from tasks.ptq.calibrate.grams import Gram, collect_grams
from tasks.ptq.eight_bit.smooth import SmoothedGraph
from tasks.ptq.graph.prepare import prepare_graph
from tasks.ptq.weight_only.int4_grid import round_to_nearest
from tasks.ptq.weight_only.sites import tensors_to_collect
from tasks.runtimes.ort import open_session, run_batches
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate, decode
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER, CUDA_PROVIDER
from validators.targets import facts_of

Floats = NDArray[np.float64]
CPU = SessionSettings(CPU_PROVIDER, 1)


@pytest.fixture(scope="module")
def folder(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model prepared, and its statistics."""
    folder = tmp_path_factory.mktemp("materials")
    prepare_graph(tiny.model, folder / "prepared.onnx")
    statistics_of(folder / "prepared.onnx", tiny.calibration)
    return folder


def grams_of(tiny: Tiny, model: Path, block_size: int) -> Mapping[str, Gram]:
    x = np.load(tiny.calibration)["x"]
    tensors = tensors_to_collect(model, block_size=block_size)
    return collect_grams(model, tensors, lambda: [{"x": x}], max_memory_mb=10)


def materials(tiny: Tiny, folder: Path) -> Materials:
    def no(*_: object) -> Any:
        raise AssertionError("not needed for these targets")

    def grams(candidate: Candidate, model: Path) -> Mapping[str, Gram]:
        assert model == folder / "prepared.onnx", "sums are collected on the float graph"
        return grams_of(tiny, model, candidate.block_size or 0)

    return Materials(
        prepared=lambda: folder / "prepared.onnx",
        fused=lambda: folder / "prepared.onnx",  # the model has nothing that transformer fusions know
        smoothed=lambda: SmoothedGraph(folder / "prepared.onnx", 0, 0),
        statistics=lambda of_smoothed: folder / "prepared.statistics.npz",
        ranking=no,
        batches=no,
        grams=grams,
        processor=AVX2,
    )


def answers(model: Path, x: NDArray[Any], output: str = "logits") -> NDArray[Any]:
    with open_session(model, CPU) as session:
        return run_batches(session, [{"x": x}], output)


def half(values: NDArray[Any]) -> Floats:
    """Rounded to float16."""
    return values.astype(np.float16).astype(np.float64)


def types_of(path: Path) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("block_size", [16, 64])
def test_int4_products_are_what_numpy_computes(tiny: Tiny, tmp_path: Path, folder: Path, block_size: int) -> None:
    """Weights in float16, then by blocks with scales in float16; activations in float16 and sums in more, by hand."""
    statistics = folder / "prepared.statistics.npz"
    candidate = decode(f"int4-g{block_size}-rtn@ort-cuda")
    changes = make_form(candidate, folder / "prepared.onnx", statistics, dict, tmp_path / "form.onnx")
    assert changes["MatMul in INT4"] == 2
    x = np.load(tiny.evaluation)["x"][:200]
    options: dict[str, Any] = {"block_size": block_size, "symmetric": True, "dtype": np.float16}
    first, second = (round_to_nearest(w.astype(np.float16), **options).dequantized() for w in tiny.weights[::2])
    hidden = half(np.maximum(half(half(x) @ first) + half(tiny.weights[1]), 0))
    expected = hidden @ second
    found = answers(tmp_path / "form.onnx", x)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=3e-3 * np.abs(expected).max())
    floats = np.maximum(x @ tiny.weights[0] + tiny.weights[1], 0) @ tiny.weights[2]
    assert np.abs(floats - expected).max() > 10 * np.abs(found - expected).max(), "no test if INT4 cost nothing"


def test_int4_kernels_get_activations_and_scales_in_float16(tiny: Tiny, tmp_path: Path, folder: Path) -> None:
    """As the kernel's type constraints have it, T1 of activations and scales alike; and no arithmetic but that."""
    path = make_variant(decode("int4-g32-awq-asym@ort-cuda"), materials(tiny, folder), tmp_path, threads=1).path
    graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
    types = types_of(path) | {value.name: value.type.tensor_type.elem_type for value in graph.value_info}
    products = [node for node in graph.node if node.op_type == "MatMulNBits"]
    assert len(products) == 2
    for node in products:
        assert types[node.input[2]] == TensorProto.FLOAT16
        assert types.get(node.input[0], TensorProto.FLOAT16) == TensorProto.FLOAT16
        level = next(item.i for item in node.attribute if item.name == "accuracy_level")
        assert level == 0 and len(node.input) == 4
    assert TensorProto.FLOAT not in types_of(path).values()


NAMES = (*facts_of("ort-cuda").default_candidates, "int4-g64-hqq-asym@ort-cuda", "int4-g16-gptq-asym@ort-cuda")


@pytest.mark.parametrize("name", NAMES)
def test_a_candidate_of_cuda_is_made_and_answers_nearly_alike(
    tiny: Tiny, tmp_path: Path, folder: Path, name: str
) -> None:
    candidate = decode(name)
    options = {"use_tf32": "0"}
    variant = make_variant(candidate, materials(tiny, folder), tmp_path, threads=2, provider_options=options)
    assert variant.session == SessionSettings(CUDA_PROVIDER, 2, provider_options=options)
    assert variant.proof == "measured" and not variant.notes
    kinds = Counter(node.op_type for node in onnx.load(variant.path).graph.node)
    assert (kinds["MatMulNBits"] == 2) == (candidate.precision == "int4")
    assert (TensorProto.FLOAT16 in types_of(variant.path).values()) == (candidate.precision != "fp32")
    sample = np.load(tiny.evaluation)
    x, label = sample["x"][:500], sample["label"][:500]
    right = [(answers(path, x).argmax(axis=1) == label).mean() for path in (tiny.model, variant.path)]
    assert right[1] > 0.95 * right[0]


def test_sums_are_those_of_the_tensors_that_carry_the_values(tmp_path: Path) -> None:
    """An input keeps its name in float32: the product reads another tensor, and GPTQ must find the sums of the first."""
    rng = np.random.default_rng(5)
    weight, x = rng.normal(size=(64, 8)).astype(np.float32), rng.normal(size=(200, 64)).astype(np.float32)
    x[:, 1:] += 2 * x[:, :1]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8]),
    ]
    product = helper.make_node("MatMul", ["x", "w"], ["y"], name="product")
    graph = helper.make_graph([product], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    np.savez(tmp_path / "calibration.npz", x=x, label=np.zeros(200))
    statistics = statistics_of(tmp_path / "m.onnx", tmp_path / "calibration.npz")
    grams = collect_grams(tmp_path / "m.onnx", {"x": 64}, lambda: [{"x": x}], max_memory_mb=10)
    errors = {}
    for method in ("rtn", "gptq"):
        path = tmp_path / f"{method}.onnx"
        make_form(decode(f"int4-g32-{method}@ort-cuda"), tmp_path / "m.onnx", statistics, lambda: grams, path)
        errors[method] = float(np.square(answers(path, x, "y") - x @ weight).mean())
    assert errors["gptq"] < 0.6 * errors["rtn"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("int8-static-minmax-pc@ort-cuda", "no kernels for Q/DQ"),
        ("int8-dynamic-pc@ort-cuda", "no kernels for Q/DQ"),
        ("fp8-amax-pc@ort-cuda", "FP8 for ort-cuda"),
        ("fp16+fused@ort-cuda", "fused operators"),
        ("int4-g32-rtn+fused@ort-cuda", "fused operators"),
        ("int4-g256-rtn@ort-cuda", "g256"),
    ],
)
def test_a_recipe_without_kernels_is_refused(name: str, words: str) -> None:
    with pytest.raises(CandidateRefused, match=words) as caught:
        refuse_other_targets(decode(name), AMX)
    assert caught.value.kind == "unsupported" and caught.value.fix


@pytest.mark.parametrize("name", ["fp16@ort-cuda", "fp16@tensorrt"])
def test_what_nothing_here_runs_is_made_and_not_measured(tiny: Tiny, tmp_path: Path, folder: Path, name: str) -> None:
    variant = make_variant(decode(name), materials(tiny, folder), tmp_path, threads=1)
    refusal = why_unmeasured(variant, [CPU_PROVIDER])
    assert refusal is not None and refusal.kind == "unsupported"
    assert f"{variant.path} was made and checked, and not measured" in refusal.found and "extra" in refusal.fix
    assert why_unmeasured(variant, [variant.session.provider]) is None


def test_options_go_to_the_providers_that_have_them() -> None:
    """What float32 is multiplied in is named on the CUDA provider, and a job's own option wins."""
    options = {"device_id": "1"}
    taken = {
        target: session_settings(decode(f"int8-static-minmax-pc@{target}"), 1, (), options).provider_options
        for target in ("ort-cpu", "ort-cuda", "tensorrt")
    }
    assert taken == {"ort-cpu": {}, "ort-cuda": {"use_tf32": "1"} | options, "tensorrt": {}}
    assert session_settings(decode("fp16@ort-cuda"), 1, (), {"use_tf32": "0"}).provider_options == {"use_tf32": "0"}
