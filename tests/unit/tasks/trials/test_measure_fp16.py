"""Beside float16: who is timed against whom. The comparison is `measure_latency`'s, stood in for here: no GPU runs tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from runs import run_in

from tasks.trials import measure_latency as step
from validators.errors import CandidateRefused
from validators.gates.resource import judge_speedup_fp16
from validators.job.job_gates import Gates
from validators.job.read_job import parse_job
from validators.records.latencies import Latency
from validators.records.measurements import Estimate
from validators.records.run import Refusal, SessionSettings, Trial, Variant

LATENCY = Latency(
    1, 1.0, None, None, 60, 2.0, None, None, Estimate(2.0, 1.9, 2.1), 6, 5.0, 80.0, 9.0, 120.0, Path("samples.npz")
)


def trial(name: str, *, provider: str = "TensorRT", timed: bool = True) -> Trial:
    variant = Variant(name, Path(f"{name}.onnx"), f"digest of {name}", 10, SessionSettings(provider, 1))
    return Trial(name, variant=variant, latencies=(LATENCY,) if timed else ())


def measure(folder: Path, *trials: Trial) -> dict[str, Trial]:
    job = parse_job({"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}, base=folder)
    run: Any = run_in(folder, job)
    return {one.candidate: one for one in step.measure_beside_fp16.fn(run, trials)}


def test_each_is_timed_beside_the_float16_of_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INT8 of TensorRT beside its float16, INT4 of CUDA beside that of CUDA; float16 itself, what was not timed or was refused,
    and what the processor runs are left as they are."""
    pairs = []

    def latency_of(run: Any, baseline: Variant, variant: Variant, point: Any) -> Any:
        pairs.append((baseline.candidate, variant.candidate))
        return replace(LATENCY, speedup=Estimate(1.3, 1.2, 1.4)), False

    monkeypatch.setattr(step, "latency_of", latency_of)
    refused = Trial("fp8-amax-pc@tensorrt", outcome="refused", refusal=Refusal("unsupported", "no kernels"))
    trials = (
        trial("fp16@tensorrt"),
        trial("int8-static-minmax-pc@tensorrt"),
        trial("int4-g128-rtn@tensorrt", timed=False),
        refused,
        trial("fp16@ort-cuda", provider="CUDAExecutionProvider"),
        trial("int4-g32-rtn@ort-cuda", provider="CUDAExecutionProvider"),
        trial("int8-dynamic-pc@ort-cpu", provider="CPUExecutionProvider"),
    )
    after = measure(tmp_path, *trials)
    assert pairs == [
        ("fp16@tensorrt", "int8-static-minmax-pc@tensorrt"),
        ("fp16@ort-cuda", "int4-g32-rtn@ort-cuda"),
    ]
    timed = {name for name, one in after.items() if one.beside_fp16 is not None}
    assert timed == {"int8-static-minmax-pc@tensorrt", "int4-g32-rtn@ort-cuda"} and len(after) == len(trials)
    beside = after["int4-g32-rtn@ort-cuda"].beside_fp16
    assert beside is not None and after["int4-g32-rtn@ort-cuda"].latency == LATENCY
    verdict = judge_speedup_fp16(beside, Gates(min_speedup_fp16=1.0))
    assert verdict is not None and (verdict.outcome, verdict.value) == ("pass", 1.3)


def test_a_float16_that_a_race_stopped_is_still_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its short timing showed that it runs; one that was only inspected never ran here."""
    monkeypatch.setattr(step, "latency_of", lambda *_: (LATENCY, False))
    stopped = replace(
        trial("fp16@tensorrt", timed=False), outcome="refused", refusal=Refusal("stopped", "not 3% faster")
    )
    assert stopped.variant is not None
    inspected = replace(stopped, variant=replace(stopped.variant, proof="aot-checked"))
    int8 = trial("int8-static-minmax-pc@tensorrt")
    assert measure(tmp_path, stopped, int8)[int8.candidate].beside_fp16 == LATENCY
    assert measure(tmp_path, inspected, int8)[int8.candidate].beside_fp16 is None


def test_without_a_float16_candidate_nothing_is_timed(tmp_path: Path) -> None:
    alone = trial("int8-static-minmax-pc@tensorrt")
    assert measure(tmp_path, alone) == {alone.candidate: alone}


def test_a_reference_that_fails_costs_no_candidate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def latency_of(*_: Any) -> Any:
        raise CandidateRefused(kind="invalid", found="float16 fails", expected="that it runs", fix="none")

    monkeypatch.setattr(step, "latency_of", latency_of)
    both = (trial("fp16@tensorrt"), trial("int8-static-minmax-pc@tensorrt"))
    assert tuple(measure(tmp_path, *both).values()) == both
