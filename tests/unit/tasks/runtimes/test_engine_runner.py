"""Engines as quantgate opens them, on the stand-ins of `test_engine_run.py`: a runner, or a refusal of the right kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engines import MIXED, Fakes, faked, mixed_batch
from fake_cuda import Error
from fake_trt_runtime import RUN_MS

from tasks.engines.tensorrt.runner import inspect_engine, open_model, request_ms
from tasks.runtimes.runner import Runner
from validators.errors import CandidateRefused
from validators.records.libraries import Library
from validators.records.run import SessionSettings
from validators.samples.datasets import TensorSpec
from validators.target_facts import CPU_PROVIDER, TENSORRT

SETTINGS = SessionSettings(provider=TENSORRT, threads=1)


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    with faked() as both:
        yield both


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "engine.plan").write_bytes(b"mixed")
    return tmp_path / "engine.plan"


def test_an_engine_is_a_runner(fakes: Fakes, plan: Path) -> None:
    """Described, run over batches, bound; and nothing is left of it."""
    with open_model(plan, SETTINGS) as opened:
        runner: Runner = opened
        assert runner.inputs == (
            TensorSpec("x", "float16", (None, 4)),
            TensorSpec("ids", "int64", (None,)),
            TensorSpec("mask", "bool", (None,)),
        )
        batches = [mixed_batch(3, 1), mixed_batch(8, 2)]
        expected = np.concatenate([MIXED.compute(batch)["twice"] for batch in batches])
        found = np.concatenate([runner.run(batch, ["twice"])[0] for batch in batches])
        np.testing.assert_array_equal(found, expected)
        runner.bound(batches[0])()
        assert fakes.cuda.calls.count("cudaGraphLaunch") == 1
    assert fakes.cuda.held() == 0


def test_an_engine_is_freed_when_the_block_fails(fakes: Fakes, plan: Path) -> None:
    with pytest.raises(ZeroDivisionError), open_model(plan, SETTINGS):
        raise ZeroDivisionError
    assert fakes.cuda.held() == 0


def test_layers_are_told_with_their_times(fakes: Fakes, plan: Path) -> None:
    text, times = inspect_engine(plan, mixed_batch(3))
    assert json.loads(text) == {"Layers": ["gemm", "loop", "loop"]} and times == {"gemm": 0.25, "loop": 1.0}
    assert fakes.cuda.held() == 0


def test_request_is_timed_by_events(fakes: Fakes, plan: Path) -> None:
    assert request_ms(plan, mixed_batch(3)) == RUN_MS
    assert fakes.cuda.held() == 0


def refusal_of_opening(plan: Path, settings: SessionSettings = SETTINGS) -> CandidateRefused:
    with pytest.raises(CandidateRefused) as refused, open_model(plan, settings):
        pass
    return refused.value


def test_other_settings_are_refused(fakes: Fakes, plan: Path) -> None:
    """Rather than let go."""
    assert "CPUExecutionProvider" in refusal_of_opening(plan, replace(SETTINGS, provider=CPU_PROVIDER)).found
    libraries = (Library(plan, "0" * 64),)
    refused = refusal_of_opening(plan, replace(SETTINGS, libraries=libraries))
    assert refused.kind == "unsupported" and "1 operator libraries" in refused.found


@pytest.mark.parametrize(
    ("function", "error", "kind"),
    [
        ("cudaGetDeviceCount", Error.cudaErrorInsufficientDriver, "unsupported"),
        ("cudaStreamCreateWithFlags", Error.cudaErrorMemoryAllocation, "infrastructure"),
        ("cudaStreamCreateWithFlags", Error.cudaErrorIllegalAddress, "invalid"),
    ],
)
def test_what_cuda_lacks_is_a_refusal(fakes: Fakes, plan: Path, function: str, error: Error, kind: str) -> None:
    """When it is opened or when it runs."""
    fakes.cuda.fail[function] = error
    with pytest.raises(CandidateRefused) as refused, open_model(plan, SETTINGS) as runner:
        runner.run(mixed_batch(3), ["sum"])
    assert refused.value.kind == kind and f"{function}: {error.name}" in refused.value.found


def test_a_plan_of_another_version_is_refused(fakes: Fakes, plan: Path) -> None:
    plan.write_bytes(b"other")
    refused = refusal_of_opening(plan)
    assert refused.kind == "invalid" and "the version tag does not match" in refused.found


def test_without_tensorrt_the_extra_is_named(fakes: Fakes, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, name, None)
    refused = refusal_of_opening(plan)
    assert refused.kind == "unsupported" and "`tensorrt`" in refused.fix


def test_without_the_bindings_of_cuda_they_are_named(fakes: Fakes, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    refused = refusal_of_opening(plan)
    assert refused.kind == "unsupported" and "install cuda-bindings" in refused.found


@pytest.mark.parametrize("way", ["run", "bound"])
def test_a_batch_outside_of_the_profile_is_refused(fakes: Fakes, plan: Path, way: str) -> None:
    with open_model(plan, SETTINGS) as runner, pytest.raises(CandidateRefused) as refused:
        runner.run(mixed_batch(9), ["sum"]) if way == "run" else runner.bound(mixed_batch(9))
    assert refused.value.kind == "invalid" and "found 9 on axis 0 of x; expected 3 to 8" in refused.value.found


def test_the_real_builder_s_machine_is_left_alone_without_a_gpu(plan: Path) -> None:
    """TensorRT-RTX itself, if it is here: a refusal, and no process that ends."""
    pytest.importorskip("tensorrt_rtx", reason="its wheels are for x86-64 Linux alone")
    pytest.importorskip("cuda.bindings.runtime", reason="comes with the extras dev and tensorrt")
    refused = refusal_of_opening(plan)
    assert refused.kind in ("unsupported", "invalid")
