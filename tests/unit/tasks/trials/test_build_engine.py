"""Engines in a run: who gets one, what is refused before and behind the build, and what of it is registered.

Nothing here runs on a GPU: where the step needs one, the build is stood in for. Engines that are really built, ahead of time,
are those of `test_run_engines.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import CLASSES, FEATURES, Tiny
from onnx import TensorProto, helper, numpy_helper
from runs import run_in

from tasks.champion.manifest import manifest_of, runtime_requirements, variant_folder
from tasks.engines.tensorrt import build as builder
from tasks.measure.inventory import take_inventory
from tasks.records.candidate_record import _files
from tasks.run.loaded_run import LoadedRun, with_inputs
from tasks.trials.build_engine import with_engine
from tasks.trials.make_candidate import refused
from tasks.trials.materials import variant_from_store
from tasks.trials.measure_baseline import baseline_variant
from validators.digests import digest_file, digest_model
from validators.errors import CandidateRefused
from validators.gates.approval import Approval, NotApproved
from validators.job.candidate_name import decode
from validators.job.read_job import parse_job
from validators.records.engines import BuildSettings, BuiltEngine, EngineLayer, EngineManifest
from validators.records.run import Gpu, Inventory, Proof, SessionSettings, Source, Trial, Variant
from validators.records.verdicts import Verdict
from validators.samples.datasets import TensorSpec, load_samples
from validators.samples.evidence import Evidence
from validators.target_facts import CPU_PROVIDER, CUDA_PROVIDER, TENSORRT

GPU = Gpu("NVIDIA H200", "GPU-1", "9.0", "580.95.05", 150_000_000_000)
WITHOUT = take_inventory("ort-cpu")
ON_GPU = replace(WITHOUT, target="tensorrt", gpu=GPU)

# Verdicts that every variant gets.
ALWAYS = frozenset({"drop", "finite", "same_outputs"})


def run_of(tiny: Tiny, folder: Path, inventory: Inventory, **changes: object) -> LoadedRun:
    spec = TensorSpec("x", "float32", ("batch", FEATURES))
    samples = load_samples(tiny.evaluation, (spec,), label="label", role="evaluation")
    logits, kept = TensorSpec("logits", "float32", ("batch", CLASSES)), np.zeros(len(samples), bool)
    evidence = Evidence((spec,), logits, samples, samples, None, None, kept)
    run = run_in(folder / "state", parse_job(tiny.job(**changes), base=folder))
    return with_inputs(
        run, Source("tiny", "tiny", None, digest_model(tiny.model), tiny.model, "file"), evidence, inventory
    )


def variant_of(model: Path) -> Variant:
    return Variant("fp16@tensorrt", model, digest_model(model), 10, SessionSettings(TENSORRT, 2))


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Builds that end well, in place of TensorRT's; returns what was asked of them."""
    asked: list[dict[str, Any]] = []

    def build(
        onnx_path: Path, build: BuildSettings, folder: Path, *, gpu: Gpu | None, timing_caches: Path
    ) -> BuiltEngine:
        asked.append({"onnx": onnx_path, "build": build, "gpu": gpu, "caches": timing_caches})
        for name in ("engine.plan", "timing.cache", "build.log"):
            (folder / name).write_text(name)
        manifest = EngineManifest(
            "tensorrt", "11.4.0.106", gpu.name if gpu else None, gpu.compute_capability if gpu else "8.9,12.0",
            gpu.driver if gpu else None, build, digest_model(onnx_path), digest_file(folder / "engine.plan"),
            digest_file(folder / "timing.cache"),
        )  # fmt: skip
        return BuiltEngine(folder / "engine.plan", manifest, folder / "build.log", folder / "timing.cache")

    monkeypatch.setattr(builder, "build_engine", build)
    return asked


def test_on_a_gpu_the_engine_answers_and_elsewhere_its_file(
    tiny: Tiny, tmp_path: Path, built: list[dict[str, Any]]
) -> None:
    """One is for this GPU and measured; the other for those that the job names, and simulated by the processor."""
    run = run_of(tiny, tmp_path, ON_GPU, engines={"workspace_mb": 64, "tf32": False, "ahead_of_time": ["8.9"]})
    measured = with_engine(run, variant_of(tiny.model))
    assert measured.engine is not None and measured.loaded == measured.engine.path != tiny.model
    assert (measured.proof, measured.session.provider) == ("measured", TENSORRT)
    looked_at = with_engine(replace(run, inventory=WITHOUT), variant_of(tiny.model))
    assert looked_at.engine is not None and looked_at.loaded == tiny.model
    assert (looked_at.proof, looked_at.session.provider) == ("aot-checked", CPU_PROVIDER)
    assert looked_at.session.optimization == "basic" and any("8.9, never run" in note for note in looked_at.notes)
    here, ahead = (one["build"] for one in built)
    assert (built[0]["gpu"], here.compute_capabilities) == (GPU, ())
    assert (built[1]["gpu"], ahead.compute_capabilities) == (None, ("8.9",))
    assert (here.workspace_mb, here.tf32) == (64, False)
    # Requests of one sample, and the 32 at once that accuracy is measured on.
    shape = here.profile["x"]
    assert (shape.minimum, shape.optimum, shape.maximum) == ((1, FEATURES), (1, FEATURES), (32, FEATURES))
    with_engine(run, variant_of(tiny.model))
    assert len(built) == 2, "taken from the store"
    other = replace(ON_GPU, gpu=replace(GPU, driver="581.0"))
    with_engine(replace(run, inventory=other), variant_of(tiny.model))
    assert len(built) == 3, "another driver, another engine"


def test_of_several_engines_the_one_covering_least_is_looked_at(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INT8 for 8.9 and, of the same file, float16 for 12.0: what is said of the variant is what holds for both."""
    names = [node.name for node in onnx.load(tiny.model).graph.node]

    def build(onnx_path: Path, build: BuildSettings, folder: Path, **_: object) -> BuiltEngine:
        (folder / "build.log").write_text("")
        (folder / "engine.plan").write_text("plan")
        dtype = {("8.9",): "int8", ("12.0",): "float16"}[build.compute_capabilities]
        layers = tuple(EngineLayer(name, "gemm", (dtype,), (dtype,), ("float16",), "", (name,)) for name in names)
        manifest = EngineManifest(
            "tensorrt_rtx", "1.7.1", None, ",".join(build.compute_capabilities), None, build, "", ""
        )
        return BuiltEngine(folder / "engine.plan", manifest, folder / "build.log", None, layers)

    monkeypatch.setattr(builder, "build_engine", build)
    for order in (["8.9", "12.0"], ["12.0", "8.9"]):
        run = run_of(tiny, tmp_path / order[0], WITHOUT, engines={"ahead_of_time": order})
        variant = with_engine(run, variant_of(tiny.model))
        assert variant.engine is not None and variant.engine.manifest.compute_capability == "12.0"
        assert any(f"{order[0]} and {order[1]}, never run" in note for note in variant.notes)


def test_what_the_linter_calls_broken_is_not_built(tiny: Tiny, tmp_path: Path, built: list[dict[str, Any]]) -> None:
    """A zero point other than 0, which TensorRT's parser refuses: by rule, node and fix, before any build."""
    constants = {"scale": np.float32(0.1), "zero": np.int8(3), "w": np.eye(4, dtype=np.float32)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], name="planted"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"], name="back"),
        helper.make_node("MatMul", ["d", "w"], ["y"], name="product"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    with pytest.raises(CandidateRefused, match=r"TRT001 .* at node planted") as caught:
        with_engine(run_of(tiny, tmp_path, ON_GPU), variant_of(tmp_path / "m.onnx"))
    assert caught.value.kind == "invalid" and caught.value.fix and not built


def test_the_log_of_a_build_that_failed_outlasts_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes with the refusal into the candidate's run; the store keeps no engine."""

    def build(onnx_path: Path, build: BuildSettings, folder: Path, **_: object) -> BuiltEngine:
        (folder / "build.log").write_text("all that it said")
        raise CandidateRefused(kind="unsupported", found="no kernels", expected="some", fix="none")

    monkeypatch.setattr(builder, "build_engine", build)
    run = run_of(tiny, tmp_path, ON_GPU)
    with pytest.raises(CandidateRefused, match="no kernels") as caught:
        with_engine(run, variant_of(tiny.model))
    assert caught.value.log is not None and caught.value.log.read_text() == "all that it said"
    trial = refused("fp16@tensorrt", caught.value)
    assert list(_files(trial)) == [(caught.value.log, "engine/build.log")]
    assert not [path for path in (run.store.root / "engine").iterdir() if (path / "record.json").exists()]


@pytest.mark.parametrize(
    ("target", "inventory", "provider", "options"),
    [
        ("ort-cpu", WITHOUT, CPU_PROVIDER, {}),
        ("tensorrt", WITHOUT, CPU_PROVIDER, {}),
        ("tensorrt", ON_GPU, TENSORRT, {}),
        ("ort-cuda", ON_GPU, CUDA_PROVIDER, {"use_tf32": "0"}),
    ],
)
def test_the_baseline_runs_where_the_variants_do(
    tiny: Tiny, tmp_path: Path, built: list[dict[str, Any]], target: str, inventory: Inventory,
    provider: str, options: dict[str, str],
) -> None:  # fmt: skip
    """On the target's device where that is here, with the job's options; else on the processor."""
    options_of_job = {"use_tf32": "0"}
    run = run_of(tiny, tmp_path, inventory, target=target, candidates="default", provider_options=options_of_job)
    baseline = baseline_variant(run)
    assert baseline.session.provider == provider and baseline.proof == "measured"
    assert baseline.session.provider_options == options
    assert (baseline.engine is not None) == (provider == TENSORRT) == bool(built)


def test_an_engine_is_registered_with_what_it_is_bound_to(
    tiny: Tiny, tmp_path: Path, built: list[dict[str, Any]]
) -> None:
    """The portable file, the engine, its timing cache, and the manifest that the consumer compares with its machine."""
    run = run_of(tiny, tmp_path, ON_GPU)
    variant = with_engine(run, replace(variant_of(tiny.model)))
    manifest = manifest_of(run, variant, None)
    assert set(manifest["files"]) == {tiny.model.name, "engine.plan", "timing.cache"}
    assert (manifest["runtime"], manifest["runtime_version"]) == ("tensorrt", "11.4.0.106")
    bound = manifest["engine"]
    assert (bound["gpu"], bound["compute_capability"], bound["driver"]) == ("NVIDIA H200", "9.0", "580.95.05")
    assert bound["onnx_digest"] == digest_model(tiny.model)
    assert {path.name for path in variant_folder(variant, tmp_path).iterdir()} == set(manifest["files"])
    required = runtime_requirements(ON_GPU, variant)
    assert required[0] == "tensorrt==11.4.0.106" and any(name.startswith("cuda-bindings==") for name in required)
    assert not any(name.startswith("onnxruntime") for name in required)
    elsewhere = replace(run, inventory=WITHOUT)
    assert manifest_of(elsewhere, baseline_variant(elsewhere), None)["engine"] is None


def test_fast_candidate_without_useless_pairs_is_refused(tiny: Tiny, tmp_path: Path) -> None:
    """By real engines, in which each product is an INT8 kernel; nothing here times them."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    name = "int8-static-minmax-pc-fast@tensorrt"
    run = run_of(tiny, tmp_path, WITHOUT, target="tensorrt", candidates=[name])
    made, was_there = variant_from_store(run, decode(name))
    assert made.refusal is not None and made.refusal.kind == "unsupported" and not was_there
    assert "whose removal would leave fewer layers" in made.refusal.reason
    assert "timed on a GPU, and none is here" in made.refusal.reason
    assert variant_from_store(run, decode(name))[1]


def test_what_never_ran_is_never_promoted(tiny: Tiny) -> None:
    """With every verdict a pass: measured it may be, built ahead of time or simulated it may not."""
    verdicts = tuple(Verdict(gate, "pass", 0.0, 0.0, "at_most") for gate in sorted(ALWAYS))
    trial = Trial("fp16@tensorrt", "passed", variant=variant_of(tiny.model), verdicts=verdicts)
    assert Approval(trial, "a device", ALWAYS).variant.proof == "measured"
    proofs: tuple[Proof, ...] = ("aot-checked", "simulated")
    for proof in proofs:
        with pytest.raises(NotApproved):
            Approval(replace(trial, variant=replace(variant_of(tiny.model), proof=proof)), "a device", ALWAYS)
