"""What page and markdown say of the confirmation, of slices and of flips."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report_data import CHOSEN, NAMES, RESULT, Reader
from test_reporting import render

from tasks.reporting.confirmation import confirmation_table, tell_confirmation
from tasks.reporting.details import SHOWN_SLICES, slices_table, tell_flips
from tasks.reporting.formats import NO_VALUE, gate_value
from tasks.reporting.markdown import sentence, verdict_markdown
from tasks.reporting.rows import why
from validators.records.measurements import Estimate, Flips
from validators.records.result import ConfirmedResult, Result, SliceResult
from validators.records.verdicts import Verdict

LUCKY = NAMES[2]
CONFIDENCE = 1 - 0.05 / 3


def confirmed(drop: Estimate, speedup: Estimate) -> ConfirmedResult:
    return ConfirmedResult(
        n=907,
        confidence=CONFIDENCE,
        baseline_value=0.7725,
        metric_value=0.7725 - drop.value,
        metric_drop=drop,
        speedup_p50=speedup,
        latency_p50_ms=1.25,
    )


def with_confirmation() -> Result:
    """The result with one candidate that was not confirmed before the chosen one was."""
    again = {
        LUCKY: confirmed(Estimate(0.015, 0.004, 0.026), Estimate(1.7, 1.6, 1.8)),
        CHOSEN: confirmed(Estimate(0.002, -0.004, 0.008), Estimate(1.44, 1.31, 1.58)),
    }
    changed = [
        candidate.model_copy(
            update={"confirmed": again.get(candidate.name)}
            | ({"outcome": "inconclusive"} if candidate.name == LUCKY else {})
        )
        for candidate in RESULT.candidates
    ]
    return RESULT.model_copy(update={"candidates": changed})


def test_who_was_judged_again_stands_beside_what_chose_it() -> None:
    result = with_confirmation()
    lucky, chosen = confirmation_table(result).texts()
    assert (*lucky[:2], *chosen[:2]) == (LUCKY, "inconclusive", CHOSEN, "passed")
    assert chosen[2:6] == ("907", "0.772", "0.770", "+0.20 pp (≤ +0.80 pp)") and chosen[7] == "1.44x (≥ 1.31x)"
    before = next(candidate for candidate in result.candidates if candidate.name == CHOSEN)
    assert before.speedup_p50 is not None and chosen[8] == f"{before.speedup_p50.value:.2f}x"
    told = tell_confirmation(result)
    assert told.startswith("2 candidates were, best first, judged again on 907 evaluation samples") and "98.3 %" in told


def test_page_and_markdown_show_confirmation_figures_on_top() -> None:
    text = render(with_confirmation())
    Reader(text)
    assert 'id="confirmation"' in text and "judged again on 907 evaluation samples" in text
    figures = text[text.index('class="figures"') : text.index("</dl>")]
    assert "1.44x" in figures and "at least 1.31x" in figures and "+0.20 pp" in figures and "1.25 ms" in figures
    markdown = verdict_markdown(with_confirmation())
    assert "judged again on 907" in markdown and "1.44x (≥ 1.31x)" in markdown


def test_a_candidate_that_was_not_timed_again_has_no_bound() -> None:
    untimed = confirmed(Estimate(0.03, 0.02, 0.04), Estimate(1.0)).model_copy(update={"speedup_p50": None})
    candidates = [RESULT.candidates[0].model_copy(update={"confirmed": untimed})]
    lines = verdict_markdown(RESULT.model_copy(update={"candidates": candidates})).splitlines()
    assert lines[-1].endswith(f"| +3.00 pp (≤ +4.00 pp) | {NO_VALUE} |")


def test_without_a_confirmation_nothing_is_said_of_one() -> None:
    assert 'id="confirmation"' not in render() and tell_confirmation(RESULT) == ""
    assert "judged again" not in verdict_markdown(RESULT)


def test_slices_and_flips_of_a_candidate() -> None:
    """The worst ten, the rest in the result document; an absent interval is a dash."""
    slices = [
        SliceResult(column="language", group=f"g{i}", n=40 + i, metric_drop=Estimate(0.01, 0.0, 0.03))
        for i in range(12)
    ]
    slices[1] = SliceResult(column="language", group="<tiny>", n=3, metric_drop=None)
    flips = Flips(lost=1200, gained=7, n=2000)
    changed = [
        candidate.model_copy(update={"slices": slices, "flips": flips} if candidate.name == CHOSEN else {})
        for candidate in RESULT.candidates
    ]
    result = RESULT.model_copy(update={"candidates": changed})
    (candidate,) = (one for one in changed if one.name == CHOSEN)
    rows = slices_table(candidate, "accuracy").texts()
    assert len(rows) == SHOWN_SLICES
    assert rows[0] == ("language g0", "40", "+1.00 pp", "+0.00 pp to +3.00 pp")
    assert rows[1][2:] == (NO_VALUE, NO_VALUE)
    assert tell_flips(candidate) == "Of 2,000 samples 1,200 became worse than the source's and 7 better."
    text = render(result)
    Reader(text)
    assert "language &lt;tiny&gt;" in text and "and 2 more, each with a lower upper bound" in text
    assert "1,200 became worse" in text


def test_confirmation_verdicts_have_the_units_of_their_gates() -> None:
    shown = {
        "confirmed_drop": "+0.85 pp",
        "worst_slice": "+0.85 pp",
        "confirmed_worst_slice": "+0.85 pp",
        "confirmed_speedup": "0.01x",
    }
    for gate, text in shown.items():
        assert gate_value(Verdict(gate, "pass", 0.0085, 0.02, "at_most"), 0.0085, "accuracy") == text


def test_an_inconclusive_verdict_says_how_many_would_tell() -> None:
    doubts = (
        Verdict("drop", "inconclusive", 0.01, 0.02, "at_most", 0.0, 0.03, 0.95, 900, samples_needed=1801),
        replace(
            Verdict("speedup", "inconclusive", 1.1, 1.05, "at_least", 1.0, 1.2, 0.95, 18, samples_needed=41),
            counted="pairs of blocks",
        ),
        Verdict("drop", "inconclusive", 0.02, 0.02, "at_most", 0.01, 0.03, 0.95, 900),
        replace(
            Verdict("load_ratio", "inconclusive", 1.1, 1.2, "at_most", 1.0, 1.3, 0.95, 6, samples_needed=12),
            counted="launches",
        ),
    )
    expected = (
        "about 1,900 evaluation samples would settle it",
        "about 41 pairs of blocks would settle it: raise `measurement.launches`",
        "more evaluation samples would settle it",
        "about 12 launches would settle it: raise `measurement.launches`",
    )
    for verdict, words in zip(doubts, expected, strict=True):
        candidate = RESULT.candidates[0].model_copy(update={"verdicts": [verdict], "outcome": "inconclusive"})
        assert words in why(candidate, "accuracy")


@pytest.mark.parametrize(
    ("name", "isa", "in_low_precision", "told"),
    [
        (
            "int8-dynamic-pc@ort-cpu",
            ["avx2"],
            0.38,
            " (no VNNI on this processor; 62% of kernel time not in low precision)",
        ),
        ("int8-dynamic-pc@ort-cpu", ["avx2", "avx512_vnni"], 0.38, " (62% of kernel time not in low precision)"),
        ("int8-dynamic-pc@ort-cpu", ["avx2"], None, " (no VNNI on this processor)"),
        ("int4-g32-rtn@ort-cpu", ["avx2"], 0.95, ""),
        ("fp32-fused@ort-cpu", ["avx2"], 0.0, ""),
    ],
)
def test_a_slow_candidate_says_why(name: str, isa: list[str], in_low_precision: float | None, told: str) -> None:
    verdict = Verdict("speedup", "fail", 0.7, 1.05, "at_least", 0.68, 0.72, 0.95, 18)
    other = Verdict("drop", "fail", 0.05, 0.02, "at_most", 0.04, 0.06, 0.95, 900)
    changes = {"name": name, "verdicts": [other, verdict], "outcome": "failed", "coverage_time": in_low_precision}
    candidate = RESULT.candidates[0].model_copy(update=changes)
    assert why(candidate, "accuracy", isa) == f"drop above +2.00 pp; speedup below 1.05x{told}"


def test_a_disturbed_speed_is_not_judged() -> None:
    """Its accuracy, size and coverage are in the same row."""
    busy = Verdict(
        "speedup", "inconclusive", 1.2, 1.05, "at_least", reason="chromium took 0.9 cores; more", disturbed=True
    )
    candidate = RESULT.candidates[0].model_copy(update={"verdicts": [busy], "outcome": "inconclusive"})
    assert why(candidate, "accuracy") == "speedup not judged: chromium took 0.9 cores"


@pytest.mark.parametrize(
    ("outcome", "reason", "line", "first"),
    [
        ("promoted", "b is 2x", "promoted: b is 2x", "**promoted**: b is 2x"),
        ("awaiting_approval", "b waits", "awaiting approval: b waits", "**awaiting approval**: b waits"),
        ("error", "too busy: b", "error: too busy: b", "**error**: too busy: b"),
        ("no_variant", "no variant wins: of 2", "no variant wins: of 2", "**no variant wins**: of 2"),
        ("refused", "the data was refused", "the data was refused", "**the data was refused**"),
    ],
)
def test_one_headline_for_one_outcome(outcome: str, reason: str, line: str, first: str) -> None:
    result = RESULT.model_copy(update={"outcome": outcome, "reason": reason})
    assert sentence(result) == line
    assert verdict_markdown(result).splitlines()[0] == first
