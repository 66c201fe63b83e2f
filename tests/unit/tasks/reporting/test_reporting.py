"""The report: formats against a table, a page that parses and escapes, and a picture that names its points."""

from __future__ import annotations

import ast
import base64
import hashlib
import html
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_data import (
    BARE,
    CHECKS,
    CHOSEN,
    ERROR,
    EVIL,
    FRONTIER,
    INVENTORY,
    JOB,
    LAYERS,
    NAMES,
    NO_VARIANT,
    RANKED,
    RECOVERED,
    RECOVERY,
    REFUSED,
    RESULT,
    TRIALS,
    Reader,
)

from tasks.reporting import formats, markdown, page, parts, rows
from tasks.reporting.details import coverage_facts, nodes_table
from tasks.reporting.pictures.run_pictures import draw_pictures
from validators.job.read_job import parse_job
from validators.records import run as records
from validators.records.measurements import KernelTime, MultipliedNode
from validators.records.result import CalibrationResult, ErrorResult, Result
from validators.records.run import ChampionResult, CheckResult, RefusalResult, SourceResult
from validators.records.verdicts import RankedPart, Recovery, Verdict
from validators.targets import facts_of


def render(result: Result = RESULT, *, full: bool = True) -> str:
    if not full:
        return page.render_page(result, None, pictures=draw_pictures(result, JOB.gates))
    return page.render_page(result, JOB, TRIALS, draw_pictures(result, JOB.gates, TRIALS))


@pytest.mark.parametrize("result", [RESULT, NO_VARIANT, REFUSED, ERROR, BARE], ids=lambda result: str(result.outcome))
@pytest.mark.parametrize("full", [True, False])
def test_every_outcome_gives_a_page_that_parses_and_stands_alone(result: Result, full: bool) -> None:
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


def test_script_is_short_and_the_only_one_the_policy_allows() -> None:
    text = render()
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in text
    assert len(script.strip().splitlines()) < 60


def render_recovered(result: Result = RECOVERED) -> str:
    return render(result)


def test_page_ranks_worst_losses_after_a_recovery_and_only_then() -> None:
    assert "Forms of the parts" not in render()
    text = render_recovered()
    Reader(text)
    section = text[text.index("Forms of the parts") : text.index("Gates, candidate by candidate")]
    told = f"{NAMES[3]} fails on accuracy alone; with 3 of 23 parts in float, as {CHOSEN}, it passes every gate"
    assert f"{told} (found in 2 of at most 6 attempts)." in section
    frontier, table = section.split('<table class="parts')[1:]
    assert "not tried" not in frontier and "12.5 µs" in frontier and "-24.6" in frontier
    table = f'<table class="parts{table}'
    assert [name.removesuffix("in float") for name in Reader(table[: table.index("</table>") + 8]).first_cells] == [
        "classifier", f"{LAYERS[0]} +2",
        "Add (MatMul to Reshape)", *(f"/layer.{i}/MatMul" for i in range(17)),
    ]  # fmt: skip  # as the rows of the table
    assert section.count("in float</span>") == 3 and "and 3 more, each with less noise" in section
    cells = re.findall(r'<td class="number">([^<]*)</td>', table)
    assert cells[:10] == ["1", "not finite", "12.5", "300", "+12", "2", "+2.8", "3.10", "120", "+4"]
    assert cells[10:15] == ["3", "-20.0", formats.NO_VALUE, formats.NO_VALUE, formats.NO_VALUE]
    assert f'title="{", ".join(LAYERS)}"' in section


def test_a_recovery_that_came_to_nothing_says_so() -> None:
    ranked = tuple(replace(part, kept=False, cost_us=None, form="") for part in RANKED)
    lost = Recovery(NAMES[3], ranked, 2, 2, frontier=FRONTIER)
    text = render_recovered(NO_VARIANT.model_copy(update={"recovery": lost}))
    assert "did not pass within 2 of at most 2 attempts" in text
    assert "in float</span>" not in text and "Cost is what" not in text
    slow = RECOVERED.model_copy(update={"recovery": replace(RECOVERY, recovered="int8-static-minmax-pt@ort-cpu")})
    told = "it passes in accuracy, though not every other gate (found in 2 of at most 6 attempts)"
    assert f"{told}; {CHOSEN}, which passed too, was confirmed in its place." in render_recovered(slow)
    unknown = render_recovered(RESULT.model_copy(update={"recovery": replace(lost, parts=(), frontier=())}))
    assert "no other forms of its parts have less noise" in unknown and '<table class="parts' not in unknown


def test_a_search_of_a_candidate_that_passes_says_so() -> None:
    for changes, told in (
        (
            {"frontier": ()},
            "passes. Its parts have no cheaper forms, and no candidate that fails on accuracy alone is better",
        ),
        (
            {"recovered": None},
            "passes; it was made again with cheaper forms of its parts, and did not pass within 2 of",
        ),
        ({}, f"passes; with 3 of 23 parts in float, as {CHOSEN}, it passes every gate"),
    ):
        recovery = replace(RECOVERY, passes=True, **changes)
        assert f"{NAMES[3]} {told}" in render_recovered(RECOVERED.model_copy(update={"recovery": recovery}))


@pytest.mark.parametrize("length", [10, 38, 60])
def test_long_name_keeps_its_end_and_fits_its_room(length: int) -> None:
    whole = "/model/" + "deep/" * 40 + "layer.11/MatMul"
    short = parts.label(RankedPart(whole, (whole,), 0.1, None, None), length)
    assert len(short) == length and short.endswith("MatMul"[-4:]) and short.startswith("/mo") and "…" in short
    assert parts.label(RankedPart(whole, (whole,), 0.1, None, None), len(whole)) == whole


def test_a_stopped_candidate_is_shown_as_stopped() -> None:
    """In tables and in its details, with the reason alone; the result document has it among the refusals."""
    reason = "1.50x in a short measurement"
    refusal = RefusalResult(kind="stopped", reason=reason)
    stopped = RESULT.candidates[1].model_copy(update={"outcome": "refused", "refusal": refusal, "verdicts": []})
    result = RESULT.model_copy(update={"candidates": [RESULT.candidates[0], stopped], "chosen": None})
    (row,) = [row for row in rows.verdict_table(result).texts() if row[0] == stopped.name]
    assert (row[1], row[-1]) == ("stopped", reason)
    assert "1 stopped" in markdown.headline(result)
    text = page.render_page(result, JOB)
    assert f"<p>Stopped: {reason}</p>" in text and "Refused as" not in text


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
    drawn = draw_pictures(result, JOB.gates)
    assert drawn.pareto is not None and "alert" in drawn.pareto.svg
    facts = [(EVIL, EVIL, "https://example.org/" + EVIL), ("x", "y", "javascript:alert(1)")]
    text = page.render_page(result, JOB, (), drawn, page.About(EVIL, EVIL, facts))
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1
    assert "javascript:" not in text
    assert EVIL not in text and text.count("&lt;script&gt;") > 25
    assert EVIL not in markdown.verdict_markdown(result)
    lost = Recovery(EVIL, (RankedPart(EVIL, (EVIL, EVIL), 0.1, None, None, kept=True),), 1, 1, EVIL)
    told = result.model_copy(update={"recovery": lost})
    page_of = render_recovered(told)
    assert EVIL not in page_of + markdown.verdict_markdown(told) and "Forms of the parts" in page_of


def test_the_page_says_which_run_it_is_of() -> None:
    """When it began and how long it took on top; below, where it is recorded, with links that are safe."""
    facts = [("run in MLflow", "ab12", "http://127.0.0.1:5000/#/runs/ab12"), ("flow run", "x", "data:text/html,x")]
    text = page.render_page(RESULT, JOB, about=page.About("ab12", "2026-11-28 10:00 UTC", facts))
    assert "ort-cpu · 2026-11-28 10:00 UTC · 84.2 s</p>" in text and "84.2 s in all" in text
    assert '<a href="http://127.0.0.1:5000/#/runs/ab12" rel="noreferrer">ab12</a>' in text
    assert "<dd>x</dd>" in text and "data:text/html" not in text


def test_every_node_stands_with_its_kernel_and_precision() -> None:
    nodes = (MultipliedNode("first", "QGemm", 300), MultipliedNode("head", "Gemm", 90), MultipliedNode("rest", "", 10))
    coverage = records.Coverage({"QGemm": 300, "Gemm": 90}, ("QGemm",), ("head",), (), products=nodes)
    table = nodes_table("a", coverage)
    assert table.texts()[:2] == [("first", "QGemm", "low", "75.0"), ("head", "Gemm", "float", "22.5")]
    assert not nodes_table("a", replace(coverage, products=()))
    shown = page.render_page(RESULT, JOB, [replace(each, coverage=each.coverage and coverage) for each in TRIALS])
    assert "Every node that multiplies" in shown and '<th scope="row">head</th>' in shown


def test_a_page_warns_of_disturbed_timing() -> None:
    busy = replace(RESULT.candidates[1].latencies[0], disturbance="chromium took 0.9 cores")
    disturbed = RESULT.candidates[1].model_copy(update={"latencies": [busy]})
    changed = RESULT.model_copy(update={"candidates": [RESULT.candidates[0], disturbed]})
    told = f"the speed of {disturbed.name} has no bounds"
    assert told in page.render_page(changed, JOB) and "Timing was disturbed" not in page.render_page(RESULT, JOB)


def test_each_candidate_has_one_row_and_one_list_of_gates() -> None:
    """The row of the baseline comes first."""
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
    by_name = {row[0].partition(" ")[0]: row for row in rows.verdict_table(RESULT, TRIALS).texts()}
    chosen, broken = by_name[CHOSEN], by_name["int8-static-minmax-pt-all-s8s8@ort-cpu"]
    assert chosen == (
        f"{CHOSEN} (chosen)", "passed", "0.763", "+0.70 pp (≤ +1.40 pp)", "1.51x (≥ 1.48x)", "1.29", "1.42", "22.9",
        "209", "98.2", "all 4 gates hold",
    )  # fmt: skip
    assert broken[-1] == "drop above +2.00 pp; speedup below 1.05x"
    assert (
        by_name["int8-static-minmax-pc@ort-cpu"][-1]
        == "drop may be above +2.00 pp: more evaluation samples would settle it"
    )
    refused = by_name["int8-static-entropy-pc@ort-cpu"]
    assert refused[-1].startswith("infrastructure: found 12 GB") and refused[4] == formats.NO_VALUE
    assert by_name["fp8-amax-pc@ort-cpu"][0].endswith(" (simulated)")
    assert by_name["fp32-fused@ort-cpu"][0].endswith(" (from store)")
    assert (by_name["baseline"][8], by_name["baseline"][2]) == ("262", "0.770")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formats.metric_value(0.7699, "accuracy"), "0.770"),
        (formats.metric_value(0.00123456, "mae"), "0.00123"),
        (formats.metric_value(float("nan"), "accuracy"), "NaN"),
        (formats.metric_drop(0.0085, "accuracy"), "+0.85 pp"),
        (formats.metric_drop(-0.0085, "agreement"), "-0.85 pp"),
        (formats.metric_drop(-0.00001, "top5"), "+0.00 pp"),
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
        (formats.gate_bound(Verdict("drop", "pass", 0.0, 0.02, "at_most"), "accuracy"), "≤ +2.00 pp"),
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


def test_the_job_on_the_page_reads_back_as_the_run_that_was() -> None:
    text = page.job_yaml(JOB, RESULT)
    again = parse_job(yaml.safe_load(text), base=Path())
    assert again.source == "models:/text-topics/7" and again.candidates == facts_of("ort-cpu").default_candidates
    assert again.model_copy(update={"source": JOB.source, "candidates": "default"}) == JOB


def test_the_champion_is_loaded_by_its_alias() -> None:
    text = render()
    code = html.unescape(text[text.index("import mlflow") :].partition("</code>")[0])
    strings = {node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)} - {...}
    assert strings == {"models:/text-topics-quantized@champion-ort-cpu"}
    assert "import mlflow" not in render(RESULT.model_copy(update={"outcome": "winner"}))


def test_markdown_artifact_and_terminal_hold_the_same_table() -> None:
    piped = RESULT.candidates[1].model_copy(update={"refusal": RefusalResult(kind="invalid", reason="a|b\nc `d`")})
    result = RESULT.model_copy(update={"candidates": [piped, *RESULT.candidates[2:]]})
    lines = [line for line in markdown.verdict_markdown(result).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 1 + 12
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {10 + 1}
    reasons = [line for line in markdown.verdict_markdown(result).splitlines() if line.startswith("- ")]
    assert reasons[-12] == f"- {NAMES[1]}: invalid: a\\|b c \\`d\\`"
    artifact = markdown.artifact_rows(result)
    assert [row["Candidate"].split(" ")[0] for row in artifact] == ["baseline", *NAMES[1:]]
    assert {tuple(row) for row in artifact} == {rows.verdict_table(result).headings}
    recovered = markdown.verdict_markdown(RECOVERED)
    told = [line for line in recovered[recovered.index("Forms of the parts") :].splitlines() if line.startswith("|")]
    assert len(told) == 2 + 5 and {len(re.findall(r"(?<!\\)\|", line)) for line in told} == {len(parts.COLUMNS) + 1}
    assert [("in float" in line) for line in told[2:]] == [True, True, True, False, False]
    recovery = RECOVERED.recovery
    assert recovery is not None
    bare = tuple(replace(part, weight_outlier_ratio=None, cost_us=None) for part in recovery.parts)
    table = parts.parts_table(replace(recovery, parts=bare))
    assert table.headings == ("Rank", "Part", "Noise dB", "Activation outlier ratio")
    assert {len(row) for row in table.rows} == {4}
    assert "Forms of the parts" not in markdown.verdict_markdown(RESULT)
    terminal = markdown.terminal_rows(result)
    assert {len(row) for row in terminal} == {11 - 2}
    assert [row[0] for row in terminal[1:]] == [row["Candidate"] for row in artifact]
    assert markdown.artifact_rows(REFUSED) == []
    assert [row[0] for row in markdown.terminal_rows(REFUSED)] == [
        "Check",
        "label shares",
        *(check.name for check in CHECKS[:2]),
    ]
    assert "label 3: 0.4 %" in markdown.verdict_markdown(REFUSED)


def test_the_page_names_the_gpu_or_says_that_there_is_none() -> None:
    gpu = records.Gpu("NVIDIA H200", "GPU-5f1e", "9.0", "580.95.05", 150_754_000_000)
    for inventory, text in (
        (INVENTORY, "GPU none"),
        (replace(INVENTORY, gpu=gpu), "GPU NVIDIA H200, compute capability 9.0, 150.8 GB, driver 580.95.05, GPU-5f1e"),
    ):
        shown = page.render_page(RESULT.model_copy(update={"inventory": asdict(inventory)}), JOB)
        assert text in " ".join(re.sub(r"<[^>]+>", " ", shown).split())


def test_headline_is_the_choice_or_what_the_candidates_came_to() -> None:
    """The sign of the metric's change, not of its drop."""
    assert markdown.headline(RESULT) == [CHOSEN, "1.51x as fast", "accuracy drop +0.70 pp"]
    assert markdown.headline(NO_VARIANT) == ["8 failed", "1 inconclusive", "1 refused"]
    assert markdown.headline(REFUSED) == []
