"""Gates on time and memory: by hand, and without a verdict where the measurement was disturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasks.reporting.details import measured_facts
from tasks.trials.judge import rank_passing
from tasks.trials.measure_latency import with_threads
from validators.gates.champion import judge_against_champion
from validators.gates.resource import (
    judge_compilation,
    judge_cost,
    judge_ratio,
    judge_speedup,
    judge_speedup_fp16,
    judge_tail,
    why_no_energy,
)
from validators.job.job_gates import Gates
from validators.job.job_measurement import OperatingPoint
from validators.job.read_job import parse_job
from validators.records.latencies import Conditions, EndToEnd, Latency, Tail, Throughput
from validators.records.measurements import Estimate
from validators.records.result import CostResult
from validators.records.run import SessionSettings, Trial, Variant
from validators.records.verdicts import Verdict

CONDITIONS = Conditions(0.21, 0.03, 1.07, (2400.0, 2600.0), 0, 0, 5, 1, (0.2, 1.04), False)
LATENCY = Latency(
    1, 1.0, None, None, 60, 1.5, None, None, Estimate(1.5, 1.4, 1.6), 12, 30.0, 36.0, 15.0, 60.0, Path("samples.npz"),
    launches=4, conditions=CONDITIONS,
    ratios={"load_ms": Estimate(2.0, 1.8, 2.2), "peak_memory_mb": Estimate(0.6, 0.59, 0.61)},
)  # fmt: skip
NOISY = replace(
    LATENCY,
    speedup=Estimate(1.5),
    ratios=LATENCY.ratios | {"load_ms": Estimate(2.0)},
    disturbance="other processes kept 1.20 cores busy",
)


def judge_load(latency: Latency, gates: Gates) -> Verdict | None:
    return judge_ratio("load_ratio", "load_ms", latency, gates, "")


def judge_memory(latency: Latency, gates: Gates) -> Verdict | None:
    return judge_ratio("memory_ratio", "peak_memory_mb", latency, gates, "")


def judge_energy(latency: Latency, gates: Gates) -> Verdict | None:
    return judge_ratio("energy_ratio", "energy_j", latency, gates, why_no_energy(latency))


def test_load_is_judged_by_its_interval() -> None:
    """1.8 to 2.2: within 2.5, beyond 1.5, open at 2."""
    outcomes = {}
    for bound in (1.5, 2.0, 2.5):
        verdict = judge_load(LATENCY, Gates(max_load_ratio=bound))
        assert verdict is not None and (verdict.gate, verdict.direction, verdict.n) == ("load_ratio", "at_most", 4)
        outcomes[bound] = verdict.outcome
    assert outcomes == {1.5: "fail", 2.0: "inconclusive", 2.5: "pass"}
    assert judge_load(LATENCY, Gates()) is None


def test_float16_is_a_second_bar() -> None:
    """At least 1.4x: within 1.3, open at 1.5, out of reach of 1.7; no bound, no gate; disturbed, no verdict."""
    outcomes = {}
    for bound in (1.3, 1.5, 1.7):
        verdict = judge_speedup_fp16(LATENCY, Gates(min_speedup_fp16=bound, min_speedup=None))
        assert verdict is not None and (verdict.gate, verdict.direction) == ("speedup_fp16", "at_least")
        outcomes[bound] = verdict.outcome
    assert outcomes == {1.3: "pass", 1.5: "inconclusive", 1.7: "fail"}
    assert judge_speedup_fp16(LATENCY, Gates()) is None
    noisy = judge_speedup_fp16(NOISY, Gates(min_speedup_fp16=0.1))
    assert noisy is not None and noisy.outcome == "inconclusive"


TAIL = Tail(662, 700, 800, ms=Estimate(10.0, 9.0, 11.0), ratio=Estimate(1.0, 0.9, 1.1))


@pytest.mark.parametrize("percentile", ["p95", "p99"])
@pytest.mark.parametrize(("unit", "scale"), [("ms", 10.0), ("ratio", 1.0)])
def test_percentile_is_judged_by_its_interval(percentile: str, unit: str, scale: float) -> None:
    """0.9 to 1.1 of the scale: beyond 0.8 of it, open at 1, within 1.2; only the percentile of that name counts."""
    gate: Any = f"{percentile}_{unit}"
    slow = replace(TAIL, ms=Estimate(99.0, 98.0, 100.0), ratio=Estimate(9.0, 8.0, 10.0))
    latency = replace(LATENCY, **({"p95": slow, "p99": slow} | {percentile: TAIL}))
    outcomes = {}
    for bound in (0.8, 1.0, 1.2):
        verdict = judge_tail(gate, latency, Gates.model_validate({f"max_{gate}": bound * scale}))
        assert verdict is not None and (verdict.gate, verdict.direction, verdict.n) == (gate, "at_most", 4)
        assert verdict.reason == "" or verdict.outcome != "pass"
        outcomes[bound] = verdict.outcome
    assert outcomes == {0.8: "fail", 1.0: "inconclusive", 1.2: "pass"}
    assert judge_tail(gate, latency, Gates()) is None


def test_open_percentile_says_how_many_launches_settle_it() -> None:
    verdict = judge_tail("p99_ms", replace(LATENCY, p99=TAIL), Gates(max_p99_ms=10.5))
    assert verdict is not None and verdict.outcome == "inconclusive"
    assert verdict.samples_needed == 37 and verdict.counted == "launches"  # 4 ((1 + z(0.8) / z(0.95)) 1 / 0.5)^2
    assert "about 37 launches would settle it: raise `measurement.launches`" in verdict.reason


@pytest.mark.parametrize(("gate", "requests"), [("p99_ms", 120), ("p99_ratio", 80)])
def test_percentile_of_too_few_requests_is_inconclusive(gate: Any, requests: int) -> None:
    """4 launches of 3 blocks each: 221 requests a block make 663 in a launch. The ratio needs them of both sides."""
    few = replace(LATENCY, p99=Tail(662, 120, 80))
    verdict = judge_tail(gate, few, Gates.model_validate({f"max_{gate}": 1e9}))
    assert verdict is not None and (verdict.outcome, verdict.n, verdict.samples_needed) == (
        "inconclusive",
        requests,
        662,
    )
    assert verdict.reason == f"a launch has {requests} requests, p99 needs 662: set `measurement.block_count: 221`"


def test_absolute_percentile_does_not_need_the_baseline() -> None:
    """A slow baseline answers fewer requests in its blocks."""
    latency = replace(LATENCY, p95=Tail(130, 140, 20, ms=Estimate(1.0, 0.9, 1.1)))
    outcomes = {}
    for gate in ("p95_ms", "p95_ratio"):
        verdict = judge_tail(gate, latency, Gates(max_p95_ms=2.0, max_p95_ratio=2.0))
        assert verdict is not None
        outcomes[gate] = verdict.outcome
    assert outcomes == {"p95_ms": "pass", "p95_ratio": "inconclusive"}


@pytest.mark.parametrize(
    ("latency", "reason"),
    [
        (replace(LATENCY, p99=replace(TAIL, ms=Estimate(1.0))), "one launch alone gives no interval"),
        (replace(NOISY, p99=replace(TAIL, ms=Estimate(1.0))), NOISY.disturbance),
        (replace(NOISY, p99=Tail(662, 10, 10)), NOISY.disturbance),
        (LATENCY, "no percentile was measured"),
    ],
)
def test_percentile_without_an_interval_never_passes(latency: Latency, reason: str) -> None:
    verdict = judge_tail("p99_ms", latency, Gates(max_p99_ms=1e9))
    assert verdict is not None and (verdict.outcome, verdict.reason) == ("inconclusive", reason)
    assert verdict.disturbed == bool(latency.disturbance)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, "the device reports no energy"),
        ({"energy_mj": 5.0, "baseline_energy_mj": None}, "the device reports no energy"),
        ({"energy_mj": 5.0, "baseline_energy_mj": 9.0}, "the energy counter stood still in a launch"),
        ({"energy_mj": 5.0, "baseline_energy_mj": 9.0, "ratios": {"energy_j": Estimate(0.5)}}, "one launch alone"),
    ],
)
def test_unmeasured_energy_never_passes(changes: dict[str, Any], reason: str) -> None:
    verdict = judge_energy(replace(LATENCY, **changes), Gates(max_energy_ratio=99.0))
    assert verdict is not None and verdict.outcome == "inconclusive" and reason in verdict.reason
    assert judge_energy(replace(LATENCY, **changes), Gates()) is None


@pytest.mark.parametrize(("request_ms", "reason"), [(None, "no time per request"), (Estimate(1.0), "one launch alone")])
def test_unmeasured_cost_never_passes(request_ms: Estimate | None, reason: str) -> None:
    latency = replace(LATENCY, request_ms=request_ms)
    verdict = judge_cost(latency, Gates(max_cost_per_million=99.0), 1.0)
    assert verdict is not None and verdict.outcome == "inconclusive" and reason in verdict.reason
    assert judge_cost(latency, Gates(), 1.0) is None


def test_one_launch_tells_nothing_of_load_times() -> None:
    verdict = judge_load(replace(LATENCY, ratios={"load_ms": Estimate(1.0)}, launches=1), Gates(max_load_ratio=5))
    assert verdict is not None and verdict.outcome == "inconclusive" and "one launch" in verdict.reason


def test_compilation_is_judged_by_its_seconds() -> None:
    """30 s are within 30 and beyond 29; what was not compiled took none."""
    compiled = Variant("c", Path("m.pt2"), "d", 1, SessionSettings("TorchInductor", 1), compile_seconds=30.0)
    passed, failed = (judge_compilation(compiled, Gates(max_compile_seconds=bound)) for bound in (30, 29))
    assert passed is not None and failed is not None
    assert (passed.outcome, failed.outcome, failed.value) == ("pass", "fail", 30.0)
    assert failed.reason == "compiled in 30.0 s" and failed.gate == "compile_seconds"
    plain = judge_compilation(replace(compiled, compile_seconds=None), Gates(max_compile_seconds=1))
    assert plain is not None and (plain.outcome, plain.value) == ("pass", 0.0)
    assert judge_compilation(compiled, Gates()) is None


def test_memory_is_judged_by_its_interval_over_launches() -> None:
    """0.59 to 0.61, whatever loading took: within 0.61, open at 0.6, beyond 0.58; one launch has no interval."""
    heavy = replace(LATENCY, load_peak_memory_mb=500.0, baseline_load_peak_memory_mb=60.0)
    verdicts = [judge_memory(heavy, Gates(max_memory_ratio=bound)) for bound in (0.61, 0.6, 0.58)]
    assert [verdict and verdict.outcome for verdict in verdicts] == ["pass", "inconclusive", "fail"]
    assert judge_memory(heavy, Gates()) is None
    single = judge_memory(
        replace(LATENCY, ratios={"peak_memory_mb": Estimate(0.6)}, launches=1), Gates(max_memory_ratio=1)
    )
    assert single is not None and single.outcome == "inconclusive" and "one launch" in single.reason


def test_what_was_disturbed_has_no_verdict() -> None:
    """Neither a pass nor a failure, whatever the value, and the reason is told; memory does not mind."""
    for gates in (Gates(min_speedup=1.1, max_load_ratio=5), Gates(min_speedup=9.0, max_load_ratio=0.1)):
        for verdict in (judge_speedup(NOISY, gates, "ort-cpu"), judge_load(NOISY, gates)):
            assert verdict is not None
            assert (verdict.outcome, verdict.reason, verdict.low) == ("inconclusive", NOISY.disturbance, None)
    memory = judge_memory(NOISY, Gates(max_memory_ratio=1.0))
    assert memory is not None and memory.outcome == "pass"
    early = judge_memory(replace(NOISY, ratios={"peak_memory_mb": Estimate(0.6)}), Gates(max_memory_ratio=1.0))
    assert early is not None and early.disturbed, "the first launch was the last"


@pytest.mark.parametrize(("objective", "outcome"), [("latency", "inconclusive"), ("size", "pass")])
def test_no_champion_falls_to_a_disturbed_measurement(objective: Any, outcome: str) -> None:
    """Nor is one that is smaller kept from it: bytes are not disturbed."""
    verdict = judge_against_champion(
        same_source=True, drop=Estimate(0.0, -0.01, 0.01), speedup=NOISY.speedup, size_ratio=0.5, objective=objective,
        gates=Gates(), n=100, pairs=18, disturbance=NOISY.disturbance,
    )  # fmt: skip
    assert verdict.outcome == outcome


def test_a_disturbed_figure_is_no_reason_to_be_the_best(tmp_path: Path) -> None:
    """Without a gate on speed it may pass, and its 9x counts for nothing beside a 1.5x that was measured."""
    job = parse_job({"source": "m.onnx", "data": {"calibration": "c.npz", "evaluation": "e.npz"}}, base=tmp_path)
    variant = Variant("a", Path("a.onnx"), "0" * 64, 10, SessionSettings("CPUExecutionProvider", 2))
    disturbed = Trial("disturbed", "passed", variant=variant, latencies=(replace(NOISY, speedup=Estimate(9.0)),))
    measured = Trial("measured", "passed", variant=variant, latencies=(LATENCY,))

    assert rank_passing(job, (disturbed, measured)) == [measured, disturbed]


def test_threads_of_a_point_are_those_of_the_session() -> None:
    variant = Variant("a", Path("a.onnx"), "0" * 64, 10, SessionSettings("CPUExecutionProvider", 7, "basic"))
    assert with_threads(variant, OperatingPoint(1, {}, 3)).session == SessionSettings(
        "CPUExecutionProvider", 3, "basic"
    )


def test_the_report_tells_what_was_measured() -> None:
    """Every figure beside the baseline's, and nothing that was not measured."""
    told = dict(
        measured_facts(
            replace(
                NOISY,
                throughput=Throughput(4, 500.0, 4000.0, 250.0, 2000.0, Estimate(2.0, 1.9, 2.1)),
                end_to_end=EndToEnd(3.0, 4.0, Estimate(4 / 3)),
                load_peak_memory_mb=75.0,
                baseline_load_peak_memory_mb=110.0,
                energy_mj=50.0,
                baseline_energy_mj=80.0,
            ),
            cost=CostResult(per_million=Estimate(0.5, 0.4, 0.6), baseline_per_million=Estimate(0.9)),
        )
    )
    assert told == {
        "disturbed by": "other processes kept 1.20 cores busy",
        "loads in ms": "30.0 (15.0)",
        "memory MB, peak": "36.0 (60.0)",
        "memory MB, peak while it loads": "75.0 (110)",
        "requests a second of 4 clients": "500 (250), 2.00x, at least 1.90x",
        "end to end, p50 ms": "3.00 (4.00), 1.33x",
        "mJ a request": "50.0 (80.0)",
        "cost of a million requests": "0.500 (0.900), at most 0.600",
        "cores that others and the hypervisor took at most": "0.21 and 0.03",
        "fixed work, slowest over fastest of a pair": "1.07",
        "pairs measured again": "1",
        "clock MHz": "2400 to 2600",
        "warm-up": "not stable after 1.04 s",
    }
    assert set(dict(measured_facts(replace(LATENCY, conditions=None)))) == {"loads in ms", "memory MB, peak"}
