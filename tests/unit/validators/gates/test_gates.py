"""Gates: every gate with a fault it must catch and a twin, and how many samples settle a doubt."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from tasks.measure.latency.ratio import tail_of
from validators.errors import JobError
from validators.gates.accuracy import MetricGate, check_gates_can_be_met, judge_drop, judge_metric
from validators.gates.agreement import check_agreement_can_be_met, estimate_agreement, judge_agreement
from validators.gates.champion import judge_against_champion, judge_champion_device
from validators.gates.coverage import judge_coverage, judge_simulation, judge_time_coverage
from validators.gates.intervals import drop_interval, tango_interval
from validators.gates.resource import TailGate, judge_cost, judge_ratio, judge_size, judge_speedup, judge_tail
from validators.gates.sanity import judge_finite, judge_sanity
from validators.gates.verdict_rules import confidence_of_each, overall, samples_to_settle
from validators.job.job import Confirmation
from validators.job.job_gates import Gates
from validators.records.latencies import Latency
from validators.records.measurements import Agreement, Answers, Coverage, Estimate, KernelTime, Sanity
from validators.records.run import Champion, SessionSettings, Variant
from validators.records.verdicts import Outcome, Verdict

CANDIDATE = "int8-static-minmax-pc@ort-cpu"


# The gates


def latency(speedup: Estimate) -> Latency:
    """A latency of which only the speedup matters here."""
    return Latency(
        batch_size=1,
        p50_ms=1.0,
        p95_ms=None,
        p99_ms=None,
        count=40,
        baseline_p50_ms=speedup.value,
        baseline_p95_ms=None,
        baseline_p99_ms=None,
        speedup=speedup,
        pairs=8,
        load_ms=1.0,
        peak_memory_mb=1.0,
        baseline_load_ms=1.0,
        baseline_peak_memory_mb=1.0,
        samples_path=Path("samples.npz"),
    )


def variant(size_bytes: int = 100, *, simulated: bool = False) -> Variant:
    """A variant of which only the size and whether it is simulated matter here."""
    settings = SessionSettings("CPUExecutionProvider", 1)
    return Variant(
        CANDIDATE, Path("model.onnx"), "0" * 64, size_bytes, settings, proof="simulated" if simulated else "measured"
    )


def coverage(low: int, high: int) -> Coverage:
    """`low` MACs in low precision and `high` in float."""
    return Coverage({"QGemm": low, "Gemm": high}, ("QGemm",), ("head",) if high else (), ("CPUExecutionProvider",))


GATES = Gates(max_drop=0.02, min_speedup=1.2, min_coverage=0.5, max_size_ratio=1.0)

CAUGHT: dict[str, tuple[Callable[[], Verdict | None], Callable[[], Verdict | None]]] = {
    "drop": (
        lambda: judge_drop(Estimate(0.05, 0.03, 0.07), GATES, n=500, method="m"),
        lambda: judge_drop(Estimate(0.005, -0.01, 0.019), GATES, n=500, method="m"),
    ),
    "metric_floor": (
        lambda: metric_verdict("metric_floor", Estimate(0.7, 0.68, 0.72)),
        lambda: metric_verdict("metric_floor", Estimate(0.77, 0.751, 0.79)),
    ),
    "metric_ceiling": (
        lambda: metric_verdict("metric_ceiling", Estimate(0.9, 0.8, 1.0)),
        lambda: metric_verdict("metric_ceiling", Estimate(0.7, 0.66, 0.74)),
    ),
    "speedup": (
        lambda: judge_speedup(latency(Estimate(0.26, 0.25, 0.27)), GATES, "ort-cpu"),
        lambda: judge_speedup(latency(Estimate(1.4, 1.3, 1.5)), GATES, "ort-cpu"),
    ),
    "p95_ratio": (lambda: tail_verdict("p95_ratio", 0.1), lambda: tail_verdict("p95_ratio", 0.0)),
    "p95_ms": (lambda: tail_verdict("p95_ms", 0.1), lambda: tail_verdict("p95_ms", 0.0)),
    "p99_ratio": (lambda: tail_verdict("p99_ratio", 0.03), lambda: tail_verdict("p99_ratio", 0.0)),
    "p99_ms": (lambda: tail_verdict("p99_ms", 0.03), lambda: tail_verdict("p99_ms", 0.0)),
    # At 3.6 an hour a millisecond costs 1 per million requests.
    "cost_per_million": (lambda: cost_verdict(Estimate(2.2, 2.1, 2.3)), lambda: cost_verdict(Estimate(1.8, 1.7, 1.9))),
    "energy_ratio": (lambda: energy_verdict(13.0), lambda: energy_verdict(7.0)),
    "coverage": (
        lambda: judge_coverage(CANDIDATE, coverage(10, 90), GATES),
        lambda: judge_coverage(CANDIDATE, coverage(90, 10), GATES),
    ),
    "time_coverage": (
        lambda: judge_time_coverage(CANDIDATE, timed(19, 81), TIMED),
        lambda: judge_time_coverage(CANDIDATE, timed(20, 80), TIMED),
    ),
    "same_outputs": (lambda: sanity_verdict(0, name="z"), lambda: sanity_verdict(0)),
    "not_constant": (lambda: sanity_verdict(1, is_constant=True), lambda: sanity_verdict(1)),
    "deterministic": (lambda: sanity_verdict(2, spread=1e-9), lambda: sanity_verdict(2)),
    "finite_outputs": (lambda: sanity_verdict(3, bad_samples=(2,)), lambda: sanity_verdict(3)),
    "size_ratio": (lambda: judge_size(variant(130), 100, GATES), lambda: judge_size(variant(26), 100, GATES)),
    "finite": (lambda: judge_finite(1, 2000), lambda: judge_finite(0, 2000)),
    "beats_champion": (
        lambda: against_champion(speedup=Estimate(0.9, 0.88, 0.92)),
        lambda: against_champion(speedup=Estimate(1.1, 1.05, 1.15)),
    ),
    "champion_device": (lambda: beside_device("Xeon [avx2] x16; o 1"), lambda: beside_device("i5 [avx2] x16; o 1")),
}


def metric_verdict(gate: MetricGate, found: Estimate) -> Verdict | None:
    """The verdict on a metric that must be at least, or at most, 0.75."""
    return judge_metric(gate, found, Gates(min_metric=0.75, max_metric=0.75), n=500, method="m")


def test_open_metric_says_how_many_samples_settle_it() -> None:
    """An interval around the bound passes neither gate."""
    for gate in get_args(MetricGate):
        verdict = metric_verdict(gate, Estimate(0.76, 0.72, 0.80))
        assert verdict is not None and verdict.outcome == "inconclusive" and verdict.samples_needed is not None
        assert "evaluation samples would settle it" in verdict.reason
        assert judge_metric(gate, None, Gates(), n=500, method="m") is None


def cost_verdict(request_ms: Estimate) -> Verdict | None:
    """The verdict on a variant whose requests take so long, where a million may cost 2."""
    timed = replace(latency(Estimate(1.5, 1.4, 1.6)), request_ms=request_ms)
    return judge_cost(timed, Gates(max_cost_per_million=2.0), 3.6)


def energy_verdict(energy_mj: float) -> Verdict | None:
    """The verdict on a variant that takes so much energy a request, where the baseline takes 10 mJ, to within 1 %."""
    ratio = energy_mj / 10
    spent = replace(
        latency(Estimate(1.5, 1.4, 1.6)),
        energy_mj=energy_mj,
        baseline_energy_mj=10.0,
        ratios={"energy_j": Estimate(ratio, 0.99 * ratio, 1.01 * ratio)},
    )
    return judge_ratio("energy_ratio", "energy_j", spent, Gates(max_energy_ratio=1.0), "")


def tail_verdict(gate: TailGate, slow: float) -> Verdict | None:
    """The verdict on a variant as fast as the baseline at p50, of whose requests a share takes twice as long."""
    rng = np.random.default_rng(3)
    baseline, variant = (rng.lognormal(0, 0.05, (6, 700)) for _ in range(2))
    variant = np.where(rng.random(variant.shape) < slow, 2 * variant, variant)
    p95, p99 = (tail_of(list(baseline), list(variant), quantile, 0.95) for quantile in (0.95, 0.99))
    gates = Gates(max_p95_ratio=1.1, max_p99_ratio=1.1, max_p95_ms=1.3, max_p99_ms=1.3)
    return judge_tail(gate, replace(latency(Estimate(1.0)), launches=6, p95=p95, p99=p99), gates)


TIMED = Gates(min_time_coverage=0.2)


def timed(low: float, high: float, **changes: Any) -> Coverage:
    """`low` microseconds in low precision and `high` in float."""
    return replace(coverage(1, 1), us_by_kernel={"QGemm": low, "Gemm": high}, **changes)


def sanity_verdict(place: int, **changes: Any) -> Verdict:
    """One of the sanity verdicts on a variant that differs from the baseline in one thing."""
    answers = Answers("y", "float32", (8, 4))
    return judge_sanity(Sanity(8, 3, (answers,), (replace(answers, **changes),)))[place]


def beside_device(approved_on: str) -> Verdict:
    """The verdict on a variant that was judged on an i5 with AVX2, beside a champion of some device."""
    return judge_champion_device(approved(approved_on), here="i5 [avx2] x8; onnxruntime 1.27.0", replaces=False)


def approved(device: str) -> Champion:
    """A champion that was approved on a device."""
    return Champion("m-quantized", "3", "champion-ort-cpu", "d", "s", "int8-dynamic-pc@ort-cpu", device=device)


def against_champion(**changes: Any) -> Verdict:
    """The verdict beside a champion of the same source."""
    given: dict[str, Any] = {
        "same_source": True,
        "drop": Estimate(0.0, -0.01, 0.01),
        "speedup": Estimate(1.0, 0.9, 1.1),
        "size_ratio": 1.0,
        "objective": "latency",
        "gates": GATES,
        "n": 500,
        "pairs": 8,
    }
    return judge_against_champion(**(given | changes))


@pytest.mark.parametrize("gate", CAUGHT)
def test_each_gate_catches_its_fault_and_lets_the_twin_pass(gate: str) -> None:
    """The verdict names the gate; a failure says why."""
    fault, twin = (make() for make in CAUGHT[gate])
    assert fault is not None and twin is not None
    assert (fault.gate, fault.outcome) == (gate, "fail")
    assert fault.reason
    assert (twin.gate, twin.outcome, twin.reason) == (gate, "pass", "")


def test_simulated_variant_is_caught_and_real_one_has_no_gate() -> None:
    """Numbers without kernels fail whatever else they are."""
    verdict = judge_simulation(variant(simulated=True))
    assert verdict is not None
    assert (verdict.gate, verdict.outcome) == ("real_kernels", "fail") and "simulated" in verdict.reason
    assert judge_simulation(variant()) is None


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.01, 0.01, "pass"),
        (-0.01, 0.02, "pass"),
        (-0.01, 0.0201, "inconclusive"),
        (0.02, 0.04, "inconclusive"),
        (0.0201, 0.04, "fail"),
        (float("nan"), float("nan"), "fail"),
    ],
)
def test_the_drop_is_judged_by_both_ends_of_its_interval(low: float, high: float, outcome: Outcome) -> None:
    """Pass when the upper end is within the tolerance, fail when the lower one is beyond, the bound itself is within."""
    verdict = judge_drop(Estimate((low + high) / 2, low, high), GATES, n=500, method="some")
    assert verdict.outcome == outcome
    assert (verdict.low, verdict.high) == pytest.approx((low, high), nan_ok=True)
    assert (verdict.bound, verdict.n) == (0.02, 500)
    assert (verdict.direction, verdict.confidence, verdict.method) == ("at_most", 0.95, "some")
    assert ("samples would settle it" in verdict.reason) == (outcome == "inconclusive")


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.2, 1.3, "pass"),
        (1.19, 1.3, "inconclusive"),
        (1.1, 1.2, "inconclusive"),
        (1.1, 1.19, "fail"),
        (float("nan"), float("nan"), "fail"),
    ],
)
def test_the_speedup_is_judged_by_both_ends_of_its_interval(low: float, high: float, outcome: Outcome) -> None:
    """The mirror of the drop: pass when the lower end is beyond the bound."""
    verdict = judge_speedup(latency(Estimate((low + high) / 2, low, high)), GATES, "ort-cpu")
    assert verdict is not None
    assert (verdict.outcome, verdict.direction, verdict.bound, verdict.n) == (outcome, "at_least", 1.2, 8)


def kernels(kind: str, count: int) -> tuple[KernelTime, ...]:
    """Kernels of one microsecond each, by the names a0, a1 and so on."""
    return tuple(KernelTime(f"{kind.lower()}{place}", kind, "CPUExecutionProvider", 1.0) for place in range(count))


def test_the_reason_names_what_fell_back_and_what_came_with_it() -> None:
    """A few of each, and how many more."""
    found = timed(
        10,
        90,
        float_nodes=tuple(f"node{place}" for place in range(17)),
        macs_by_kernel={"Gemm": 90, "QGemm on OtherExecutionProvider": 10},
        unfused=kernels("DequantizeLinear", 7),
        inserted=(*kernels("Cast", 1), *kernels("Transpose", 2)),
        kernels_path=Path("/store/coverage/kernels.json"),
    )
    for verdict, ran in (
        (judge_coverage(CANDIDATE, found, GATES), "0% of multiply-accumulates ran in low precision"),
        (judge_time_coverage(CANDIDATE, found, TIMED), "10% of kernel time was in low precision"),
    ):
        assert verdict is not None and verdict.outcome == "fail"
        assert verdict.reason == (
            f"{ran}; in float: node0, node1, node2, node3, node4 and 12 more"
            "; by another provider: QGemm on OtherExecutionProvider"
            "; 7 Q/DQ not fused, 7% of the time: dequantizelinear0, dequantizelinear1, dequantizelinear2, "
            "dequantizelinear3, dequantizelinear4 and 2 more"
            "; inserted 1 Cast, 2 Transpose, 3% of the time: cast0, transpose0, transpose1"
        )


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("int8-dynamic-pc@ort-cpu", "fail"),
        ("int4-g32-rtn@ort-cpu", "fail"),
        ("fp8-amax-pc@tensorrt", "fail"),
        ("fp16@ort-cuda", "pass"),
        ("fp32-fused@ort-cpu", None),
    ],
)
def test_what_is_enough_hangs_on_the_label(name: str, outcome: Outcome | None) -> None:
    """All in float16, by work and by time: it is what FP16 says, half of what INT8 does, and nothing to float32."""
    half = Coverage(
        {"MatMul in float16": 9}, (), (), ("CUDAExecutionProvider",), ("MatMul in float16",), ("head",),
        {"MatMul in float16": 5.0},
    )  # fmt: skip
    verdicts = judge_coverage(name, half, GATES), judge_time_coverage(name, half, TIMED)
    assert [verdict and verdict.outcome for verdict in verdicts] == [outcome, outcome]
    assert all(outcome != "fail" or (verdict and "in float: head" in verdict.reason) for verdict in verdicts)


def test_a_float16_label_on_float32_kernels_fails_by_name() -> None:
    """What a CPU makes of a float16 file."""
    verdict = judge_coverage("fp16@ort-cpu", coverage(0, 9), GATES)
    assert verdict is not None and verdict.outcome == "fail"
    assert verdict.reason == "0% of multiply-accumulates ran in 16 bits or fewer; in float: head"


def test_time_that_nobody_tells_is_not_judged() -> None:
    """Inconclusive where the gate is set, and no verdict where it is not."""
    verdict = judge_time_coverage(CANDIDATE, coverage(9, 0), TIMED)
    assert verdict is not None and (verdict.outcome, verdict.value) == ("inconclusive", None)
    assert "reports no times" in verdict.reason
    assert judge_time_coverage(CANDIDATE, timed(0, 9), GATES) is None


@pytest.mark.parametrize(("low", "high", "outcome"), [(50, 50, "pass"), (49, 51, "fail"), (0, 0, "fail")])
def test_coverage_at_its_bound(low: int, high: int, outcome: Outcome) -> None:
    """Half is enough for a half; a model without any multiply-accumulates covers nothing."""
    verdict = judge_coverage(CANDIDATE, coverage(low, high), GATES)
    assert verdict is not None and verdict.outcome == outcome
    assert "head" in verdict.reason or outcome == "pass" or high == 0


def test_size_at_its_bound() -> None:
    """As many bytes as the baseline are enough for a ratio of one."""
    at, above = judge_size(variant(100), 100, GATES), judge_size(variant(101), 100, GATES)
    assert at is not None and above is not None
    assert (at.outcome, above.outcome) == ("pass", "fail")
    assert above.value == pytest.approx(1.01)


def test_gates_that_are_not_set_or_not_meant_give_no_verdict() -> None:
    """A null gate, and coverage of a candidate in float32."""
    none = Gates(min_speedup=None, min_coverage=None, max_size_ratio=None)
    assert judge_speedup(latency(Estimate(0.1, 0.1, 0.1)), none, "ort-cpu") is None
    assert judge_coverage(CANDIDATE, coverage(0, 9), none) is None
    assert judge_size(variant(900), 1, none) is None
    assert judge_coverage("fp32-fused@ort-cpu", coverage(0, 9), GATES) is None


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        # The same source: better by the objective, beyond doubt.
        ({"speedup": Estimate(1.05, 1.0, 1.1)}, "pass"),
        ({"speedup": Estimate(1.05, 0.99, 1.1)}, "inconclusive"),
        ({"speedup": Estimate(0.95, 0.9, 0.99)}, "fail"),
        ({"objective": "size", "size_ratio": 0.99, "speedup": Estimate(0.5, 0.5, 0.5)}, "pass"),
        ({"objective": "size", "size_ratio": 1.0}, "fail"),
        ({"objective": "size", "size_ratio": 1.5, "speedup": Estimate(2.0, 2.0, 2.0)}, "fail"),
        # Another source: anything that is not clearly worse.
        ({"same_source": False, "speedup": Estimate(0.5, 0.5, 0.5)}, "pass"),
        ({"same_source": False, "drop": Estimate(0.02, -0.01, 0.05)}, "pass"),
        ({"same_source": False, "drop": Estimate(0.05, 0.03, 0.07), "speedup": Estimate(3.0, 3.0, 3.0)}, "fail"),
    ],
)
def test_what_it_takes_to_follow_a_champion(changes: dict[str, Any], outcome: Outcome) -> None:
    """A change for noise is no gain; a new source version gets its chance unless it is clearly worse."""
    verdict = against_champion(**changes)
    assert (verdict.gate, verdict.outcome) == ("beats_champion", outcome)
    assert bool(verdict.reason) == (outcome != "pass")


@pytest.mark.parametrize(
    ("approved_on", "here", "outcome"),
    [
        # Cores, the driver and runtimes change without the device.
        ("i5 [avx2] x4; onnxruntime 1.20.0", "i5 [avx2] x8; onnxruntime 1.27.0", "pass"),
        ("i5 [avx2] x8; L4 cc8.9 driver 550.1; o 1", "i5 [avx2] x8; L4 cc8.9 driver 580.9; o 2", "pass"),
        ("i5 [avx2] x8; o 1", "i7 [avx2] x8; o 1", "fail"),
        ("i5 [avx2] x8; o 1", "i5 [avx2 avx512f] x8; o 1", "fail"),
        ("i5 [avx2] x8; L4 cc8.9 driver 1; o 1", "i5 [avx2] x8; H200 cc9.0 driver 1; o 1", "fail"),
        ("i5 [avx2] x8; L4 cc8.9 driver 1; o 1", "i5 [avx2] x8; o 1", "fail"),
        ("written by hand", "i5 [avx2] x8; o 1", "fail"),
        ("", "i5 [avx2] x8; o 1", "inconclusive"),
    ],
)
def test_champion_device_compares_processor_and_gpu(approved_on: str, here: str, outcome: Outcome) -> None:
    """A device of another class fails unless the user asked to replace it, and then the verdict says so; none is doubt."""
    champion = approved(approved_on)
    verdict = judge_champion_device(champion, here=here, replaces=False)
    assert verdict.outcome == outcome and (outcome != "inconclusive" or "version 3" in verdict.reason)
    asked = judge_champion_device(champion, here=here, replaces=True)
    assert (asked.outcome, asked.reason[:8]) == ("pass", "" if outcome == "pass" else "replaced")


def test_overall_is_the_worst_verdict() -> None:
    """Any failure fails, else any doubt is doubt."""
    made = {outcome: Verdict("g", outcome, 0.0, 0.0, "at_most") for outcome in ("pass", "fail", "inconclusive")}
    table: dict[tuple[Outcome, ...], str] = {
        (): "passed",
        ("pass", "pass"): "passed",
        ("pass", "inconclusive"): "inconclusive",
        ("inconclusive", "fail", "pass"): "failed",
        ("fail", "fail"): "failed",
    }
    for outcomes, expected in table.items():
        assert overall(tuple(made[outcome] for outcome in outcomes)) == expected


# How many samples settle a doubt


@pytest.mark.parametrize(
    ("value", "low", "high", "direction", "factor"),
    [
        # The upper end has to come down from 0.03 to 0.02 in front of a value of 0: a gap of 0.02 for a half-width of 0.03.
        (0.0, -0.03, 0.03, "at_most", 0.03 / 0.02),
        # It would fail: the lower end, 0.04 below, has to climb by that over a gap of 0.01.
        (0.03, -0.01, 0.05, "at_most", 0.04 / 0.01),
        (0.03, -0.03, 0.05, "at_least", 0.06 / 0.01),
        (0.0, -0.05, 0.03, "at_least", 0.03 / 0.02),
    ],
)
def test_the_samples_that_settle_by_hand(
    value: float, low: float, high: float, direction: Literal["at_most", "at_least"], factor: float
) -> None:
    """n times the square of half-width over gap, times ((1.6449 + 0.8416) / 1.6449)^2 = 2.2852 for 80 % power."""
    needed = samples_to_settle(Estimate(value, low, high), 0.02, direction, 0.95, 1000)
    assert needed == pytest.approx(1000 * 2.2852 * factor**2, rel=1e-4)


@pytest.mark.parametrize(
    "estimate",
    [Estimate(0.02, 0.0, 0.04), Estimate(0.01), Estimate(0.01, -math.inf, math.inf), Estimate(0.05)],
)
def test_no_number_settles_what_lies_on_the_bound(estimate: Estimate) -> None:
    """Nor is there one where there is no interval; the verdict is inconclusive and says so."""
    assert samples_to_settle(estimate, 0.02, "at_most", 0.95, 1000) is None
    verdict = judge_drop(estimate, GATES, n=1000, method="none: too few")
    assert (verdict.outcome, verdict.samples_needed) == ("inconclusive", None)
    assert "would settle it" in verdict.reason


@pytest.mark.parametrize("drop", [0.01, 0.03])
def test_that_many_samples_settle_four_in_five(drop: float) -> None:
    """3,000 draws of the size foretold from an estimate that is the truth: 80 % pass or fail, as they should."""
    lost, gained = 0.05 + drop, 0.05
    n = 1000
    low, high = tango_interval(round(lost * n), round(gained * n), n, 0.95)
    verdict = judge_drop(Estimate(drop, low, high), GATES, n=n, method="m")
    assert verdict.outcome == "inconclusive" and verdict.samples_needed is not None
    count, draws = verdict.samples_needed, 3000
    tables = np.random.default_rng(3).multinomial(count, [lost, gained, 1 - lost - gained], draws)
    bounds = [tango_interval(int(b), int(c), count, 0.95) for b, c, _ in tables]
    settled = [high <= 0.02 if drop < 0.02 else low > 0.02 for low, high in bounds]
    assert 0.76 < np.mean(settled) < 0.84


def test_the_reason_counts_what_was_counted() -> None:
    """Samples for a drop, pairs of blocks for a speedup, both in two digits."""
    drop = judge_drop(Estimate(0.0, -0.03, 0.03), GATES, n=1000, method="m")
    assert (drop.samples_needed, drop.reason.endswith("about 5,200 evaluation samples would settle it")) == (5142, True)
    speed = judge_speedup(latency(Estimate(1.3, 1.15, 1.45)), GATES, "ort-cpu")
    assert (
        speed is not None and "about 42 pairs of blocks would settle it: raise `measurement.launches`" in speed.reason
    )


def test_confidence_is_shared() -> None:
    """A twentieth among five is a hundredth each; one alone has all of it."""
    assert confidence_of_each(0.95, 5) == pytest.approx(0.99)
    assert confidence_of_each(0.95, 1) == pytest.approx(0.95)


# Gates that nothing can pass

NO_SPLIT = Confirmation(share=0.0)


def kept(choosing: int, confirming: int) -> NDArray[np.bool_]:
    """Which of so many samples are for confirmation."""
    return np.arange(choosing + confirming) >= choosing


@pytest.mark.parametrize(
    ("max_drop", "confidence", "needed"), [(0.02, 0.95, 149), (0.01, 0.95, 299), (0.001, 0.95, 2995), (0.02, 0.99, 266)]
)
def test_a_tolerance_below_what_the_samples_can_show_is_refused(
    max_drop: float, confidence: float, needed: int
) -> None:
    """With one sample too few even a variant that never differs is inconclusive; with enough it passes."""
    gates = Gates(max_drop=max_drop, confidence=confidence)
    for n, outcome in ((needed - 1, "inconclusive"), (needed, "pass")):
        drop, method = drop_interval(np.zeros(n), confidence)
        assert judge_drop(drop, gates, n=n, method=method).outcome == outcome
    check_gates_can_be_met(gates, NO_SPLIT, kept(needed, 0), {}, is_right_or_wrong=True)
    with pytest.raises(JobError, match=f"at least {needed} samples") as caught:
        check_gates_can_be_met(gates, NO_SPLIT, kept(needed - 1, 0), {}, is_right_or_wrong=True)
    assert f"{needed - 1} evaluation samples" in caught.value.found and caught.value.fix


def test_each_part_of_the_samples_must_be_able_to_pass() -> None:
    """149 choose at 95 %, log(0.05) / log(0.98); those that confirm one of three need 222, at 98.3 %: z^2 = 4.529, times 49."""
    check_gates_can_be_met(GATES, Confirmation(), kept(149, 222), {}, is_right_or_wrong=True)
    for parts, words in (((148, 222), "148 evaluation samples that choose"), ((149, 221), "221 .* that confirm")):
        with pytest.raises(JobError, match=words) as caught:
            check_gates_can_be_met(GATES, Confirmation(), kept(*parts), {}, is_right_or_wrong=True)
        assert "confirmation.share" in caught.value.fix
    check_gates_can_be_met(GATES, Confirmation(candidates=1), kept(149, 149), {}, is_right_or_wrong=True)


def test_the_smallest_group_must_be_able_to_pass() -> None:
    """Three groups in all, each at 98.3 %: 4.529 times 0.95 / 0.05 is 87 for a drop of 0.05; the error names the group."""
    for size in (87, 86):
        places = np.array(["in"] * 500 + ["abroad"] * size)
        slices = {"place": places, "all": np.zeros(len(places), np.int64)}
        gates = Gates(max_drop=0.02, max_slice_drop=0.05)
        if size == 87:
            check_gates_can_be_met(gates, NO_SPLIT, kept(587, 0), slices, is_right_or_wrong=True)
            continue
        with pytest.raises(JobError, match="at least 87 samples") as caught:
            check_gates_can_be_met(gates, NO_SPLIT, kept(586, 0), slices, is_right_or_wrong=True)
        assert "86 evaluation samples in the group abroad of the slice 'place'" in caught.value.found
        assert "max_slice_drop: null" in caught.value.fix
        without = Gates(max_drop=0.02, max_slice_drop=None)
        check_gates_can_be_met(without, NO_SPLIT, kept(586, 0), slices, is_right_or_wrong=True)


def test_no_number_of_samples_shows_a_drop_of_nothing() -> None:
    """A tolerance of zero is refused for right and wrong, and let be for values, of which eight are enough."""
    with pytest.raises(JobError, match="infinitely many"):
        check_gates_can_be_met(Gates(max_drop=0.0), NO_SPLIT, kept(10**6, 0), {}, is_right_or_wrong=True)
    check_gates_can_be_met(Gates(max_drop=0.0), NO_SPLIT, kept(8, 0), {}, is_right_or_wrong=False)
    with pytest.raises(JobError, match="at least 8 samples"):
        check_gates_can_be_met(Gates(max_drop=0.0), Confirmation(), kept(8, 7), {}, is_right_or_wrong=False)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nonfinite_drops_have_no_interval_and_do_not_pass(bad: float) -> None:
    """One sample is enough, and nothing is resampled."""
    drops = np.random.default_rng(0).normal(size=50) - 9
    drops[7] = bad
    estimate, method = drop_interval(drops, 0.95)
    assert math.isnan(estimate.value) and "NaN or Inf" in method
    assert judge_drop(estimate, GATES, n=50, method=method).outcome == "fail"


@pytest.mark.parametrize(("size", "outcome"), [(1_000_400, "pass"), (1_000_600, "fail")])
def test_less_than_a_thousandth_of_the_size_is_nothing(size: int, outcome: str) -> None:
    """Names of nodes make a file of the same weights larger by less."""
    verdict = judge_size(variant(size), 1_000_000, GATES)
    assert verdict is not None and verdict.outcome == outcome


# Greedy answers


def test_agreement_is_judged_by_its_lower_bound() -> None:
    """100 prompts, of which 20 differ from the middle on: 90 % on average, and no more than 94 % or less than 86 %."""
    agreement = Agreement(64, (1.0,) * 80 + (0.5,) * 20)
    estimate, _ = estimate_agreement(agreement, 0.95)
    assert estimate.low is not None and estimate.high is not None
    assert estimate.value == pytest.approx(0.9) and 0.86 < estimate.low < 0.9 < estimate.high < 0.94
    for bound, outcome in ((0.85, "pass"), (0.89, "inconclusive"), (0.95, "fail")):
        verdict = judge_agreement(agreement, Gates(min_agreement=bound))
        assert verdict is not None and verdict.outcome == outcome and verdict.n == 100
        assert ("measurement.prompts" in verdict.reason) == (outcome == "inconclusive")
    assert judge_agreement(agreement, Gates()) is None


def test_few_equal_answers_are_no_proof_of_agreement() -> None:
    """Of 8 prompts that agree to their end, more could differ than were drawn."""
    few, many = (judge_agreement(Agreement(64, (1.0,) * count), Gates(min_agreement=0.95)) for count in (8, 100))
    assert few is not None and few.outcome == "inconclusive" and many is not None and many.outcome == "pass"


def test_prompts_of_few_documents_count_as_documents() -> None:
    """128 prompts of 16 documents, of which 3 differ from the start on: enough for 70 % if independent, and too little so."""
    documents = tuple(document for document in range(16) for _ in range(8))
    shares = tuple(0.0 if document < 3 else 1.0 for document in documents)
    gates = Gates(min_agreement=0.7)
    alone, together = (judge_agreement(Agreement(64, shares, of), gates) for of in ((), documents))
    assert alone is not None and (alone.outcome, alone.n, alone.counted) == ("pass", 128, "prompts")
    assert together is not None and together.outcome == "inconclusive"
    assert (together.n, together.counted) == (16, "clusters of prompts")
    assert "measurement.prompts" not in together.reason
    apart = judge_agreement(Agreement(64, shares, tuple(range(128))), gates)
    assert apart == alone, "one prompt of each document"


def test_a_bound_on_agreement_that_no_answers_meet_is_refused() -> None:
    """Equal answers to 32 prompts show 92 % at 95 % confidence, and 88 % at 98.3 %."""
    gates = Gates(min_agreement=0.9)
    check_agreement_can_be_met(gates, 0.95, 32, (), "that choose")
    with pytest.raises(JobError, match=r"32 prompts that confirm.*a lower bound of 0\.876"):
        check_agreement_can_be_met(gates, 1 - 0.05 / 3, 32, (), "that confirm")
    with pytest.raises(JobError, match=r"(?s)4 clusters of prompts that choose.*no lower bound.*groups"):
        check_agreement_can_be_met(gates, 0.95, 64, tuple(range(4)) * 16, "that choose")
    check_agreement_can_be_met(Gates(), 0.95, 0, (), "that choose")
