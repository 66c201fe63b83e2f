"""The page over several runs: what stands in its tables, and the page itself in a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browser import browser
from page_checks import NARROW, WIDE, visit
from report_data import BARE, CHOSEN, ERROR, EVIL, JOB, NAMES, NO_VARIANT, RESULT, Reader

from tasks.reporting.comparison import (
    ComparedRun,
    candidates_table,
    differences_table,
    outcomes_table,
    render_comparison,
    tell,
)
from tasks.reporting.formats import NO_VALUE
from tasks.reporting.pictures.comparison_picture import Ends, compare_spec
from tasks.reporting.tables import Cell
from validators.records.measurements import Estimate
from validators.records.result import ConfirmedResult, Result


def changed(result: Result, **changes: Any) -> Result:
    return result.model_copy(update=changes)


assert RESULT.source is not None and RESULT.inventory is not None and RESULT.baseline is not None
LATER = changed(
    RESULT,
    source=replace(RESULT.source, version="8"),
    inventory=RESULT.inventory | {"cpu": "AMD EPYC 9B14", "load_average": 7.5},
)
RUNS = [
    ComparedRun("ab" * 16, "2026-11-20 02:00", RESULT, JOB),
    ComparedRun("cd" * 16, "2026-11-21 02:00", LATER, JOB.model_copy(update={"objective": "size"})),
    ComparedRun("ef" * 16, "2026-11-22 02:00", NO_VARIANT, JOB),
]


def test_the_title_names_each_model_and_target_once() -> None:
    assert tell(RUNS) == "3 runs of text-topics version 7, text-topics version 8 on ort-cpu"


def test_a_row_has_what_was_chosen_as_confirmed_where_it_was() -> None:
    """And none of a run that chose nothing."""
    confirmed = ConfirmedResult(
        n=900,
        confidence=0.99,
        baseline_value=0.78,
        metric_value=0.775,
        metric_drop=Estimate(0.005, 0.0, 0.011),
        speedup_p50=Estimate(1.4, 1.35, 1.45),
        latency_p50_ms=1.5,
    )
    candidates = [
        one.model_copy(update={"confirmed": confirmed if one.name == CHOSEN else None}) for one in RESULT.candidates
    ]
    run = ComparedRun("a", "", changed(RESULT, candidates=candidates), JOB)
    plain, sure, none = outcomes_table([RUNS[0], run, RUNS[2]]).texts()
    assert (plain[5], plain[8]) == (CHOSEN, "1.51x (≥ 1.48x)")
    assert sure[6:10] == ("0.775 (accuracy)", "+0.50 pp (≤ +1.10 pp)", "1.40x (≥ 1.35x)", "1.50")
    assert none[4:6] == ("no_variant", NO_VALUE) and none[7:9] == (NO_VALUE, NO_VALUE)


def test_each_candidate_stands_beside_itself() -> None:
    """In the order of the first run that had it; a run without it has no figures."""
    matrix = {cells[0][1].text: [cell for _, cell in cells[1:]] for _, cells in candidates_table(RUNS).shown()}
    assert list(matrix) == list(NAMES)
    chosen = matrix[CHOSEN]
    assert chosen[0] == Cell("passed", "1.51x, +0.70 pp", pill="chosen")
    assert chosen[2] == Cell("", "not tried")
    failed = matrix["int4-g128-rtn@ort-cpu"]
    assert [(cell.text, cell.pill) for cell in failed] == [("failed", "")] * 3


def test_comparison_lists_only_differences_and_no_current_load() -> None:
    assert differences_table(RUNS).texts() == [
        ("source", "text-topics version 7", "text-topics version 8", "text-topics version 7"),
        ("processor", "Intel(R) Xeon(R) Platinum 8481C", "AMD EPYC 9B14", "Intel(R) Xeon(R) Platinum 8481C"),
        ("job: objective", "latency", "size", "latency"),
    ]
    assert not differences_table([RUNS[0], RUNS[0]])
    strict = JOB.model_copy(update={"gates": JOB.gates.model_copy(update={"max_drop": 0.01})})
    found = differences_table([RUNS[0], ComparedRun("x", "", RESULT, strict)])
    assert found.texts() == [("job: gates.max_drop", "None", "0.01")]


def test_drops_are_drawn_for_one_metric_alone() -> None:
    """Half a point of accuracy beside half a unit of an error would say nothing."""
    ends = [Ends("1", "a", Estimate(1.5, 1.4, 1.6), Estimate(0.005)), Ends("2", "none")]
    both, alone = compare_spec(ends, "accuracy"), compare_spec(ends, None)
    assert both is not None and alone is not None
    assert (len(both["hconcat"]), len(alone["hconcat"])) == (2, 1)
    speed, drop = (panel["data"]["values"] for panel in both["hconcat"])
    assert [(mark["low"], mark["value"], mark["high"]) for mark in speed] == [(1.4, 1.5, 1.6)]
    assert drop[0]["value"] == pytest.approx(0.5)
    assert compare_spec(ends[1:], "accuracy") is None


def test_hostile_text_is_escaped() -> None:
    assert RESULT.source is not None
    evil = changed(RESULT, reason=EVIL, target=EVIL, source=replace(RESULT.source, name=EVIL))
    text = render_comparison([ComparedRun(EVIL, EVIL, evil, JOB), RUNS[0]])
    assert EVIL not in text and "&lt;script&gt;" in text
    assert [tag for tag, _ in Reader(text).tags].count("script") == 1


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_comparison_is_without_fault(tmp_path: Path, width: int) -> None:
    """Of runs that ended in every way, with everything unfolded; sorted by speed, what chose nothing comes last."""
    page = tmp_path / "comparison.html"
    ended = [ComparedRun("1", "", ERROR, None), ComparedRun("2", "", BARE, JOB)]
    page.write_text(render_comparison([*RUNS, *ended]), encoding="utf-8")
    with browser() as chromium, visit(chromium, page, width=width) as view:
        view.tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert view.faults() == []
        view.tab.get_by_role("button", name="Speedup", exact=True).first.click()
        rows = view.tab.locator("table.runs tbody tr td:first-child").all_inner_texts()
        assert rows[:2] == ["1", "2"] and set(rows[2:]) == {"3", "4", "5"}
