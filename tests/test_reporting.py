"""The report: formats against a table, a page that parses and escapes, and a picture that names its points."""

from __future__ import annotations

import ast
import base64
import hashlib
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.colors import to_rgb
from matplotlib.text import Text

from tasks.reporting import bars, drawing, formats, markdown, page, palette, parts, pictures, rows
from tasks.reporting.coverage import coverage_facts
from tasks.reporting.labels import Box
from validators import records
from validators.job import Job
from validators.job_data import Data
from validators.latencies import Latency
from validators.measurements import Estimate, KernelTime
from validators.read_job import parse_job
from validators.recipe import DEFAULT_CANDIDATES
from validators.records import CalibrationVerdict, Check, SessionSettings, Trial, Variant
from validators.recovery import RankedPart, Recovery
from validators.result import (
    BaselineResult,
    CalibrationResult,
    CandidateResult,
    ChampionResult,
    CheckResult,
    ErrorResult,
    RefusalResult,
    Result,
    SecondsResult,
    SourceResult,
)
from validators.verdicts import Verdict

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
        accuracy=records.Accuracy("accuracy", 0.77 - drop[0] / 100, 1821, Path("scores.npy"), Path("outputs.npy")),
        drop=interval(drop, 0.01),
        coverage=records.Coverage(kernels, ("MatMulIntegerToFloat",), ("/pooler/MatMul",), ("CPUExecutionProvider",)),
        latencies=latencies,
        verdicts=tuple(verdicts),
        cached=stem == "fp32-fused",
    )  # fmt: skip


def candidate(trial: Trial) -> CandidateResult:
    latency = trial.latency
    return CandidateResult(
        name=trial.candidate,
        outcome=trial.outcome or "refused",
        refusal=RefusalResult(kind=trial.refusal.kind, reason=trial.refusal.reason) if trial.refusal else None,
        proof=trial.variant.proof if trial.variant else "measured",
        metric_value=trial.accuracy.value if trial.accuracy else None,
        metric_drop=trial.drop,
        speedup_p50=latency.speedup if latency else None,
        latency_p50_ms=latency.p50_ms if latency else None,
        latency_p95_ms=latency.p95_ms if latency else None,
        size_bytes=trial.variant.size_bytes if trial.variant else None,
        peak_memory_mb=latency.peak_memory_mb if latency else None,
        coverage_macs=trial.coverage.share if trial.coverage else None,
        verdicts=list(trial.verdicts),
        cached=trial.cached,
    )


TRIALS = tuple(trial(stem) for stem in MEASURED)
INVENTORY = records.Inventory(
    "ort-cpu", "Intel(R) Xeon(R) Platinum 8481C", ("avx2", "avx512_vnni", "amx_int8"), 2, 8_340_000_000,
    "Linux 6.1 x86_64", "3.11.9", {"onnxruntime": "1.31.1"}, ("CPUExecutionProvider",), 0.42,
)  # fmt: skip
CHECKS = (
    Check("enough samples", True, "critical", "512", "at least 64", "add samples"),
    Check("no sample is also in evaluation", True, "critical", "0 shared", "0 shared", "remove them"),
    Check("label shares", False, "warning", "label 3: 0.4 %", "at least 2.1 %", "add samples of label 3"),
)
CALIBRATION = CalibrationVerdict("accepted_with_warnings", CHECKS, Path("index.html"))
JOB = Job(source="models:/text-topics@production", data=Data(calibration=Path("c.npz"), evaluation=Path("e.npz")))
RESULT = Result(
    outcome="promoted",
    reason=f"{CHOSEN} is 1.51x as fast as the baseline (p50, batch 1) at a accuracy of 0.763, and is now the champion",
    source=SourceResult(uri="models:/text-topics@production", name="text-topics", version="7", digest="ab" * 32),
    target="ort-cpu",
    inventory=asdict(INVENTORY),
    calibration=CalibrationResult(
        outcome="accepted_with_warnings",
        failed_checks=[
            CheckResult(name=c.name, severity=c.severity, found=c.found, expected=c.expected, fix=c.fix)
            for c in CHECKS[2:]
        ],
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
    RankedPart("classifier", ("classifier",), None, 12.5, 300.2, kept=True, cost_us=12.4),
    RankedPart(", ".join(LAYERS), LAYERS, 1.9, 3.1, 120.4, kept=True, cost_us=-3.6),
    RankedPart("Add (MatMul to Reshape)", ("a", "b", "c"), 0.01, None, None, kept=True),
    *(RankedPart(f"/layer.{i}/MatMul", (f"/layer.{i}/MatMul",), 0.001 / 2**i, 2.0, 5.0) for i in range(20)),
)
RECOVERY = Recovery(NAMES[3], RANKED, 5, 12, CHOSEN, 41.2)
RECOVERED = RESULT.model_copy(update={"recovery": RECOVERY})
NO_VARIANT = RESULT.model_copy(
    update={"outcome": "no_variant", "reason": "no variant wins: of 13 candidates 12 failed", "chosen": None}
    | {"champion": None, "candidates": [c for c in RESULT.candidates if c.outcome != "passed"]}
)


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


def render(result: Result = RESULT, *, full: bool = True) -> str:
    svg = pictures.pareto_svg(result, JOB.gates)
    if not full:
        return page.render_page(result, None, picture_svg=svg)
    return page.render_page(result, JOB, TRIALS, CALIBRATION, svg)


@pytest.mark.parametrize("result", [RESULT, NO_VARIANT, REFUSED, ERROR, BARE], ids=lambda result: str(result.outcome))
@pytest.mark.parametrize("full", [True, False])
def test_every_outcome_gives_a_page_that_parses_and_needs_no_other_file(result: Result, full: bool) -> None:
    text = render(result, full=full)
    reader = Reader(text)
    assert [tag for tag, _ in reader.tags].count("h1") == 1
    assert result.reason in text
    for tag, attributes in reader.tags:
        assert tag not in {"link", "img", "iframe", "object", "base", "source"}
        for name in ("src", "href", "xlink:href", "data", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith("#"), f"{tag} {name} leaves the page"
        for scope in [attributes.get("scope")] if tag == "th" else []:
            assert scope in {"row", "col"}
    assert all(target.startswith("#") for target in re.findall(r"url\([\"']?([^)]*)", text))
    assert "@import" not in text
    assert ("Load the champion" in text) == (result.outcome == "promoted")
    assert ("found</dt><dd>no version 9" in text) == (result.outcome == "error")


def test_the_script_is_short_and_the_only_one_that_the_policy_allows() -> None:
    text = render()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text
    assert len(script.strip().splitlines()) < 30


def render_recovered(result: Result = RECOVERED) -> str:
    return page.render_page(result, JOB, TRIALS, CALIBRATION, noise_svg=pictures.noise_svg(result))


def test_the_page_ranks_what_loses_most_after_a_recovery_and_only_then() -> None:
    assert "What loses most" not in render()
    text = render_recovered()
    Reader(text)
    section = text[text.index("What loses most") : text.index("Gates, candidate by candidate")]
    told = f"{NAMES[3]} fails on accuracy alone; with its 3 noisiest parts in float, as {CHOSEN}, it passes every gate"
    assert f"{told} (found in 5 of at most 12 attempts)." in section
    table = section[section.index('<table class="parts') :]
    assert [name.removesuffix("left in float") for name in Reader(table[: table.index("</table>") + 8]).first_cells] == [
        "classifier", f"{LAYERS[0]} +2",
        "Add (MatMul to Reshape)", *(f"/layer.{i}/MatMul" for i in range(17)),
    ]  # fmt: skip  # as the rows of the table
    assert section.count("left in float</span>") == 3 and "and 3 more, each with less noise" in section
    cells = re.findall(r'<td class="number">([^<]*)</td>', table)
    assert cells[:10] == ["1", "not finite", "12.5", "300", "+12", "2", "+2.8", "3.10", "120", "-4"]
    assert cells[10:15] == ["3", "-20.0", formats.NO_VALUE, formats.NO_VALUE, formats.NO_VALUE]
    assert "takes +41 µs" in section and f'title="{", ".join(LAYERS)}"' in section


def test_a_recovery_that_came_to_nothing_says_so() -> None:
    lost = Recovery(NAMES[3], tuple(replace(part, kept=False, cost_us=None) for part in RANKED), 2, 2)
    text = render_recovered(NO_VARIANT.model_copy(update={"recovery": lost}))
    assert "did not pass within 2 of at most 2 attempts" in text
    assert "left in float</span>" not in text and "Cost is what" not in text
    slow = RECOVERED.model_copy(update={"recovery": replace(RECOVERY, recovered="int8-static-minmax-pt@ort-cpu")})
    assert "it passes in accuracy, though not every other gate" in render_recovered(slow)
    unknown = render_recovered(RESULT.model_copy(update={"recovery": replace(lost, parts=())}))
    assert "What loses most" in unknown and '<table class="parts' not in unknown


def test_the_picture_of_noise_shows_the_worst_in_order_and_what_was_kept() -> None:
    svg = pictures.noise_svg(RECOVERED)
    assert svg is not None and pictures.noise_svg(RECOVERED) == svg, "equal results must give equal bytes"
    labels = re.findall(r">([^<>]+)</text>", svg)
    names = [text for text in labels if re.match(r"\d+\. ", text)]
    assert len(names) == 20 and names[0] == "1. classifier" and names[1].endswith("query/MatMul +2")
    assert max(map(len, names)) <= len("20. ") + bars.LABEL_LENGTH
    assert {"not finite", "+2.8", "-20.0"} <= set(labels)
    assert "20 parts" in svg.split(">", 1)[0] and "classifier, not finite. 3 of" in svg.split(">", 1)[0]
    assert not re.findall(r"(?<!, )#[0-9a-f]{6}", svg), "a colour that dark cannot change"
    patches = bars.draw_noise(RANKED[:20]).axes[0].patches
    accent = [patch.get_facecolor()[:3] == to_rgb(palette.LIGHT["accent"]) for patch in patches]
    assert accent == [True] * 3 + [False] * 17
    ends = [patch.get_x() + patch.get_width() for patch in patches]
    assert ends == sorted(ends, reverse=True) and ends[1:] == pytest.approx([part.noise for part in RANKED[1:20]])
    assert pictures.noise_svg(RESULT) is None
    silent = replace(RECOVERY, parts=(replace(RANKED[0], noise=0.0),))
    assert pictures.noise_svg(RESULT.model_copy(update={"recovery": silent})) is None


@pytest.mark.parametrize("length", [10, 38, 60])
def test_a_long_name_keeps_its_end_and_takes_no_more_than_its_room(length: int) -> None:
    whole = "/model/" + "deep/" * 40 + "layer.11/MatMul"
    short = parts.label(RankedPart(whole, (whole,), 0.1, None, None), length)
    assert len(short) == length and short.endswith("MatMul"[-4:]) and short.startswith("/mo") and "…" in short
    assert parts.label(RankedPart(whole, (whole,), 0.1, None, None), len(whole)) == whole


def test_hostile_text_is_escaped_everywhere() -> None:
    evil = RESULT.candidates[1].model_copy(update={"name": EVIL, "outcome": "refused", "verdicts": []})
    evil = evil.model_copy(update={"refusal": RefusalResult(kind="invalid", reason=EVIL)})
    verdict = replace(RESULT.candidates[2].verdicts[0], gate=EVIL, reason=EVIL, method=EVIL)
    judged = RESULT.candidates[2].model_copy(update={"verdicts": [verdict]})
    fault = CheckResult(name=EVIL, severity="critical", found=EVIL, expected=EVIL, fix=EVIL)
    changes: dict[str, Any] = {
        "reason": EVIL,
        "candidates": [evil, judged],
        "inventory": {EVIL: EVIL},
        "target": EVIL,
        "chosen": EVIL,
    }
    changes |= {"calibration": CalibrationResult(outcome="refused", failed_checks=[fault])}
    changes |= {"champion": ChampionResult(name=EVIL, version=EVIL, alias=EVIL, previous=EVIL)}
    changes |= {"source": SourceResult(uri=EVIL, name=EVIL, version=EVIL, digest=EVIL)}
    changes |= {"error": ErrorResult(kind=EVIL, found=EVIL, expected=EVIL, fix=EVIL)}
    result = RESULT.model_copy(update=changes)
    svg = pictures.pareto_svg(result, JOB.gates)
    assert svg is not None and "alert" in svg
    text = page.render_page(
        result, JOB, (), None, svg, {EVIL: "https://example.org/" + EVIL, "x": "javascript:alert(1)"}
    )
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1
    assert "javascript:" not in text
    assert EVIL not in text and text.count("&lt;script&gt;") > 25
    assert EVIL not in markdown.verdict_markdown(result)
    lost = Recovery(EVIL, (RankedPart(EVIL, (EVIL, EVIL), 0.1, None, None, kept=True),), 1, 1, EVIL)
    told = result.model_copy(update={"recovery": lost})
    page_of = render_recovered(told)
    assert EVIL not in page_of + markdown.verdict_markdown(told) and "What loses most" in page_of


def test_each_candidate_has_one_row_after_the_baseline_and_one_list_of_gates() -> None:
    text = render()
    table = text[text.index('<table class="verdicts') : text.index("</table>")]
    assert Reader(table + "</table>").first_cells == ["baseline", *NAMES]
    assert text.count("<details id=") == len(NAMES)
    targets = re.findall(r'href="#(candidate-\d+)">([^<]*)', table)
    for anchor, name in targets:
        assert re.search(rf'<details id="{anchor}">\s*<summary><code>{re.escape(name)}<', text), name
    assert len(targets) == len(NAMES)


def test_the_details_say_what_ran() -> None:
    """Nodes in float, time in low precision, pairs left over and what was inserted; what is not is not said."""
    quick, slow = (KernelTime(name, "Cast", "CPUExecutionProvider", us) for name, us in (("c1", 1.0), ("c2", 4.0)))
    pair = KernelTime("q", "QuantizeLinear", "CPUExecutionProvider", 10.0)
    found = records.Coverage(
        {"MatMul": 9}, (), tuple(f"n{place}" for place in range(10)), (),
        us_by_kernel={"MatMul": 85.0, "Cast": 5.0, "QuantizeLinear": 10.0}, unfused=(pair,), inserted=(quick, slow),
    )  # fmt: skip
    assert dict(coverage_facts(found)) == {
        "in float, largest first": "n0, n1, n2, n3, n4, n5, n6, n7 and 2 more",
        "kernel time in low precision": "0.0 %",
        "Q/DQ not fused": "q; 10.0 % of kernel time",
        "inserted beside the baseline": "2 Cast: c2, c1; 5.0 % of kernel time",
    }
    assert coverage_facts(records.Coverage({"QGemm": 1}, ("QGemm",), (), ())) == ()
    text = page.render_page(RESULT, JOB, [replace(each, coverage=each.coverage and found) for each in TRIALS])
    assert "2 Cast: c2, c1; 5.0 % of kernel time" in text


def test_rows_say_what_was_measured_and_why() -> None:
    by_name = {row.name: row for row in rows.verdict_rows(RESULT, TRIALS)}
    chosen, broken = by_name[CHOSEN], by_name["int8-static-minmax-pt-all-s8s8@ort-cpu"]
    assert chosen.marks == ("chosen",) and chosen.reason == "all 4 gates hold"
    assert [chosen.cell(column) for column, _ in rows.COLUMNS[2:6]] == [
        "0.763", "+0.70 pt (≤ +1.40 pt)", "1.51x (≥ 1.48x)", "1.29",
    ]  # fmt: skip
    assert (chosen.size_mb, chosen.peak_memory_mb, chosen.coverage_percent) == ("22.9", "209", "98.2")
    assert broken.reason == "drop above +2.00 pt; speedup below 1.05x"
    assert by_name["int8-static-minmax-pc@ort-cpu"].reason == "drop may be above +2.00 pt: more samples would tell"
    refused = by_name["int8-static-entropy-pc@ort-cpu"]
    assert refused.reason.startswith("infrastructure: found 12 GB") and refused.speedup == formats.NO_VALUE
    assert by_name["fp8-amax-pc@ort-cpu"].marks == ("simulated",)
    assert by_name["fp32-fused@ort-cpu"].marks == ("from store",)
    assert (by_name["baseline"].peak_memory_mb, by_name["baseline"].metric) == ("262", "0.770")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.metric_value(0.7699, "accuracy"), "0.770"),
        (formats.metric_value(0.00123456, "mae"), "0.00123"),
        (formats.metric_value(float("nan"), "accuracy"), "NaN"),
        (formats.metric_drop(0.0085, "accuracy"), "+0.85 pt"),
        (formats.metric_drop(-0.0085, "agreement"), "-0.85 pt"),
        (formats.metric_drop(-0.00001, "top5"), "+0.00 pt"),
        (formats.metric_drop(0.0085, "mse"), "+0.00850"),
        (formats.metric_drop(None, "mse"), formats.NO_VALUE),
        (formats.speedup(1.516), "1.52x"),
        (formats.speedup(12.0), "12.00x"),
        (formats.megabytes(90_149_999), "90.1"),
        (formats.megabytes(999), "0.000999"),
        (formats.milliseconds(0.09996), "0.100"),
        (formats.milliseconds(1.954), "1.95"),
        (formats.milliseconds(153.4), "153"),
        (formats.milliseconds(12345.6), "12346"),
        (formats.milliseconds(0.0), "0"),
        (formats.percent(0.98249), "98.2"),
        (formats.seconds(9.999), "10.0"),
        (formats.gate_value(Verdict("size_ratio", "pass", 0.26, 1.05, "at_most"), 0.26, "mse"), "0.26x"),
        (formats.gate_bound(Verdict("drop", "pass", 0.0, 0.02, "at_most"), "accuracy"), "≤ +2.00 pt"),
        (formats.gate_bound(Verdict("finite", "pass", 0.0, 0.0, "at_most"), "accuracy"), "≤ 0"),
        (
            formats.gate_bound(
                Verdict("beats_champion", "pass", 1.1, 1.0, "at_least", method="p50 beside the champion"), "accuracy"
            ),
            "≥ 1.00x",
        ),
    ],
)
def test_numbers_read_as_a_hand_would_write_them(shown: str, expected: str) -> None:
    assert shown == expected


def test_the_picture_names_every_measured_candidate_and_no_other() -> None:
    svg = pictures.pareto_svg(RESULT, JOB.gates)
    assert svg is not None
    assert pictures.pareto_svg(RESULT, JOB.gates) == svg, "equal results must give equal bytes"
    labels = re.findall(r">([^<>]+)</text>", svg)
    measured = {stem for stem, values in MEASURED.items() if values and values[1]}
    assert measured | {"baseline"} <= set(labels)
    assert not {"int8-static-entropy-pc", "fp8-amax-pc"} & set(labels)
    assert "gate: drop at most +2.00 pt" in labels and "gate: at least 1.05x" in labels
    assert f"Chosen: {CHOSEN}, 1.51x, +0.70 pt." in svg.split(">", 1)[0]
    named = set(re.findall(r"var\(--([a-z-]+), ", svg))
    assert named <= set(palette.LIGHT) and not re.findall(r"(?<!, )#[0-9a-f]{6}", svg), (
        "a colour that dark cannot change"
    )
    assert set(palette.LIGHT) == set(palette.DARK)


def test_labels_of_a_typical_run_overlap_neither_one_another_nor_the_frame() -> None:
    figure = drawing.draw(pictures.measured_points(RESULT), drawing.Lines(0.02, 1.05), "accuracy")
    renderer = figure.canvas.get_renderer()
    frame = figure.axes[0].get_window_extent(renderer)
    # Of the text alone: an annotation's own extent includes its line.
    extents = [Text.get_window_extent(text, renderer) for text in figure.axes[0].texts]
    boxes = [Box(extent.x0, extent.y0, extent.x1, extent.y1) for extent in extents]
    assert len(boxes) == 2 + 11 + 1  # gates, measured candidates, baseline
    for index, box in enumerate(boxes):
        assert box.overlap(Box(frame.x0, frame.y0, frame.x1, frame.y1)) == pytest.approx(box.area)
        assert all(box.overlap(other) == 0 for other in boxes[:index])


def test_a_run_without_measured_candidates_has_a_png_and_no_svg() -> None:
    assert pictures.pareto_svg(REFUSED, JOB.gates) is None
    for result in (RESULT, NO_VARIANT, BARE):
        assert pictures.pareto_png(result, JOB.gates).startswith(b"\x89PNG")


def test_a_point_outside_its_bars_is_still_in_the_frame() -> None:
    odd = drawing.Point("x$y$z", "failed", Estimate(0.01, 0.0, 0.02), Estimate(50.0, float("-inf"), float("nan")))
    axes = drawing.draw([odd], drawing.Lines(0.02, 1.05), "accuracy").axes[0]
    assert axes.get_xlim()[0] < 0.01
    assert axes.get_ylim()[0] > 50.0
    assert "x$y$z" in [text.get_text() for text in axes.texts]


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb` (WCAG 2.2)."""
    shares = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [palette.LIGHT, palette.DARK], ids=["light", "dark"])
def test_text_has_a_contrast_of_at_least_four_and_a_half(colours: dict[str, str]) -> None:
    grounds = ["ground", "surface", *(name for name in colours if name.endswith("-ground"))]
    pairs = [(ink, ground) for ink in ("ink", "muted") for ground in grounds] + [("accent", "ground")]
    pairs += [
        (kind, ground) for kind in ("passed", "failed", "inconclusive") for ground in ("ground", f"{kind}-ground")
    ]
    for text, ground in pairs:
        low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_the_job_on_the_page_reads_back_as_the_run_that_was() -> None:
    text = page.job_yaml(JOB, RESULT)
    again = parse_job(yaml.safe_load(text), base=Path())
    assert again.source == "models:/text-topics/7" and again.candidates == DEFAULT_CANDIDATES["ort-cpu"]
    assert again.model_copy(update={"source": JOB.source, "candidates": "default"}) == JOB


def test_the_champion_is_loaded_by_its_alias() -> None:
    code = page.load_code(RESULT)
    assert code is not None
    strings = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)} - {...}
    assert strings == {"models:/text-topics-quantized@champion-ort-cpu"}
    assert page.load_code(RESULT.model_copy(update={"outcome": "winner"})) is None


def test_markdown_artifact_and_terminal_hold_the_same_table() -> None:
    piped = RESULT.candidates[1].model_copy(update={"refusal": RefusalResult(kind="invalid", reason="a|b\nc `d`")})
    result = RESULT.model_copy(update={"candidates": [piped, *RESULT.candidates[2:]]})
    lines = [line for line in markdown.verdict_markdown(result).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 1 + 12
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {len(rows.COLUMNS) + 1}
    assert "invalid: a\\|b c \\`d\\`" in lines[3]
    artifact = markdown.artifact_rows(result)
    assert [row["Candidate"].split(" ")[0] for row in artifact] == ["baseline", *NAMES[1:]]
    assert {tuple(row) for row in artifact} == {tuple(rows.headings(result).values())}
    recovered = markdown.verdict_markdown(RECOVERED)
    told = [line for line in recovered[recovered.index("What loses most") :].splitlines() if line.startswith("|")]
    assert len(told) == 2 + 5 and {len(re.findall(r"(?<!\\)\|", line)) for line in told} == {
        len(parts.PART_COLUMNS) + 2
    }
    assert [("left in float" in line) for line in told[2:]] == [True, True, True, False, False]
    assert "What loses most" not in markdown.verdict_markdown(RESULT)
    terminal = markdown.terminal_rows(result)
    assert {len(row) for row in terminal} == {len(markdown.TERMINAL_COLUMNS)}
    assert [row[0] for row in terminal[1:]] == [row["Candidate"] for row in artifact]
    assert markdown.terminal_rows(REFUSED) == [] == markdown.artifact_rows(REFUSED)
    assert "label 3: 0.4 %" in markdown.verdict_markdown(REFUSED)


def test_the_page_names_the_gpu_or_says_that_there_is_none() -> None:
    gpu = records.Gpu("NVIDIA H200", "GPU-5f1e", "9.0", "580.95.05", 150_754_000_000)
    for inventory, text in (
        (INVENTORY, "GPU none"),
        (replace(INVENTORY, gpu=gpu), "GPU NVIDIA H200, compute capability 9.0, 150.8 GB, driver 580.95.05, GPU-5f1e"),
    ):
        shown = page.render_page(RESULT.model_copy(update={"inventory": asdict(inventory)}), JOB)
        assert text in " ".join(re.sub(r"<[^>]+>", " ", shown).split())
