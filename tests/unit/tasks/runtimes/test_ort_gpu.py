"""Sessions on a GPU, as far as a machine without one can tell: options, folders of engines, nodes assigned, arrays bound."""

from __future__ import annotations

import importlib
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from conftest import Tiny
from onnx import numpy_helper

from tasks.measure.inventory import find_gpu
from tasks.runtimes import ort as ort_module
from tasks.runtimes.assignment import RECORD, AssignedNode, assignment, refuse_strays
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.macs import MAC_RULES
from tasks.runtimes.ort import open_session
from tasks.runtimes.ort_gpu import device_of, gpu_providers, load_libraries, probe, why_missing
from tasks.runtimes.providers import PROVIDERS, provider_of
from tasks.runtimes.runner import Device, GpuSessionRunner, bind, open_runner, run_all
from validators.errors import CandidateRefused
from validators.gates.coverage import judge_coverage
from validators.job.job_gates import Gates
from validators.providers import (
    CPU_PROVIDER,
    CUDA_PROVIDER,
    GENERATORS,
    GPU_PROVIDERS,
    INDUCTOR,
    INDUCTOR_CUDA,
    OPENVINO,
    ORT_TENSORRT_PROVIDER,
    TENSORRT,
)
from validators.records import run as records
from validators.records.measurements import UNNAMED
from validators.records.run import SessionSettings

CPU = Device("cpu", 0)
SETTINGS = SessionSettings(CPU_PROVIDER, 1)


def recorded(model: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    for key, value in RECORD.items():
        options.add_session_config_entry(key, value)
    return ort.InferenceSession(str(model), options, providers=[CPU_PROVIDER])


# Which provider runs what


def test_every_node_of_a_session_has_its_provider(tiny: Tiny) -> None:
    """The runtime makes a Gemm of MatMul and Add before it divides the graph; the other nodes are as written."""
    nodes = assignment(recorded(tiny.model))
    assert {node.provider for node in nodes} == {CPU_PROVIDER}
    assert sorted(node.kind for node in nodes) == ["Gemm", "MatMul", "Relu"]
    assert {node.name for node in nodes} >= {"relu", "second_matmul"}
    refuse_strays(nodes, CPU_PROVIDER)


def test_the_products_of_a_real_session_are_no_other_providers(tiny: Tiny) -> None:
    with pytest.raises(CandidateRefused, match=r"second_matmul \(MatMul on CPUExecutionProvider\)") as caught:
        refuse_strays(assignment(recorded(tiny.model)), CUDA_PROVIDER)
    assert caught.value.kind == "unsupported" and CUDA_PROVIDER in caught.value.expected


ON_THE_CPU = {
    "a shape": (AssignedNode("s", "Shape", "", CPU_PROVIDER), False),
    "a pair of Q and DQ": (AssignedNode("q", "QuantizeLinear", "", CPU_PROVIDER), False),
    "a custom product": (AssignedNode("m", "MatMul", "ours", CPU_PROVIDER), False),
    "an integer product": (AssignedNode("m", "QLinearMatMul", "", CPU_PROVIDER), True),
    "a product of the runtime's own": (AssignedNode("n", "MatMulNBits", "com.microsoft", CPU_PROVIDER), True),
}


@pytest.mark.parametrize("name", ON_THE_CPU)
def test_what_may_run_on_the_cpu_beside_a_gpu(name: str) -> None:
    """Two providers, as a GPU has them: what multiplies must be on the one that was asked for."""
    node, is_stray = ON_THE_CPU[name]
    nodes = [AssignedNode("p", "Conv", "", CUDA_PROVIDER), node]
    if not is_stray:
        return refuse_strays(nodes, CUDA_PROVIDER)
    with pytest.raises(CandidateRefused, match=f"{node.name} .{node.kind} on {CPU_PROVIDER}"):
        refuse_strays(nodes, CUDA_PROVIDER)
    return None


def test_many_strays_are_counted() -> None:
    nodes = [AssignedNode(f"p{index}", "MatMul", "", CPU_PROVIDER) for index in range(8)]
    with pytest.raises(CandidateRefused, match=r"p4 \(MatMul on \w+\) and 3 more"):
        refuse_strays(nodes, CUDA_PROVIDER)


# Options


def test_cuda_gets_the_options_of_the_job(tiny: Tiny) -> None:
    settings = SessionSettings(CUDA_PROVIDER, 1, provider_options={"device_id": "2", "use_tf32": "0"})
    assert gpu_providers(settings, tiny.model) == [(CUDA_PROVIDER, {"device_id": "2", "use_tf32": "0"})]
    assert device_of(settings) == 2 and device_of(SessionSettings(CUDA_PROVIDER, 1)) == 0


def test_tensorrt_has_cuda_of_the_same_device_behind_it(tiny: Tiny) -> None:
    settings = SessionSettings(ORT_TENSORRT_PROVIDER, 1, provider_options={"device_id": "1"})
    providers = gpu_providers(settings, tiny.model)
    assert providers == [(ORT_TENSORRT_PROVIDER, {"device_id": "1"}), (CUDA_PROVIDER, {"device_id": "1"})]


@pytest.mark.parametrize("name", ["trt_fp16_enable", "trt_int8_enable", "trt_bf16_enable"])
def test_types_are_those_of_the_file(tiny: Tiny, name: str) -> None:
    """An fp32 file computed in float16 would be a label that nobody may believe; switched off it is what it is anyway."""
    for value in ("1", "True"):
        with pytest.raises(CandidateRefused, match=name):
            gpu_providers(SessionSettings(ORT_TENSORRT_PROVIDER, 1, provider_options={name: value}), tiny.model)
    assert gpu_providers(SessionSettings(ORT_TENSORRT_PROVIDER, 1, provider_options={name: "0"}), tiny.model)


def engines(model: Path, base: Path, content: bytes | None = None, **changes: Any) -> Path:
    options = {"trt_engine_cache_path": str(base)} | changes.pop("provider_options", {})
    settings = SessionSettings(ORT_TENSORRT_PROVIDER, 1, provider_options=options, **changes)
    found = gpu_providers(settings, model, content)[0][1]
    assert found["trt_engine_cache_enable"] == found["trt_timing_cache_enable"] == "1"
    assert found["trt_timing_cache_path"] == str(base)
    return Path(found["trt_engine_cache_path"])


def test_engines_of_two_models_are_never_in_one_folder(tiny: Tiny, tmp_path: Path) -> None:
    """Names of nodes and files alone decide what the provider calls an engine: weights, settings and content do here."""
    other = onnx.load(tiny.model)
    weight = next(item for item in other.graph.initializer if item.name == "first")
    weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), "first"))
    (tmp_path / "other").mkdir()
    onnx.save(other, tmp_path / "other" / tiny.model.name)
    base = tmp_path / "engines"
    folders = [
        engines(tiny.model, base),
        engines(tmp_path / "other" / tiny.model.name, base),
        engines(tiny.model, base, b"as bytes"),
        engines(tiny.model, base, optimization="basic"),
        engines(tiny.model, base, provider_options={"trt_builder_optimization_level": "5"}),
    ]
    assert len(set(folders)) == 5 and all(folder.is_dir() and folder.parent == base for folder in folders)
    assert engines(tiny.model, base) == folders[0]


# What is here


def test_a_provider_that_is_not_installed_is_refused(tiny: Tiny) -> None:
    """With the extra to install, and before the runtime could fall back."""
    for provider, extra in ((CUDA_PROVIDER, "`gpu`"), (ORT_TENSORRT_PROVIDER, "`ort-tensorrt`")):
        if provider in ort.get_available_providers():
            pytest.skip("the runtime of this environment is built for a GPU: see the tests of marker gpu")
        with (
            pytest.raises(CandidateRefused, match=f"no {provider} here") as caught,
            open_session(tiny.model, SessionSettings(provider, 1)),
        ):
            pass
        assert caught.value.kind == "unsupported" and extra in caught.value.fix
        missing = probe(provider)
        assert missing is not None and missing.found == caught.value.found


@pytest.mark.skipif(CUDA_PROVIDER not in ort.get_available_providers(), reason="onnxruntime-gpu is not installed")
@pytest.mark.skipif(find_gpu() is not None, reason="there is a GPU: see the tests of marker gpu")
@pytest.mark.parametrize("provider", [CUDA_PROVIDER, ORT_TENSORRT_PROVIDER])
def test_a_runtime_for_gpus_without_one_is_refused(
    tiny: Tiny, provider: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """It imports, names the provider, and would run everything on the processor; the libraries that it lacks are named."""
    for options in ({}, {"device_id": "0"}):
        with (
            pytest.raises(CandidateRefused, match=r"Failed to load lib\w+\.so") as caught,
            open_session(tiny.model, SessionSettings(provider, 1, provider_options=options)),
        ):
            pass
        assert caught.value.kind == "unsupported" and provider in caught.value.expected
    assert "EP Error" not in capfd.readouterr().out


def test_a_provider_that_answers_is_not_missing() -> None:
    assert probe(CPU_PROVIDER) is None
    assert why_missing(CUDA_PROVIDER, [CPU_PROVIDER, CUDA_PROVIDER]) is None
    load_libraries(CUDA_PROVIDER)  # there are none to load, and nothing fails


# Bound requests: the processor's memory stands in for the device's


def test_a_bound_request_gives_what_a_run_gives(tiny: Tiny) -> None:
    """Inputs are taken as they were bound, contiguous or not; outputs are those of the last request."""
    x = np.load(tiny.evaluation)["x"][:5]
    wide = np.repeat(x, 2, axis=1)[:, ::2]
    assert not wide.flags.c_contiguous
    with open_session(tiny.model, SETTINGS) as session:
        expected = session.run(None, {"x": x})[0]
        binding = bind(session, {"x": wide}, CPU)
        for _ in range(2):
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)


def test_a_request_computes_and_copies_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.load(tiny.evaluation)["x"][:5]
    with open_session(tiny.model, SETTINGS) as session:
        runner = GpuSessionRunner(session, CPU)
        expected = session.run(None, {"x": x})[0]
        np.testing.assert_array_equal(run_all(runner, [{"x": x[:2]}, {"x": x[2:]}], "logits"), expected)
        calls = []
        real = session.run_with_iobinding
        monkeypatch.setattr(session, "run_with_iobinding", lambda binding: (calls.append(binding), real(binding)))
        monkeypatch.setattr(session, "run", None)
        request = runner.bound({"x": x})
        assert calls == []
        assert request() is None and request() is None
        assert len(calls) == 2 and calls[0] is calls[1]
        np.testing.assert_array_equal(calls[0].copy_outputs_to_cpu()[0], expected)


def test_a_batch_that_does_not_fit_is_refused(tiny: Tiny) -> None:
    with open_session(tiny.model, SETTINGS) as session:
        with pytest.raises(CandidateRefused, match="the runtime fails") as caught:
            GpuSessionRunner(session, CPU).bound({"x": np.zeros((1, 63), np.float32)})()
        assert caught.value.kind == "invalid"
        with pytest.raises(CandidateRefused):
            bind(session, {"nothing": np.zeros((1, 64), np.float32)}, CPU)
        with pytest.raises(CandidateRefused, match="string"):
            bind(session, {"x": np.array([["a"]], dtype=object)}, CPU)


def test_every_provider_has_its_runner(tiny: Tiny) -> None:
    assert set(PROVIDERS) == {CPU_PROVIDER, INDUCTOR, OPENVINO} | GENERATORS | GPU_PROVIDERS
    x = np.load(tiny.evaluation)["x"][:5]
    with open_runner(tiny.model, SETTINGS) as runner:
        assert not isinstance(runner, GpuSessionRunner)
        assert runner.run({"x": x}, ["logits"])[0].shape == (5, 4) and runner.bound({"x": x})() is None


# A consumer, which imports nothing of quantgate


@pytest.fixture(scope="module")
def consumer() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # mlflow's, about its own type hints
        return importlib.import_module("tasks.champion.consumer.consumer")


def test_a_consumer_asks_for_what_was_approved(consumer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options of the manifest, less the folder of engines of the machine that measured; CUDA behind TensorRT."""
    options = {"device_id": "1", "use_tf32": "0"}
    assert consumer._gpu_providers(CUDA_PROVIDER, options) == [(CUDA_PROVIDER, options)]
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))
    given = {"device_id": "1", "trt_engine_cache_path": "/state/engines"}
    expected = [(ORT_TENSORRT_PROVIDER, {"device_id": "1"}), (CUDA_PROVIDER, {"device_id": "1"})]
    monkeypatch.delenv(consumer.CACHE, raising=False)
    assert consumer._gpu_providers(ORT_TENSORRT_PROVIDER, given) == expected


def test_a_consumer_keeps_engines_of_tensorrt_in_its_own_folder(
    consumer: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each start of a service would tune them again."""
    monkeypatch.setitem(sys.modules, "tensorrt", ModuleType("tensorrt"))
    monkeypatch.setenv(consumer.CACHE, str(tmp_path / "engines"))
    given = {"device_id": "1", "trt_engine_cache_path": "/state/engines", "trt_timing_cache_path": "/state"}
    (_, options), _ = consumer._gpu_providers(ORT_TENSORRT_PROVIDER, given)
    place = str(tmp_path / "engines")
    assert options == {
        "device_id": "1",
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": place,
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": place,
    }
    # Options of CUDA's provider name no folder.
    assert consumer._gpu_providers(CUDA_PROVIDER, {"device_id": "1"}) == [(CUDA_PROVIDER, {"device_id": "1"})]
    (tmp_path / "file").touch()
    monkeypatch.setenv(consumer.CACHE, str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="expected a folder to write to: the engine is built anew"):
        ((_, options), _) = consumer._gpu_providers(ORT_TENSORRT_PROVIDER, given)
    assert options == {"device_id": "1"}


def test_a_consumer_refuses_products_on_another_provider(consumer: ModuleType, tiny: Tiny) -> None:
    session = recorded(tiny.model)
    consumer._refuse_strays(session, CPU_PROVIDER)
    with pytest.raises(RuntimeError, match=r"second_matmul \(MatMul on CPUExecutionProvider\)"):
        consumer._refuse_strays(session, CUDA_PROVIDER)


def test_a_consumer_knows_every_operator_that_multiplies(consumer: ModuleType) -> None:
    assert [kind for kind in MAC_RULES if not any(word in kind for word in consumer.PRODUCTS)] == []
    # Those of ONNX Runtime.
    assert set(consumer.GPU_PROVIDERS) == GPU_PROVIDERS - {TENSORRT, INDUCTOR_CUDA}


# Coverage


def test_what_tensorrt_compiled_is_of_unknown_precision(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are counted, none as low precision nor as float: the gate is inconclusive. The CPU stands in for it."""
    compiled = replace(provider_of(CPU_PROVIDER), is_compiled=True)
    monkeypatch.setitem(PROVIDERS, CPU_PROVIDER, compiled)
    seen = measure_coverage(tiny.model, SETTINGS, {"x": np.load(tiny.evaluation)["x"][:3]})
    assert seen.macs_by_kernel == {UNNAMED: 3 * (64 * 128 + 128 * 4)} and seen.unknown == 1.0
    verdict = judge_coverage("int8-static-minmax-pc@ort-tensorrt", seen, Gates())
    assert verdict is not None and verdict.outcome == "inconclusive"
    assert not provider_of(ORT_TENSORRT_PROVIDER).low_precision and provider_of(ORT_TENSORRT_PROVIDER).is_compiled


def test_launches_are_no_times(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the profile tells how long a kernel took to launch: no share of that is one of time."""
    batch = {"x": np.load(tiny.evaluation)["x"][:3]}
    before = measure_coverage(tiny.model, SETTINGS, batch)
    assert before.us_by_kernel and before.time_share is not None
    monkeypatch.setattr(records, "GPU_PROVIDERS", frozenset({CPU_PROVIDER}))
    monkeypatch.setattr(ort_module, "_prepare_gpu", lambda provider, available: "")
    monkeypatch.setattr(ort_module, "gpu_providers", lambda settings, model, content: [(CPU_PROVIDER, {})])
    seen = measure_coverage(tiny.model, SETTINGS, batch, folder=tmp_path)
    assert seen.macs_by_kernel == before.macs_by_kernel
    assert seen.us_by_kernel == {} and seen.time_share is None and seen.inserted_time is None
