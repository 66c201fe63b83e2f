"""The conclusion: each end that a run can come to, and a document that its published schema accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tasks.records.result_document import Findings, conclude, conclude_error
from tasks.run.clock import Clock
from validators.errors import JobError
from validators.gates.verdict_rules import overall
from validators.job.job import Job
from validators.job.job_measurement import Measurement
from validators.job.read_job import parse_job
from validators.records.latencies import Latency
from validators.records.measurements import Accuracy, Coverage, Estimate, KernelTime
from validators.records.result import Result
from validators.records.run import (
    CalibrationVerdict,
    Champion,
    Check,
    Inventory,
    Refusal,
    SessionSettings,
    Source,
    Trial,
    Variant,
)
from validators.records.verdicts import FrontierPoint, RankedPart, Recovery, SignOff, Verdict

TESTS = Path(__file__).parents[3] / "support"
SCHEMA = json.loads((Path(__file__).parents[4] / "docs" / "result.schema.json").read_text(encoding="utf-8"))
CPU = "CPUExecutionProvider"
FAST, SMALL, BAD, GONE = (
    "int8-dynamic-pc@ort-cpu",
    "int4-g32-rtn@ort-cpu",
    "int8-static-minmax-pt@ort-cpu",
    "fp8-amax-pc@tensorrt",
)


def make_job(source: str = "models:/tiny/3") -> Job:
    data = {"calibration": "c.npz", "evaluation": "e.npz"}
    return parse_job({"source": source, "data": data}, base=Path("/jobs"))


def accuracy(value: float) -> Accuracy:
    return Accuracy("accuracy", value, 2000, Path("scores.npy"), Path("finite.npy"))


def latency(speedup: float, baseline_p50_ms: float) -> Latency:
    return Latency(
        batch_size=1,
        p50_ms=baseline_p50_ms / speedup,
        p95_ms=None,
        p99_ms=None,
        count=160,
        baseline_p50_ms=baseline_p50_ms,
        baseline_p95_ms=baseline_p50_ms * 2,
        baseline_p99_ms=None,
        speedup=Estimate(speedup, speedup - 0.1, speedup + 0.1),
        pairs=8,
        load_ms=5.0,
        peak_memory_mb=80.0,
        baseline_load_ms=9.0,
        baseline_peak_memory_mb=120.0,
        samples_path=Path("samples.npz"),
    )


def verdict(gate: str, outcome: Any) -> Verdict:
    reason = "" if outcome == "pass" else f"{gate} is off"
    return Verdict(gate, outcome, 0.5, 1.0, "at_least", 0.4, 0.6, 0.95, 8, "method", reason)


def trial(name: str, baseline_p50_ms: float, *verdicts: Verdict) -> Trial:
    """A trial that was made, measured and judged."""
    return Trial(
        name,
        outcome=overall(verdicts),
        variant=Variant(name, Path("model.onnx"), "1" * 64, 260, SessionSettings(CPU, 2)),
        accuracy=accuracy(0.765),
        drop=Estimate(0.005, -0.002, 0.012),
        coverage=Coverage(
            {"QGemm": 3, "Gemm": 1},
            ("QGemm",),
            ("head",),
            (CPU,),
            us_by_kernel={"QGemm": 5.0, "Gemm": 15.0},
            unfused=(KernelTime("q", "QuantizeLinear", CPU, 1.0), KernelTime("d", "DequantizeLinear", CPU, 1.0)),
            inserted=(KernelTime("c", "Cast", CPU, 2.0),),
        ),
        latencies=(latency(1.5, baseline_p50_ms),),
        verdicts=verdicts,
    )


GOOD = trial(FAST, 2.0, verdict("drop", "pass"), verdict("speedup", "pass"))
UNSURE = trial(SMALL, 3.0, verdict("drop", "inconclusive"), verdict("speedup", "pass"))
FAILED = trial(BAD, 1.0, verdict("drop", "fail"), verdict("speedup", "fail"))
REFUSED = Trial(GONE, outcome="refused", refusal=Refusal("unsupported", "no such target here"))
COPY = Trial(GONE, outcome="refused", refusal=Refusal("copy", f"the same artifact as {BAD}, which is judged for both"))

FINDINGS = Findings(
    source=Source("models:/tiny/3", "tiny", "3", "a" * 64, Path("model.onnx"), "onnx", "run"),
    inventory=Inventory(
        target="ort-cpu",
        cpu="Some CPU",
        isa=("avx2",),
        cores=2,
        memory_bytes=8_000_000_000,
        platform="Linux 6 x86_64",
        python="3.11.7",
        runtimes={"onnxruntime": "1.31.1"},
        providers=(CPU,),
        load_average=0.5,
    ),
    calibration=CalibrationVerdict("accepted", (), {}, Path("page.html")),
    baseline=accuracy(0.77),
    baseline_bytes=1000,
    trials=(GOOD, UNSURE, FAILED, REFUSED),
)
KEPT = "int8-static-minmax-pt-40db@ort-cpu"
RANKED = (
    RankedPart("first", ("first",), None, 780.5, 1.5, kept=True, cost_us=12.5, form="float"),
    RankedPart("Add (MatMul to Relu)", ("one", "two"), 0.01, None, None),
)
POINTS = (FrontierPoint(40, 0.0001, 2048.0, KEPT, "passed"),)
LOST = Recovery(BAD, tuple(replace(part, kept=False, cost_us=None, form="") for part in RANKED), attempts=2, allowed=2)
SLOW = trial(KEPT, 1.0, verdict("drop", "pass"), verdict("speedup", "fail"))
OLD = Champion("tiny-quantized", "4", "champion-ort-cpu", "b" * 64, "a" * 64, BAD, previous="2")
NEW = Champion("tiny-quantized", "5", "champion-ort-cpu", "1" * 64, "a" * 64, FAST, previous="4")
CHECKS = (
    Check("size", "warning", "63 samples", "at least 64", "add some", False),
    Check("drift", "critical", "PSI 3.1", "at most 0.5", "take newer samples", False),
    Check("names", "critical", "all there", "all there", "", True),
)


def document(result: Result) -> dict[str, Any]:
    """What `--result` writes, checked against the schema in docs/."""
    written: dict[str, Any] = json.loads(result.model_dump_json())
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(written)
    return written


YES = SignOff("approved", "Ada", "as agreed", "2026-11-22T10:00:00Z", "digest", "4")

ENDS: dict[str, tuple[str, Findings, str, str | None, list[str]]] = {
    "promoted": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD, champion=NEW),
        "promoted",
        FAST,
        ["version 5", "1.50x"],
    ),
    "promoted over another": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD, champion=NEW, champion_before=OLD),
        "promoted",
        FAST,
        ["is now the champion, version 5"],
    ),
    "the champion again": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD, champion=NEW, champion_before=NEW),
        "promoted",
        FAST,
        ["stays the champion, version 5"],
    ),
    "promoted by an approval": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD, champion=NEW, champion_before=OLD, sign_off=YES),
        "promoted",
        FAST,
        ["is now the champion, version 5; approved by Ada on 2026-11-22T10:00:00Z: as agreed"],
    ),
    "rejected": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD, champion_before=OLD, sign_off=replace(YES, decision="rejected", comment="")),
        "rejected",
        FAST,
        ["1.50x", "; rejected by Ada on 2026-11-22T10:00:00Z"],
    ),
    "winner from a file": (
        "model.onnx",
        replace(FINDINGS, best=GOOD),
        "winner",
        FAST,
        ["variants of a file are not promoted"],
    ),
    "winner that nobody wants promoted": (
        "models:/tiny/3",
        replace(FINDINGS, best=GOOD),
        "winner",
        FAST,
        ["promotion was not requested"],
    ),
    "the champion stays": (
        "models:/tiny/3",
        replace(
            FINDINGS,
            best=trial(FAST, 2.0, verdict("drop", "pass"), verdict("beats_champion", "inconclusive")),
            champion_before=OLD,
            champion=OLD,
        ),
        "no_variant",
        None,
        [FAST, "present champion stays", "version 4", BAD, "beats_champion is off"],
    ),
    "no variant": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(UNSURE, FAILED, REFUSED)),
        "no_variant",
        None,
        [
            "of 3 candidates 1 failed, 1 inconclusive, 1 refused",
            "drop (2 candidates), speedup (1 candidate)",
            "refusals: unsupported",
        ],
    ),
    "copies count once": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(replace(FAILED, copies=(GONE,)), COPY)),
        "no_variant",
        None,
        ["of 1 candidate 1 failed; 1 further candidate made the same artifact as another; gates not passed: "],
    ),
    "stopped in the race": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(FAILED, replace(REFUSED, refusal=Refusal("stopped", "0.70x, below 1.10x")))),
        "no_variant",
        None,
        ["of 2 candidates 1 failed, 1 stopped; ", f"; first of the stopped: {GONE}: 0.70x, below 1.10x"],
    ),
    "all refused": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(REFUSED,)),
        "no_variant",
        None,
        ["of 1 candidate 1 refused; refusals: unsupported"],
    ),
    "nothing was recovered": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(FAILED,), recovery=LOST),
        "no_variant",
        None,
        ["of 1 candidate 1 failed", f"; recovery of {BAD} did not pass within 2 of at most 2 attempts"],
    ),
    "what was recovered is too slow": (
        "models:/tiny/3",
        replace(FINDINGS, trials=(FAILED, SLOW), recovery=Recovery(BAD, RANKED, 1, 12, KEPT)),
        "no_variant",
        None,
        [f"; {BAD} with 1 parts in other forms ({KEPT}) passes in accuracy and does not pass speedup"],
    ),
    "what was recovered cannot be timed": (
        "models:/tiny/3",
        replace(
            FINDINGS,
            trials=(FAILED, replace(SLOW, outcome="refused", verdicts=(), latencies=())),
            recovery=Recovery(BAD, RANKED, 1, 12, KEPT),
        ),
        "no_variant",
        None,
        [f"({KEPT}) passes in accuracy and could not be measured"],
    ),
    "calibration refused": (
        "models:/tiny/3",
        replace(
            FINDINGS, calibration=CalibrationVerdict("refused", CHECKS, {}, Path("p.html")), baseline=None, trials=()
        ),
        "refused",
        None,
        ["drift: found PSI 3.1, expected at most 0.5; take newer samples"],
    ),
}


def test_stopped_candidates_are_counted_apart_from_refused_ones() -> None:
    stopped = Trial(SMALL, outcome="refused", refusal=Refusal("stopped", "1.50x, and the leader has 3.00x"))
    result = conclude(make_job(), replace(FINDINGS, trials=(FAILED, stopped, REFUSED)), Clock())
    assert result.reason.startswith("no variant wins: of 3 candidates 1 failed, 1 refused, 1 stopped")
    assert result.reason.endswith("refusals: unsupported")


@pytest.mark.parametrize("end", ENDS)
def test_each_end_has_its_outcome_reason_and_a_valid_document(end: str) -> None:
    """The outcome, what was chosen, and a reason in one sentence that holds the facts."""
    source, findings, outcome, chosen, words = ENDS[end]
    result = conclude(make_job(source), findings, Clock())
    assert (result.outcome, result.chosen) == (outcome, chosen)
    assert all(word in result.reason for word in words), result.reason
    written = document(result)
    assert written["schema_version"] == "1" and written["outcome"] == outcome
    assert [candidate["name"] for candidate in written["candidates"]] == [t.candidate for t in findings.trials]


def test_the_reason_of_a_refusal_names_critical_checks_only() -> None:
    """Warnings are in the document, with the critical ones first; checks that passed are not."""
    findings = ENDS["calibration refused"][1]
    result = conclude(make_job(), findings, Clock())
    assert "63 samples" not in result.reason and "all there" not in result.reason
    written = document(result)
    assert written["calibration"]["outcome"] == "refused"
    assert [check["name"] for check in written["calibration"]["failed_checks"]] == ["drift", "size"]
    assert written["baseline"] is None and written["candidates"] == []


def test_document_has_costs_if_the_job_has_a_price() -> None:
    """At 3.6 an hour a millisecond costs 1 per million requests."""
    timed = replace(GOOD.latencies[0], request_ms=Estimate(2.0, 1.5, 2.5), baseline_request_ms=Estimate(3.0))
    found = replace(FINDINGS, trials=(replace(GOOD, latencies=(timed,)), UNSURE, REFUSED))
    job = make_job()
    assert [one["cost"] for one in document(conclude(job, found, Clock()))["candidates"]] == [None] * 3
    priced = job.model_copy(update={"measurement": Measurement(price_per_hour=3.6)})
    cost, old, refused = (one["cost"] for one in document(conclude(priced, found, Clock()))["candidates"])
    assert cost["per_million"] == {"value": pytest.approx(2.0), "low": pytest.approx(1.5), "high": pytest.approx(2.5)}
    assert cost["baseline_per_million"]["value"] == pytest.approx(3.0) and old is None and refused is None


def test_the_document_holds_what_was_measured() -> None:
    """Each candidate with its numbers, or with nulls and its refusal; the champion's name, version and predecessor."""
    written = document(conclude(make_job(), replace(FINDINGS, best=GOOD, champion=NEW), Clock()))
    made, unsure, failed, refused = written["candidates"]
    assert (made["outcome"], unsure["outcome"], failed["outcome"]) == ("passed", "inconclusive", "failed")
    assert (made["metric_value"], made["metric_drop"]) == (0.765, {"value": 0.005, "low": -0.002, "high": 0.012})
    assert made["speedup_p50"] == {"value": 1.5, "low": 1.4, "high": 1.6}
    assert (made["latency_p50_ms"], made["size_bytes"], made["coverage_macs"]) == (pytest.approx(2 / 1.5), 260, 0.75)
    assert (made["coverage_time"], made["unfused"], made["inserted"]) == (0.25, ["q", "d"], {"Cast": 1})
    assert (refused["coverage_time"], refused["unfused"], refused["inserted"]) == (None, None, None)
    assert made["cached"] is False
    assert [(v["gate"], v["outcome"]) for v in failed["verdicts"]] == [("drop", "fail"), ("speedup", "fail")]
    assert refused["refusal"] == {"kind": "unsupported", "reason": "no such target here"}
    assert all(refused[key] is None for key in ("metric_value", "metric_drop", "speedup_p50", "size_bytes"))
    assert written["champion"] == {
        "name": "tiny-quantized",
        "version": "5",
        "alias": "champion-ort-cpu",
        "previous": "4",
    }
    assert written["source"] == {"uri": "models:/tiny/3", "name": "tiny", "version": "3", "digest": "a" * 64}
    assert written["inventory"]["runtimes"] == {"onnxruntime": "1.31.1"}
    assert written["report"] is None and written["target"] == "ort-cpu"


BUSY = replace(verdict("speedup", "inconclusive"), disturbed=True)


@pytest.mark.parametrize(
    ("verdicts", "outcome"),
    [
        ((verdict("drop", "pass"), BUSY), "error"),
        ((verdict("drop", "pass"), BUSY, replace(BUSY, gate="confirmed_speedup")), "error"),
        ((verdict("drop", "fail"), BUSY), "no_variant"),
        ((verdict("drop", "inconclusive"), BUSY), "no_variant"),
        ((verdict("drop", "pass"), verdict("speedup", "inconclusive")), "no_variant"),
    ],
)
def test_what_could_not_be_timed_is_no_verdict(verdicts: tuple[Verdict, ...], outcome: str) -> None:
    """A busy machine alone makes it an error, with the time that a repeat takes; whatever else fails stays a verdict."""
    job = make_job()
    findings = replace(FINDINGS, trials=(FAILED, REFUSED, trial(FAST, 2.0, *verdicts)))
    found = conclude(job, findings, Clock())
    assert found.outcome == outcome
    if outcome == "error":
        assert found.error is not None
        told = f"speed not judged: the machine was too busy to time 1 candidate: {FAST}: speedup is off"
        assert found.error.found == told
        assert found.reason.startswith(f"{told}; of 3 candidates 1 failed, 1 inconclusive, 1 refused;")
        assert found.error.fix == (
            "run the same command again once the machine is quiet: only timing is repeated, about 10 s; while it is busy, "
            "a run waits for up to 300 s more (measurement.patience_seconds)"
        )
    won = conclude(job, replace(findings, best=GOOD, champion=NEW), Clock())
    assert won.outcome == "promoted"


def test_a_champion_that_could_not_be_timed_beside_is_no_verdict() -> None:
    best = trial(FAST, 2.0, verdict("drop", "pass"), replace(BUSY, gate="beats_champion"))
    findings = replace(FINDINGS, trials=(GOOD,), best=best, champion_before=OLD)
    assert conclude(make_job(), findings, Clock()).outcome == "error"


@pytest.mark.parametrize(
    ("findings", "outcome"),
    [
        (FINDINGS, "error"),
        (replace(FINDINGS, best=trial(FAST, 2.0, verdict("beats_champion", "fail")), champion_before=OLD), "error"),
        (replace(FINDINGS, best=GOOD, champion=NEW), "promoted"),
        (replace(FINDINGS, best=GOOD), "winner"),
    ],
)
def test_what_could_not_be_tried_is_no_verdict(findings: Findings, outcome: str) -> None:
    """Without a winner it is an error: to be run again; a winner stays one, and it is said beside it."""
    untried = Trial(KEPT, outcome="refused", refusal=Refusal("infrastructure", "a dead disk"))
    found = conclude(make_job(), replace(findings, trials=(*findings.trials, untried)), Clock())
    told = f"1 of 5 candidates could not be tried (infrastructure): {KEPT}: a dead disk"
    assert found.outcome == outcome
    assert found.reason.startswith(told) if outcome == "error" else found.reason.endswith(told)
    assert "no variant wins" not in found.reason, "one outcome alone"
    assert (found.error.found if found.error else None) == (told if outcome == "error" else None)
    assert conclude(make_job(), findings, Clock()).outcome == ("no_variant" if outcome == "error" else outcome)


def test_a_recovery_is_in_the_document_as_it_was_found() -> None:
    """Whole, with nulls where there is no number; null where there was none."""
    found = replace(
        FINDINGS, best=GOOD, recovery=Recovery(BAD, RANKED, 3, 12, KEPT, frontier=POINTS, cost_unit="bytes")
    )
    assert document(conclude(make_job(), found, Clock()))["recovery"] == {
        "candidate": BAD,
        "parts": [
            {
                "name": "first",
                "nodes": ["first"],
                "noise": None,
                "weight_outlier_ratio": 780.5,
                "activation_outlier_ratio": 1.5,
                "kept": True,
                "cost_us": 12.5,
                "form": "float",
            },
            {
                "name": "Add (MatMul to Relu)",
                "nodes": ["one", "two"],
                "noise": 0.01,
                "weight_outlier_ratio": None,
                "activation_outlier_ratio": None,
                "kept": False,
                "cost_us": None,
                "form": "",
            },
        ],
        "attempts": 3,
        "allowed": 12,
        "recovered": KEPT,
        "other_us": None,
        "frontier": [{"level_db": 40, "noise": 0.0001, "cost": 2048.0, "candidate": KEPT, "outcome": "passed"}],
        "cost_unit": "bytes",
        "passes": False,
    }
    assert document(conclude(make_job(), FINDINGS, Clock()))["recovery"] is None


def test_baseline_latency_is_the_median_beside_the_candidates() -> None:
    """Of 1, 2 and 3 ms it is 2; the refused candidate has none."""
    written = document(conclude(make_job(), replace(FINDINGS, best=GOOD), Clock()))
    assert written["baseline"] == {
        "engine": "ort-cpu",
        "metric": "accuracy",
        "value": 0.77,
        "latency_p50_ms": 2.0,
        "latency_p95_ms": 4.0,
        "size_bytes": 1000,
        "decoder": None,
        "warning": None,
        "copies": 0,
    }
    unmeasured = document(conclude(make_job(), replace(FINDINGS, trials=(REFUSED,)), Clock()))
    assert unmeasured["baseline"]["latency_p50_ms"] is None


def test_copies_among_the_samples_are_told() -> None:
    written = document(conclude(make_job(), replace(FINDINGS, best=GOOD, copies=1200), Clock()))
    assert written["baseline"]["copies"] == 1200
    assert written["baseline"]["warning"].startswith("1200 of the evaluation samples repeat others")


def test_the_chosen_candidate_is_shown_with_its_last_verdicts() -> None:
    """What was found beside the champion came after judging, and is in the document."""
    findings = ENDS["the champion stays"][1]
    written = document(conclude(make_job(), findings, Clock()))
    shown = next(candidate for candidate in written["candidates"] if candidate["name"] == FAST)
    assert shown["outcome"] == "inconclusive"
    assert [v["gate"] for v in shown["verdicts"]] == ["drop", "beats_champion"]
    assert written["champion"]["version"] == "4"


def test_a_refusal_beside_passing_candidates_is_counted_once() -> None:
    """Several refusals of one kind name that kind once, and several kinds each."""
    gone = replace(REFUSED, candidate="fp16@tensorrt")
    broken = Trial(SMALL, outcome="refused", refusal=Refusal("invalid", "broken"))
    result = conclude(make_job(), replace(FINDINGS, trials=(REFUSED, gone, broken)), Clock())
    assert "3 refused" in result.reason and result.reason.endswith("refusals: invalid, unsupported")


@pytest.mark.parametrize("job", [None, make_job()])
def test_an_error_is_a_document_too(job: Job | None) -> None:
    """With what was found, what was expected, and what to do; without a job nothing is known of a target."""
    error = JobError(found="key `speed`", expected="known keys", fix="take it out")
    written = document(conclude_error(job, error, Clock()))
    assert written["outcome"] == "error" and written["reason"] == "key `speed`"
    assert written["error"] == {
        "kind": "JobError",
        "found": "key `speed`",
        "expected": "known keys",
        "fix": "take it out",
    }
    assert written["target"] == (job.target if job else None)
    assert written["candidates"] == [] and written["champion"] is None


def test_the_schema_is_not_one_that_accepts_anything() -> None:
    """A key too many, a wrong outcome and a missing one are refused by it."""
    whole = document(conclude(make_job(), FINDINGS, Clock()))
    broken = Draft202012Validator(SCHEMA)
    assert broken.is_valid(whole)
    for change in ({"more": 1}, {"outcome": "fine"}, {"seconds": None}, {"candidates": [{"name": FAST}]}):
        assert not broken.is_valid(whole | change)
    assert not broken.is_valid({key: value for key, value in whole.items() if key != "outcome"})


def test_numbers_that_are_not_finite_are_absent_in_the_document() -> None:
    """JSON has no NaN: a variant that computes it has no value, no drop, and the verdicts that say so."""
    nan = float("nan")
    broken = replace(
        FAILED,
        accuracy=accuracy(nan),
        drop=Estimate(nan, nan, nan),
        verdicts=(Verdict("drop", "fail", nan, 0.02, "at_most", nan, nan, 0.95, 2000, "none", "NaN"),),
    )
    written = document(conclude(make_job(), replace(FINDINGS, trials=(broken,)), Clock()))
    shown = written["candidates"][0]
    assert (shown["outcome"], shown["metric_value"], shown["metric_drop"]) == ("failed", None, None)
    assert (shown["verdicts"][0]["value"], shown["verdicts"][0]["low"]) == (None, None)


def test_a_result_of_an_earlier_version_is_read() -> None:
    """Every key that it has is one of today's with the same value: comparisons and other programs read such documents."""
    written = json.loads((TESTS / "result_0.1.0.json").read_text(encoding="utf-8"))
    read = Result.model_validate(written).model_dump(mode="json")

    def lost(before: Any, after: Any, path: str) -> Iterator[str]:
        if isinstance(before, dict):
            for key, value in before.items():
                yield from lost(value, after.get(key, "absent"), f"{path}.{key}")
        elif isinstance(before, list):
            for at, (one, other) in enumerate(zip(before, after, strict=True)):
                yield from lost(one, other, f"{path}[{at}]")
        elif before != after:
            yield f"{path}: {before} is {after}"

    assert len(written["candidates"]) == 2 and written["candidates"][0]["latencies"]
    assert list(lost(written, read, "result")) == []
