"""The adapters against the real thing: skipped on a machine without an NVIDIA GPU, run there by `pytest -m gpu`.

What each needs besides is skipped with its name: onnxruntime-gpu for `ort-cuda`, TensorRT for engines. Answers are held against
ONNX Runtime's CPU provider on the same file.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny, statistics_of, tiny_samples
from numpy.typing import NDArray

from tasks.engines.tensorrt.forms import make_form
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.nvml import open_gpu
from tasks.measure.latency.process import Contestant
from tasks.ptq.graph.prepare import prepare_graph
from tasks.runtimes.coverage import measure_coverage
from tasks.runtimes.ort import open_session
from tasks.runtimes.runner import open_runner
from validators.errors import CandidateRefused
from validators.job.candidate_name import decode
from validators.job.job_measurement import Measurement
from validators.records.engines import BuildSettings, BuiltEngine, ShapeRange
from validators.records.run import SessionSettings
from validators.target_facts import CPU_PROVIDER, CUDA_PROVIDER, TENSORRT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(open_gpu() is None, reason="no NVIDIA GPU that the management library (nvidia-ml-py) tells of"),
]
CUDA = SessionSettings(CUDA_PROVIDER, 1)
ENGINE = SessionSettings(TENSORRT, 1)
# TF32 keeps 10 bits of a float32 product's operands, as float16 does: 64 of them add up to this, relative to the largest logit.
TOLERANCE = 5e-3
PROFILE = {"x": ShapeRange((1, 64), (16, 64), (32, 64))}


def samples(count: int) -> dict[str, NDArray[Any]]:
    """The inputs of so many samples of the small model."""
    return {"x": tiny_samples(count, 5)["x"]}


def on_cpu(model: Path, batch: dict[str, NDArray[Any]]) -> NDArray[Any]:
    """What the CPU provider answers."""
    with open_runner(model, SessionSettings(CPU_PROVIDER, 1)) as runner:
        return runner.run(batch, ["logits"])[0]


def assert_alike(found: NDArray[Any], expected: NDArray[Any], tolerance: float = TOLERANCE) -> None:
    assert found.shape == expected.shape
    assert np.abs(found.astype(np.float64) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.fixture
def cuda() -> None:
    """Skip without a build of ONNX Runtime that has the provider."""
    import onnxruntime

    if CUDA_PROVIDER not in onnxruntime.get_available_providers():
        pytest.skip("no onnxruntime-gpu")


@pytest.fixture
def engine(tiny: Tiny, tmp_path: Path) -> BuiltEngine:
    """The small model as an engine for 1 to 32 samples; skip without TensorRT."""
    return build(tiny.model, tmp_path / "engine")


def build(model: Path, folder: Path) -> BuiltEngine:
    from tasks.engines.tensorrt.build import available, build_engine
    from tasks.measure.inventory import find_gpu

    if not available():
        pytest.skip("no TensorRT")
    if util.find_spec("cuda") is None:
        pytest.skip("no cuda-bindings")
    return build_engine(model, BuildSettings(profile=PROFILE), folder, gpu=find_gpu(), timing_caches=folder / "timing")


def test_the_gpu_tells_of_itself() -> None:
    """Its processes are counted, energy only grows, and CUDA knows the same GPU."""
    from tasks.measure.inventory import find_gpu

    reader, gpu = open_gpu(), find_gpu()
    assert reader is not None and gpu is not None
    first, second = reader.read(), reader.read()
    assert first.processes is not None
    if first.energy_j is not None and second.energy_j is not None:
        assert second.energy_j >= first.energy_j > 0
    torch = pytest.importorskip("torch", reason="a second witness of what NVML tells")
    if torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        assert gpu.compute_capability == f"{major}.{minor}"
        assert gpu.memory_bytes >= torch.cuda.get_device_properties(0).total_memory


@pytest.mark.usefixtures("cuda")
def test_the_cuda_provider_answers_as_the_cpu_does(tiny: Tiny) -> None:
    """With copies for several batch sizes; bound, a request runs again and again and leaves `run` as it was."""
    with open_runner(tiny.model, CUDA) as runner:
        for count in (1, 7, 32):
            batch = samples(count)
            assert_alike(runner.run(batch, ["logits"])[0], on_cpu(tiny.model, batch))
        request = runner.bound(samples(16))
        for _ in range(3):
            request()
        assert_alike(runner.run(samples(16), ["logits"])[0], on_cpu(tiny.model, samples(16)))


@pytest.mark.usefixtures("cuda")
def test_each_product_is_assigned_to_the_gpu(tiny: Tiny) -> None:
    from tasks.runtimes.shipped.model import assignment

    with open_session(tiny.model, CUDA) as session:
        nodes = assignment(session)
    assert {node.provider for node in nodes if node.kind == "MatMul"} == {CUDA_PROVIDER}


@pytest.mark.usefixtures("cuda")
def test_kernels_of_the_gpu_are_covered(tiny: Tiny) -> None:
    """16 samples of 64 x 128 and 128 x 4 products, none of them in low precision and none on the CPU."""
    seen = measure_coverage(tiny.model, CUDA, samples(16))
    assert sum(seen.macs_by_kernel.values()) == 16 * (64 * 128 + 128 * 4)
    assert seen.share == 0.0 and CUDA_PROVIDER in seen.providers


@pytest.mark.usefixtures("cuda")
def test_latency_is_measured_with_energy_and_memory(tiny: Tiny, tmp_path: Path) -> None:
    contestant = Contestant(tiny.model, CUDA)
    latency = compare_latency(
        contestant,
        contestant,
        [samples(16)],
        Measurement(launches=2, max_other_load=None),
        confidence=0.95,
        samples_path=tmp_path / "samples.npz",
    )
    assert latency.p50_ms > 0 and latency.end_to_end is not None
    assert latency.end_to_end.p50_ms > 0 and latency.speedup.low is not None


def test_engine_agrees_with_cpu_for_every_size_of_its_profile(tiny: Tiny, engine: BuiltEngine) -> None:
    with open_runner(engine.path, ENGINE) as runner:
        for count in (1, 5, 16, 32, 3):
            batch = samples(count)
            assert_alike(runner.run(batch, ["logits"])[0], on_cpu(tiny.model, batch))


def test_a_batch_outside_the_profile_is_refused(engine: BuiltEngine) -> None:
    with open_runner(engine.path, ENGINE) as runner, pytest.raises(CandidateRefused, match="33"):
        runner.run(samples(33), ["logits"])


def test_a_bound_request_is_a_cuda_graph(engine: BuiltEngine) -> None:
    """Its shapes are fixed by the batch; events time it, and what it leaves does not disturb the next one."""
    from tasks.engines.tensorrt.shipped.api import load_api
    from tasks.engines.tensorrt.shipped.run import EngineRunner

    runner = EngineRunner(engine.path.read_bytes(), load_api())
    try:
        request = runner.bound(samples(16))
        assert request.why_not_captured is None, request.why_not_captured
        request()
        assert all(ms > 0 for ms in runner.kernel_ms(request, 20))
        other = runner.bound(samples(2))
        other()
        request()
    finally:
        runner.close()


@pytest.mark.parametrize("name", ["fp16@tensorrt", "int8-static-minmax-pc@tensorrt", "fp8-amax-pc@tensorrt"])
def test_layers_run_in_the_precision_of_the_label(name: str, tiny: Tiny, tmp_path: Path) -> None:
    """Types by the inspector, times by the profiler, both by multiply-accumulates; answers as near as its precision allows."""
    from tasks.engines.tensorrt.coverage import coverage_of_layers
    from tasks.engines.tensorrt.layers import parse_layers_json, with_times
    from tasks.engines.tensorrt.runner import inspect_engine

    prepared, form = tmp_path / "prepared.onnx", tmp_path / "form.onnx"
    prepare_graph(tiny.model, prepared)
    candidate = decode(name)
    make_form(candidate, prepared, statistics_of(prepared, tiny.calibration), form)
    made = build(form, tmp_path / "engine")
    text, times = inspect_engine(made.path, samples(16))
    seen = coverage_of_layers(form, with_times(parse_layers_json(text), times), samples(16))
    assert (seen.half_share if candidate.precision == "fp16" else seen.share) >= 0.9
    assert sum(seen.us_by_kernel.values()) > 0
    with open_runner(made.path, ENGINE) as runner:
        tolerance = {"fp16": 0.01, "int8": 0.1, "fp8": 0.2}[candidate.precision]
        assert_alike(runner.run(samples(32), ["logits"])[0], on_cpu(tiny.model, samples(32)), tolerance)


def test_an_engine_of_another_machine_is_never_loaded(
    tiny: Tiny, engine: BuiltEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here it is loaded as it is; for another driver built again with a warning, or refused where that is asked for."""
    from tasks.engines.tensorrt.shipped.model import open_version
    from tasks.engines.tensorrt.shipped.stale import digest_file

    folder = tmp_path / "version"
    folder.mkdir()
    shutil.copy(tiny.model, folder / "model.onnx")
    shutil.copy(engine.path, folder / "engine.plan")
    manifest: dict[str, Any] = {
        "files": {name: digest_file(folder / name) for name in ("model.onnx", "engine.plan")},
        "engine": asdict(engine.manifest),
        "inputs": {"x": "float32"},
    }
    expected = on_cpu(tiny.model, samples(8))
    assert_alike(opened(open_version(folder, manifest)), expected)
    manifest["engine"]["driver"] = "1.0"
    with pytest.warns(UserWarning, match="stale: driver"):
        runner = open_version(folder, manifest)
    assert_alike(opened(runner), expected)
    monkeypatch.setenv("QUANTGATE_MISMATCH", "refuse")
    with pytest.raises(RuntimeError, match="stale engine"):
        open_version(folder, manifest)


def opened(runner: Any) -> NDArray[Any]:
    """The answers for eight samples; the runner is closed."""
    try:
        answers: NDArray[Any] = runner.run(samples(8), ["logits"])[0]
        return answers
    finally:
        runner.close()
