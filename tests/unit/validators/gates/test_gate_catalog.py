"""The catalogue of gates: promotion demands every gate that the job sets, and a gate that was not judged cannot pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from test_gates import coverage, latency, variant

from validators.gates import catalog
from validators.gates.approval import Approval, NotApproved
from validators.gates.catalog import GATES, AnswerFigures, Measured, judge_gates, required_gates
from validators.gates.champion import champion_gates
from validators.job.job import Job
from validators.records.latencies import Tail
from validators.records.measurements import Agreement, Answers, Draws, Estimate, Sanity, SliceDrop
from validators.records.run import Champion, Trial

INT8, FP16 = "int8-static-minmax-pc@ort-cuda", "fp16@ort-cuda"
NO_DROP = Estimate(0.0, -0.01, 0.01)
EVERY_GATE = {
    "max_drop": 0.02,
    "max_slice_drop": 0.05,
    "min_metric": 0.8,
    "max_metric": 0.95,
    "min_sqnr_db": 10.0,
    "min_agreement": 0.9,
    "min_speedup": 1.1,
    "min_speedup_fp16": 1.0,
    "min_coverage": 0.5,
    "min_time_coverage": 0.5,
    "max_size_ratio": 1.0,
    "max_memory_ratio": 1.5,
    "max_load_ratio": 1.5,
    "max_energy_ratio": 1.0,
    "max_cost_per_million": 1.0,
    "max_compile_seconds": 60.0,
    "max_p95_ratio": 1.2,
    "max_p99_ratio": 1.2,
    "max_p95_ms": 5.0,
    "max_p99_ms": 5.0,
    "max_draw_spread": 0.01,
}


def job_of(**changes: Any) -> Job:
    """A job that sets every gate, on a GPU, with slices and a float16 candidate, and keeps samples to confirm."""
    given: dict[str, Any] = {
        "source": "models:/m/1",
        "target": "ort-cuda",
        "data": {"calibration": "c.npz", "evaluation": "e.npz", "slices": ["country"]},
        "candidates": [INT8, FP16],
        "gates": EVERY_GATE,
        "measurement": {"price_per_hour": 1.0},
        "calibration": {"draws": 5},
    }
    return Job.model_validate(given | changes)


def measured(job: Job) -> Measured:
    """Measurements that pass every gate of `job_of`."""
    answers = Answers("y", "float32", (8, 4))
    tail = Tail(662, 700, 700, ms=Estimate(2.0, 1.9, 2.1), ratio=Estimate(0.8, 0.7, 0.9))
    timed = replace(
        latency(Estimate(1.5, 1.4, 1.6)),
        ratios={
            "load_ms": Estimate(1.0, 0.9, 1.1),
            "peak_memory_mb": Estimate(1.0, 0.9, 1.1),
            "energy_j": Estimate(0.6, 0.5, 0.7),
        },
        energy_mj=5.0,
        baseline_energy_mj=9.0,
        request_ms=Estimate(2.0, 1.9, 2.1),
        p95=tail,
        p99=tail,
    )
    return Measured(
        job=job,
        candidate=INT8,
        variant=replace(variant(50), candidate=INT8),
        answers=AnswerFigures(
            rows=900,
            units=900,
            samples=900,
            noise_units=900,
            counted="evaluation samples",
            baseline_value=0.9,
            value=0.9,
            drop=NO_DROP,
            drop_method="m",
            flips=None,
            sqnr=Estimate(30.0, 29.0, 31.0),
            sqnr_method="m",
            slices=(SliceDrop("country", "ch", 900, NO_DROP, "m"),),
            newly_bad=0,
            bounds=Estimate(0.9, 0.88, 0.92),
            bounds_method="m",
        ),
        coverage=replace(coverage(90, 10), us_by_kernel={"QGemm": 90.0, "Gemm": 10.0}),
        baseline_bytes=100,
        latency=timed,
        beside_fp16=timed,
        sanity=Sanity(8, 3, (answers,), (answers,)),
        agreement=Agreement(64, (1.0,) * 99 + (0.5,)),
        draws=Draws(0.0, (0.0,) * 5, Estimate(0.001, 0.0, 0.003), 0.001, 0.98, 128),
    )


def trial_of(found: Measured) -> Trial:
    """The trial as judged by every gate, on the samples that choose and on those that confirm."""
    verdicts = judge_gates(found, "b1") + judge_gates(found, "confirmation", confirming=True)
    return Trial(INT8, "passed", variant=found.variant, verdicts=verdicts)


def test_all_required_gates_are_judged_and_approved() -> None:
    job = job_of()
    trial = trial_of(measured(job))
    assert {verdict.outcome for verdict in trial.verdicts} == {"pass"}
    assert required_gates(job, INT8) == {verdict.gate for verdict in trial.verdicts}
    assert Approval(trial, "a device", required_gates(job, INT8)).trial is trial


@pytest.mark.parametrize("name", [gate.name for gate in GATES if gate.name != "real_kernels"])
def test_gate_without_its_judge_stops_promotion(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that is gone, or gives nothing, leaves a verdict missing that promotion demands."""
    job = job_of()
    rows = tuple(replace(gate, judge=lambda _: None) if gate.name == name else gate for gate in GATES)
    monkeypatch.setattr(catalog, "GATES", rows)
    trial = trial_of(measured(job))
    with pytest.raises(NotApproved, match=rf"not judged: .*'{name}'"):
        Approval(trial, "a device", required_gates(job, INT8))


@pytest.mark.parametrize("left_out", ["latency", "sanity", "agreement"])
def test_measurement_left_out_stops_promotion(left_out: str) -> None:
    job = job_of()
    trial = trial_of(replace(measured(job), **{left_out: None}))
    with pytest.raises(NotApproved, match="not judged"):
        Approval(trial, "a device", required_gates(job, INT8))


def test_missing_float16_comparison_is_inconclusive() -> None:
    job = job_of()
    (verdict,) = [
        one for one in judge_gates(replace(measured(job), beside_fp16=None), "b1") if one.gate == "speedup_fp16"
    ]
    assert verdict.outcome == "inconclusive" and "could not be measured" in verdict.reason


def test_untimed_attempt_is_judged_without_its_speed() -> None:
    """Recovery judges its attempts before it times the one that passes."""
    untimed = replace(measured(job_of()), latency=None, beside_fp16=None)
    verdicts = judge_gates(untimed, "b1")
    assert {verdict.outcome for verdict in verdicts} == {"pass"}
    assert not {"speedup", "speedup_fp16"} & {verdict.gate for verdict in verdicts}


@pytest.mark.parametrize(
    ("changes", "not_required"),
    [
        ({"gates": EVERY_GATE | {"max_memory_ratio": None}}, "memory_ratio"),
        ({"gates": EVERY_GATE | {"min_speedup": {"ort-cpu": 2.0}}}, "speedup"),
        ({"candidates": [INT8]}, "speedup_fp16"),
        ({"data": {"calibration": "c.npz", "evaluation": "e.npz"}}, "worst_slice"),
        ({"metric": "sqnr", "calibration": {}, "gates": EVERY_GATE | {"max_draw_spread": None}}, "drop"),
        ({"confirmation": {"share": 0}}, "confirmed_drop"),
    ],
)
def test_gate_that_the_job_does_not_set_is_not_required(changes: dict[str, Any], not_required: str) -> None:
    assert not_required in required_gates(job_of(), INT8)
    assert not_required not in required_gates(job_of(**changes), INT8)


def test_float_candidates_need_no_coverage() -> None:
    assert "coverage" not in required_gates(job_of(), "fp32-fused@ort-cuda")
    assert {"speedup_fp16", "confirmed_speedup_fp16"} & required_gates(job_of(), FP16) == set()


def test_logged_metrics_are_required() -> None:
    gates = EVERY_GATE | {"logged": [{"metric": "bleu", "at_least": 0.3}]}
    job = job_of(gates=gates, step="mine:look")
    with pytest.raises(NotApproved, match=r"logged\.bleu"):
        Approval(trial_of(measured(job)), "a device", required_gates(job, INT8))


def test_champion_of_another_variant_must_be_compared() -> None:
    """Of another identity, whatever the digest of its file."""
    champion = Champion("m-quantized", "3", "champion-ort-cuda", "digest", "s", INT8, previous="2", identity="other")
    assert champion_gates("digest", champion) == {"beats_champion", "champion_device"}
    assert champion_gates("other", champion) == champion_gates("digest", None) == frozenset()
    job = job_of()
    required = required_gates(job, INT8) | champion_gates("d", champion)
    with pytest.raises(NotApproved, match="beats_champion"):
        Approval(trial_of(measured(job)), "a device", required)


def test_evidence_is_named_with_its_place() -> None:
    verdicts = {verdict.gate: verdict.evidence for verdict in trial_of(measured(job_of())).verdicts}
    assert verdicts["speedup"] == "latency/b1/samples.npz" and verdicts["drop"] == "accuracy/scores.npy"
    assert verdicts["confirmed_speedup"] == "latency/confirmation/samples.npz"
    assert verdicts["coverage"] == "coverage/kernels.json" and verdicts["size_ratio"] == ""


def test_names_are_unique_and_every_gate_has_words() -> None:
    names = [gate.name for gate in (*GATES, *catalog.LATER_GATES)]
    assert len(set(names)) == len(names) and all(gate.about.endswith(".") for gate in GATES)


def test_each_row_states_how_its_verdict_accounts_for_chance() -> None:
    """An interval over clusters or launches comes with a confirmation, which corrects for choosing; exact figures have none."""
    clusters = tuple(range(50)) * 2
    found = measured(job_of())
    assert found.answers is not None
    slices = (SliceDrop("country", "ch", 900, NO_DROP, "m", clusters=300),)
    answers = replace(found.answers, units=300, noise_units=300, counted="clusters", slices=slices)
    found = replace(found, answers=answers, agreement=Agreement(64, (1.0,) * 99 + (0.5,), clusters))
    verdicts = {verdict.gate: verdict for verdict in judge_gates(found, "b1")}
    stricter = found.job.model_copy(update={"gates": found.job.gates.model_copy(update={"confidence": 0.99})})
    confirmed = judge_gates(replace(found, job=stricter), "confirmation", confirming=True)
    again = {verdict.gate: verdict for verdict in confirmed}
    for gate in GATES:
        if gate.name == "real_kernels":
            continue
        verdict = verdicts[gate.name]
        if gate.units in ("exact", "once"):
            assert (verdict.low, verdict.confidence) == (None, None), gate.name
            continue
        words = {"clusters": ("cluster",), "launches": ("launches", "pairs of blocks"), "draws": ("draws",)}[gate.units]
        assert any(word in verdict.counted for word in words), gate.name
        if gate.units == "draws":  # judged once, after the choice, at a confidence that corrects for it
            assert found.draws and verdict.confidence == found.draws.confidence
            continue
        assert verdict.low is not None and again[f"confirmed_{gate.name}"].confidence is not None, gate.name
        assert (again[f"confirmed_{gate.name}"].confidence or 0) > (verdict.confidence or 1), gate.name


@pytest.mark.parametrize(
    ("candidate", "dtype", "outcome"),
    [
        # float32 on a GPU computes in TF32, whose sums differ by 1.5 % of the peak at most: here by 1 %.
        ("fp32-fused@ort-cuda", "float32", "pass"),
        ("fp16@tensorrt", "float16", "pass"),
        ("int8-static-minmax-pc@tensorrt", "float32", "pass"),
        ("fp32-fused@ort-cpu", "float32", "fail"),
        ("int8-dynamic-pc@ort-cpu", "float32", "fail"),
        ("fp16@tensorrt", "int64", "fail"),
    ],
)
def test_on_a_gpu_sums_may_differ_from_run_to_run_by_rounding(candidate: str, dtype: str, outcome: str) -> None:
    """Also beside a baseline whose bits are equal each time, which says nothing of other kernels."""
    steady = Answers("y", dtype, (2, 3), peak=10.0)
    for spread, expected in ((0.1, outcome), (3.0, "fail"), (float("inf"), "fail")):
        sanity = Sanity(2, 3, (steady,), (replace(steady, spread=spread),))
        (gate,) = [gate for gate in GATES if gate.name == "deterministic"]
        verdict = gate.judge(replace(measured(job_of()), candidate=candidate, sanity=sanity))
        assert verdict is not None and verdict.outcome == expected, (spread, verdict.reason)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"metric": "map", "output": "boxes"}, "pass"),
        ({"metric": "map"}, "pass"),
        ({"metric": "map50", "output": ["other", "boxes", "more"]}, "pass"),
        ({"metric": "map", "output": "other"}, "fail"),
        ({"metric": "mse", "output": "boxes"}, "fail"),
    ],
)
def test_sizes_of_the_boxes_that_the_metric_counts_are_its_own(changes: dict[str, object], outcome: str) -> None:
    sanity = Sanity(8, 3, *((Answers("boxes", "float32", (size, 7)),) for size in (8, 9)))
    (gate,) = [gate for gate in GATES if gate.name == "same_outputs"]
    verdict = gate.judge(replace(measured(job_of(**changes)), sanity=sanity))
    assert verdict is not None and verdict.outcome == outcome
