"""A finished run with every kind of candidate, for the tests of reports; and a reader that finds what a page leaves open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

from validators.job.job import Job
from validators.job.job_data import Data
from validators.records import run as records
from validators.records.generation import DecoderBytes
from validators.records.latencies import Latency
from validators.records.measurements import Estimate, MultipliedNode
from validators.records.result import (
    BaselineResult,
    CalibrationResult,
    CandidateResult,
    ErrorResult,
    Result,
    SecondsResult,
    SliceResult,
)
from validators.records.run import (
    CalibrationVerdict,
    ChampionResult,
    Check,
    SessionSettings,
    SourceResult,
    Trial,
    Variant,
)
from validators.records.verdicts import FrontierPoint, RankedPart, Recovery, Verdict

EVIL = "<script>alert(1)</script>"
VOID = {"meta", "br", "hr", "img", "link", "input"}
# Drop in points with bounds; speedup with bounds; MB; peak memory in MB; coverage in percent; None was not measured.
MEASURED: dict[str, tuple[Any, ...] | None] = {
    "fp32-fused": ((0.0, 0.0, 0.3), (1.02, 1.00, 1.04), 90.2, 248, 0.0),
    "int8-static-minmax-pt-all-s8s8": ((14.8, 13.1, 16.5), (0.26, 0.25, 0.27), 23.1, 231, 99.1),
    "int8-static-minmax-pt": ((3.4, 2.2, 4.6), (1.33, 1.30, 1.36), 23.0, 214, 98.2),
    "int8-static-minmax-pc": ((2.0, 1.1, 2.9), (1.34, 1.31, 1.37), 23.2, 214, 98.2),
    "int8-static-minmax-pc-all": ((5.1, 3.9, 6.4), (0.71, 0.70, 0.73), 23.2, 229, 99.1),
    "int8-static-percentile-pc": ((1.1, 0.4, 1.8), (1.34, 1.31, 1.36), 23.2, 215, 98.2),
    "int8-static-percentile-pc-all": ((4.2, 3.1, 5.3), (0.70, 0.68, 0.72), 23.2, 229, 99.1),
    "int8-static-entropy-pc": None,
    "int8-dynamic-pc": ((0.7, 0.1, 1.4), (1.51, 1.48, 1.54), 22.9, 209, 98.2),
    "int8-dynamic-pc+fused": ((0.9, 0.2, 1.6), (1.49, 1.45, 1.53), 22.9, 207, 98.2),
    "int4-g32-rtn": ((1.6, 0.8, 2.4), (0.84, 0.82, 0.86), 17.9, 236, 98.2),
    "int4-g128-rtn": ((3.8, 2.6, 5.0), (0.88, 0.86, 0.90), 16.6, 233, 98.2),
    "fp8-amax-pc": ((0.5, -0.1, 1.1), None, 23.4, None, 0.0),
}
NAMES = tuple(f"{stem}@ort-cpu" for stem in MEASURED)
CHOSEN = "int8-dynamic-pc@ort-cpu"


def interval(values: tuple[float, float, float], scale: float = 1.0) -> Estimate:
    return Estimate(*(value * scale for value in values))


def bounded(gate: str, estimate: Estimate, bound: float, direction: Any, method: str) -> Verdict:
    sign = 1 if direction == "at_most" else -1
    low, high = sorted((sign * (estimate.low or 0.0), sign * (estimate.high or 0.0)))
    outcome: Any = "pass" if high <= sign * bound else "inconclusive" if low <= sign * bound else "fail"
    ends = estimate.low, estimate.high, 0.95, 1821
    return Verdict(
        gate, outcome, estimate.value, bound, direction, *ends, method, "" if outcome == "pass" else "beyond"
    )


def trial(stem: str) -> Trial:
    name, values = f"{stem}@ort-cpu", MEASURED[stem]
    if values is None:
        reason = "found 12 GB of histograms; expected at most 8 GB of memory; take percentile"
        return Trial(name, "refused", refusal=records.Refusal("infrastructure", reason))
    drop, ratio, size, memory, covered = values
    verdicts = [
        bounded("drop", interval(drop, 0.01), 0.02, "at_most", "paired score interval (Tango)"),
        Verdict("finite", "pass", 0.0, 0.0, "at_most", n=1821),
        Verdict("size_ratio", "pass", size / 90.1, 1.05, "at_most"),
    ]
    latencies: tuple[Latency, ...] = ()
    if ratio:
        verdicts.append(bounded("speedup", interval(ratio), 1.05, "at_least", "paired blocks"))
        p50 = 1.95 / ratio[0]
        ours, base = (p50, p50 * 1.1, p50 * 1.3, 1200), (1.95, 2.14, 2.5)
        one = Latency(1, *ours, *base, interval(ratio), 8, 61.0, memory, 55.0, 262.0, Path("samples.npy"))
        latencies = (one, replace(one, batch_size=8, p50_ms=p50 * 6, p99_ms=None, baseline_p50_ms=11.9))
    else:
        verdicts.append(Verdict("real_kernels", "fail", 0.0, 1.0, "at_least", reason="simulated: no kernels for FP8"))
    outcomes = {verdict.outcome for verdict in verdicts}
    kernels = {"MatMulIntegerToFloat": round(10 * covered), "MatMul": round(1000 - 10 * covered)}
    return Trial(
        name,
        "failed" if "fail" in outcomes else "inconclusive" if "inconclusive" in outcomes else "passed",
        variant=Variant(
            name, Path("model.onnx"), "5f" * 32, round(size * 1e6),
            SessionSettings("CPUExecutionProvider", 2, entries={"session.intra_op.allow_spinning": "0"}),
            "simulated" if ratio is None else "measured", {"MatMul quantized": 36}, ("classifier kept in float",),
        ),
        accuracy=records.Accuracy("accuracy", 0.77 - drop[0] / 100, 1821, Path("scores.npy"), Path("finite.npy")),
        drop=interval(drop, 0.01),
        coverage=records.Coverage(
            kernels,
            ("MatMulIntegerToFloat",),
            ("/pooler/MatMul",),
            ("CPUExecutionProvider",),
            us_by_kernel={"MatMulIntegerToFloat": 600.0, "LayerNormalization": 250.0, "Softmax": 150.0},
            products=tuple(
                MultipliedNode(name, "MatMulIntegerToFloat" if covered and name != "/pooler/MatMul" else "MatMul", 100)
                for name in (*(f"/layer.{i}/MatMul" for i in range(9)), "/pooler/MatMul")
            ),
        ),
        latencies=latencies,
        verdicts=tuple(verdicts),
        cached=stem == "fp32-fused",
    )  # fmt: skip


def candidate(trial: Trial) -> CandidateResult:
    latency = trial.latency
    return CandidateResult(
        name=trial.candidate,
        outcome=trial.outcome or "refused",
        refusal=trial.refusal,
        proof=trial.variant.proof if trial.variant else "measured",
        metric_value=trial.accuracy.value if trial.accuracy else None,
        metric_drop=trial.drop,
        speedup_p50=latency.speedup if latency else None,
        latency_p50_ms=latency.p50_ms if latency else None,
        latency_p95_ms=latency.p95_ms if latency else None,
        size_bytes=trial.variant.size_bytes if trial.variant else None,
        peak_memory_mb=latency.peak_memory_mb if latency else None,
        coverage_macs=trial.coverage.share if trial.coverage else None,
        latencies=list(trial.latencies),
        slices=SLICES if trial.candidate == CHOSEN else [],
        verdicts=list(trial.verdicts),
        cached=trial.cached,
    )


def with_samples(trials: Iterable[Trial], folder: Path) -> tuple[Trial, ...]:
    """The same with raw latencies in files: of the baseline the milliseconds 1 to 1000, of each variant half of that."""
    base = np.arange(1.0, 1001.0)
    path = folder / "samples.npz"
    np.savez(path, baseline=base, variant=base / 2)
    return tuple(
        replace(one, latencies=tuple(replace(latency, samples_path=path) for latency in one.latencies))
        for one in trials
    )


SLICES = [
    SliceResult(column="language", group=group, n=n, metric_drop=drop)
    for group, n, drop in (
        ("de", 120, Estimate(0.03, 0.01, 0.06)),
        ("en", 1500, Estimate(0.004, -0.002, 0.011)),
        ("fr", 9, None),
    )
]
TRIALS = tuple(trial(stem) for stem in MEASURED)
INVENTORY = records.Inventory(
    "ort-cpu", "Intel(R) Xeon(R) Platinum 8481C", ("avx2", "avx512_vnni", "amx_int8"), 2, 8_340_000_000,
    "Linux 6.1 x86_64", "3.11.9", {"onnxruntime": "1.31.1"}, ("CPUExecutionProvider",), 0.42,
)  # fmt: skip
CHECKS = (
    Check("enough samples", "critical", "512", "at least 64", "add samples", True),
    Check("no sample is also in evaluation", "critical", "0 shared", "0 shared", "remove them", True),
    Check("label shares", "warning", "label 3: 0.4 %", "at least 2.1 %", "add samples of label 3", False),
)
CALIBRATION = CalibrationVerdict("accepted_with_warnings", CHECKS, {}, Path("index.html"))
JOB = Job(source="models:/text-topics@production", data=Data(calibration=Path("c.npz"), evaluation=Path("e.npz")))
RESULT = Result(
    outcome="promoted",
    reason=f"{CHOSEN} is 1.51x as fast as the baseline in ort-cpu (p50, batch 1), accuracy of 0.763, and is now the champion",
    source=SourceResult(uri="models:/text-topics@production", name="text-topics", version="7", digest="ab" * 32),
    target="ort-cpu",
    inventory=asdict(INVENTORY),
    calibration=CalibrationResult(
        outcome="accepted_with_warnings",
        failed_checks=list(CHECKS[2:]),
        passed_checks=list(CHECKS[:2]),
    ),
    baseline=BaselineResult(
        metric="accuracy", value=0.77, latency_p50_ms=1.95, latency_p95_ms=2.14, size_bytes=90_100_000
    ),
    candidates=[candidate(trial) for trial in TRIALS],
    chosen=CHOSEN,
    champion=ChampionResult(name="text-topics-quantized", version="5", alias="champion-ort-cpu", previous="4"),
    seconds=SecondsResult(
        total=84.2, overhead=3.1, by_step={"measure baseline": 6.4, "make candidates": 31.0, "measure latency": 43.7}
    ),
)
BARE = Result(outcome="no_variant", reason="no variant wins", seconds=SecondsResult(total=1, overhead=1, by_step={}))
REFUSED = RESULT.model_copy(
    update={"outcome": "refused", "reason": "the calibration data was refused", "baseline": None, "candidates": []}
    | {"chosen": None, "champion": None}
)
FAULT = ErrorResult(kind="SourceError", found="no version 9", expected="an existing one", fix="list the versions")
ERROR = BARE.model_copy(update={"outcome": "error", "reason": "no version 9", "error": FAULT})
LAYERS = tuple(f"/model/encoder/layer.0/attention/self/{name}/MatMul" for name in ("query", "key", "value"))
RANKED = (
    RankedPart("classifier", ("classifier",), None, 12.5, 300.2, kept=True, cost_us=12.4, form="float"),
    RankedPart(", ".join(LAYERS), LAYERS, 1.9, 3.1, 120.4, kept=True, cost_us=3.6, form="float"),
    RankedPart("Add (MatMul to Reshape)", ("a", "b", "c"), 0.01, None, None, kept=True, form="float"),
    *(RankedPart(f"/layer.{i}/MatMul", (f"/layer.{i}/MatMul",), 0.001 / 2**i, 2.0, 5.0) for i in range(20)),
)
FRONTIER = (
    FrontierPoint(20, 0.0096, 4.0, NAMES[3].replace("@", "-20db@"), "failed"),
    FrontierPoint(24, 0.0035, 12.5, CHOSEN, "passed"),
    FrontierPoint(31, 0.00075, 88.25),
)
RECOVERY = Recovery(NAMES[3], RANKED, 2, 6, CHOSEN, frontier=FRONTIER, cost_unit="µs")
RECOVERED = RESULT.model_copy(update={"recovery": RECOVERY})
NO_VARIANT = RESULT.model_copy(
    update={"outcome": "no_variant", "reason": "no variant wins: of 13 candidates 12 failed", "chosen": None}
    | {"champion": None, "candidates": [c for c in RESULT.candidates if c.outcome != "passed"]}
)


# Of a decoder: perplexity; milliseconds to the first token of 128 and of 512, and of a whole answer of 64; bytes.
ANSWERS: dict[str, tuple[float, tuple[float, float], float, DecoderBytes]] = {
    "int8-dynamic-pc": (24.1, (110.0, 460.0), 1270.0, DecoderBytes(165_000_000, 136_000_000, 46_080, 8192)),
    "int8-g32-rtn+kv8": (20.7, (180.0, 760.0), 1500.0, DecoderBytes(180_000_000, 151_000_000, 11_520, 8192)),
    "int4-g32-rtn": (23.4, (150.0, 640.0), 900.0, DecoderBytes(197_000_000, 84_000_000, 46_080, 8192)),
    "int4-g32-gptq": (21.9, (150.0, 640.0), 905.0, DecoderBytes(197_000_000, 84_000_000, 46_080, 8192)),
}
SOURCE_BYTES = DecoderBytes(651_000_000, 538_000_000, 46_080, 8192)
ANSWERED = "int8-g32-rtn+kv8@ort-genai"


def answers(stem: str) -> CandidateResult:
    value, firsts, whole, decoder = ANSWERS[stem]
    base = {(128, 64): 3200.0, (128, 1): 210.0, (512, 64): 4100.0, (512, 1): 900.0}
    ours = {(128, 64): whole, (128, 1): firsts[0], (512, 64): whole + firsts[1] - firsts[0], (512, 1): firsts[1]}
    name = f"{stem}@ort-genai"
    latencies = [
        Latency(
            *(1, ours[point], None, None, 40, base[point], None, None, Estimate(base[point] / ours[point]), 3),
            *(900.0, 700.0, 900.0, 1200.0, Path("samples.npy")),
            dims={"sequence_length": point[0], "new_tokens": point[1]},
        )
        for point in base
    ]
    outcome: Any = "passed" if name == ANSWERED else "failed"
    return candidate(Trial(name, outcome, latencies=tuple(latencies))).model_copy(
        update={"metric_value": value, "metric_drop": Estimate(value / 20.6 - 1), "decoder": decoder}
        | {"agreement": Estimate(0.625, 0.5, 0.75) if name == ANSWERED else None}
    )


DECODER = RESULT.model_copy(
    update={"target": "ort-genai", "chosen": ANSWERED, "candidates": [answers(stem) for stem in ANSWERS]}
    | {"baseline": BaselineResult(engine="ort-genai", metric="perplexity", value=20.6, latency_p50_ms=3200.0,
       latency_p95_ms=None, size_bytes=651_000_000, decoder=SOURCE_BYTES)}
)  # fmt: skip


class Reader(HTMLParser):
    """Checks that tags balance, and keeps what was opened and the text by place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.first_cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "th" and dict(attrs).get("scope") == "row":
            self.first_cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes nothing at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if "th" in self.open and "tbody" in self.open and "small" not in self.open:
            self.first_cells[-1] += data.strip()
