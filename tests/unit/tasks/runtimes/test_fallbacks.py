"""Silent fallbacks, each planted in a file that says INT8 (or FP16) and answers like its float twin; and clean files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from fallback_cuda import CUDA, PLANTED, Planted
from fallback_openvino import BF16, OPENVINO_PLANTS, SETTINGS
from fallback_plants import INT8, PLANTS, Plant
from fallbacks import answers, count_operators, draw_batch, sqnr_db, table
from fallbacks import row as row_of
from processors import openvino_capabilities

from tasks.runtimes.coverage import coverage_of, measure_coverage
from tasks.runtimes.kernel_times import time_kernels
from validators.gates.coverage import judge_coverage
from validators.job.job_gates import Gates
from validators.records.measurements import KernelProfile


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_the_gate_sees_what_accuracy_and_operators_do_not(plant: Plant, tmp_path: Path) -> None:
    """All answer like float; those that fell back have every product named, and none in a low-precision kernel."""
    before, after = plant.save(tmp_path)
    batch = draw_batch(before)
    noise = sqnr_db(*(answers(path, plant.settings, batch) for path in (before, after)))
    assert noise is None or noise > 25, "an accuracy gate would not see it"
    seen = measure_coverage(after, plant.settings, batch)
    verdict = judge_coverage(plant.label, seen, Gates())
    assert verdict is not None and verdict.outcome == plant.verdict
    assert seen.share == (1.0 if plant.verdict == "pass" else 0.0)
    assert len(seen.float_nodes) == (plant.verdict == "fail")
    assert plant.verdict == "pass" or f"in float: {seen.float_nodes[0]}" in verdict.reason


@pytest.mark.parametrize("plant", OPENVINO_PLANTS, ids=lambda plant: plant.name)
def test_the_gate_sees_what_openvino_ran(plant: Plant, tmp_path: Path) -> None:
    """All answer like float; a fallback has its product named, and a clean file passes in full."""
    if (plant.label == BF16 or plant.settings not in SETTINGS.values()) and "BF16" not in openvino_capabilities():
        pytest.skip("this processor has no bfloat16")
    before, after = plant.save(tmp_path)
    batch = draw_batch(before)
    noise = sqnr_db(*(answers(path, plant.settings, batch) for path in (before, after)))
    assert noise is None or noise > 25, "an accuracy gate would not see it"
    verdict = judge_coverage(plant.label, measure_coverage(after, plant.settings, batch), Gates())
    assert verdict is not None and verdict.outcome == plant.verdict
    assert plant.verdict == "pass" or verdict.reason.partition(": ")[2].startswith("product")


UNFUSED = {
    "Gemm, scales for each output": set(),
    "Gemm, INT8 activations": set(),
    "Conv, scales for each output channel": set(),
    "MatMul, weights only": set(),
    "Transpose behind the pair": set(),
    "Gemm, scales along K": {"w", "x_q", "x_dq", "product_q", "product_dq"},
    "Conv, weights only": {"w"},
    "MatMul, activations only": {"x_q", "x_dq"},
    "Gemm, the optimizer off": {"w", "x_q", "x_dq", "product_q", "product_dq"},
    "ConvTranspose": {"w", "x_q", "x_dq", "product_q", "product_dq"},
    "Reshape behind the weight's DequantizeLinear": {"w", "x_q", "x_dq"},
    "integer products of constants": set(),
    "a float16 file on a CPU": set(),
}


@pytest.mark.parametrize("name", UNFUSED)
def test_pairs_meant_to_be_fused_are_those_listed_by_hand(name: str, tmp_path: Path) -> None:
    """The Q in front of an integer kernel and the DQ behind it have to run, and are no fault."""
    plant = next(plant for plant in PLANTS if plant.name == name)
    _, after = plant.save(tmp_path)
    seen = measure_coverage(after, plant.settings, draw_batch(after))
    assert {kernel.name for kernel in seen.unfused} == UNFUSED[name]
    assert seen.unfused_time is not None and (seen.unfused_time > 0) == bool(UNFUSED[name])


def test_what_a_count_of_operators_says(tmp_path: Path) -> None:
    """Nine in ten, where what ran is one product in float; all, where scales lie along K."""
    counted = {}
    for plant in PLANTS:
        counted[plant.name] = count_operators(onnx.load(plant.save(tmp_path)[1]).graph)
    assert counted["integer products of constants"] == 0.9
    assert counted["a float file"] == 0.0
    assert set(counted.values()) == {0.0, 0.9, 1.0} and list(counted.values()).count(1.0) == len(PLANTS) - 2


EXPECTED = {
    "MatMulNBits": "pass",
    "MatMul in float16": "pass",
    "MatMul in float": "fail",
    "Q/DQ around a MatMul": "fail",
    "QLinearMatMul on the CPU": "fail",
    "MatMulNBits on the CPU": "fail",
}


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_profiles_of_the_cuda_provider(planted: Planted) -> None:
    """Written by hand, 4 x 64 x 32 multiply-accumulates each: what another provider ran is a fallback, whatever its kernel."""
    seen = coverage_of(planted.graph, planted.events, CUDA, planted.requests)
    assert list(seen.macs_by_kernel.values()) == [4 * 64 * 32]
    verdict = judge_coverage(planted.label, seen, Gates())
    assert verdict is not None and verdict.outcome == EXPECTED[planted.name.partition(": ")[2]]
    assert verdict.outcome == "pass" or "in float: product" in verdict.reason
    if planted.name.endswith("on the CPU"):
        assert "by another provider: " in verdict.reason and "CPUExecutionProvider" in seen.providers


def test_copies_beside_a_profile_without_them_are_inserted() -> None:
    """Two copies for one product on the CPU: 60 of 120 microseconds."""
    planted = next(planted for planted in PLANTED if planted.name.endswith("QLinearMatMul on the CPU"))
    float_only = next(planted for planted in PLANTED if planted.name.endswith("MatMul in float"))
    before = KernelProfile(time_kernels(float_only.events, 1))
    seen = coverage_of(planted.graph, planted.events, CUDA, 1, before)
    assert seen.inserted_counts == {"MemcpyToHost": 1, "MemcpyFromHost": 1}
    assert seen.inserted_time == pytest.approx(60 / 120)
    assert seen.time_share == 0.0


def test_the_table_has_a_line_for_each(tmp_path: Path) -> None:
    """What the label and the operators say beside what ran."""
    plant = next(plant for plant in PLANTS if plant.name == "Gemm, scales along K")
    head, _, line = table([row_of(plant, tmp_path)]).splitlines()
    assert head.count("|") == line.count("|") == 8
    assert f"`{INT8}`" in line and line.endswith("| 100% | 0% | Gemm | fail |")
