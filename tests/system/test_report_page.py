"""The report in a real browser with the network blocked: what it shows, how it sorts, and what may be wrong with a page."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import browser
from page_checks import NARROW, WIDE, violations, visit
from playwright.sync_api import Browser, Page
from report_data import (
    CHOSEN,
    DECODER,
    ERROR,
    JOB,
    NAMES,
    NO_VARIANT,
    RECOVERED,
    REFUSED,
    TRIALS,
    with_samples,
)

from tasks.records.run_lookup import Recorded
from tasks.records.run_pages import runs_table
from tasks.reporting.page import About, render_page
from tasks.reporting.pictures.run_pictures import draw_pictures
from tasks.reporting.templates import render
from validators.calibration.judge import judge_calibration
from validators.job.job_data import CalibrationBounds
from validators.records.result import Result
from validators.records.run import DataFile
from validators.samples.datasets import Samples

RUN = Recorded(
    *("0" * 32, "run", "models:/tiny/1", "ort-cpu", "FINISHED", "winner", "b is fast", CHOSEN, "a device", ""),
    *("2026-11-28 10:00", "2026-11-28 10:05"),
)
ABOUT = About(
    "0" * 32, "2026-11-28 10:00 UTC", [("run in MLflow", "0" * 32, "http://127.0.0.1/#/run"), ("quantgate", "1", "")]
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all pages."""
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page for each kind of end, each with all that it can show."""
    folder = tmp_path_factory.mktemp("pages")
    trials = with_samples(TRIALS, folder)
    kinds: dict[str, Result] = {
        "promoted": RECOVERED,
        "none": NO_VARIANT,
        "refused": REFUSED,
        "error": ERROR,
        "decoder": DECODER,
    }
    for name, result in kinds.items():
        shown = trials if result.candidates else ()
        text = render_page(result, JOB, shown, draw_pictures(result, JOB.gates, shown), ABOUT)
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in kinds}


@pytest.fixture(scope="module")
def calibration_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of samples twice as large as their reference, as one file."""

    def draw(n: int, seed: int, scale: float) -> Samples:
        values = np.random.default_rng(seed).normal(1.0, scale, (n, 8)).astype(np.float32)
        return Samples(DataFile(Path("x.npz"), "0" * 64, n), {"x": values}, None)

    folder = tmp_path_factory.mktemp("calibration")
    judge_calibration(draw(128, 1, 2.0), draw(1000, 2, 1.0), None, None, CalibrationBounds(), folder, seed=7)
    return folder / "calibration.html"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_whole_report_is_without_fault(chromium: Browser, pages: dict[str, Path], width: int, dark: bool) -> None:
    """With everything unfolded: contrast, names, order of headings, nothing wider than the window, nothing asked for."""
    with visit(chromium, pages["promoted"], width=width, dark=dark) as view:
        view.tab.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        assert view.faults() == []


@pytest.mark.parametrize("kind", ["none", "refused", "error", "decoder"])
def test_a_report_of_any_other_end_is_without_fault(chromium: Browser, pages: dict[str, Path], kind: str) -> None:
    """No champion, refused data, an error, a decoder: narrow, where most can go wrong."""
    with visit(chromium, pages[kind], width=NARROW) as view:
        assert view.faults() == []


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_calibration_page_has_no_serious_fault(
    chromium: Browser, calibration_page: Path, width: int, dark: bool
) -> None:
    """Contrast, language, and tables that the keyboard can scroll; landmarks are Great Expectations' own."""
    landmarks = ("region", "landmark-one-main", "landmark-unique", "page-has-heading-one")
    with visit(chromium, calibration_page, width=width, dark=dark) as view:
        assert violations(view.tab, without=landmarks) == []


def first_column(tab: Page) -> list[str]:
    return [text.split("\n")[0] for text in tab.locator("table.verdicts tbody th").all_inner_texts()]


def test_verdict_table_sorts_both_ways_with_baseline_on_top(chromium: Browser, pages: dict[str, Path]) -> None:
    """By number or by name; what has no value stays at the end; by keyboard too."""
    with visit(chromium, pages["promoted"]) as view:
        assert first_column(view.tab) == ["baseline", *NAMES]
        fastest = view.tab.get_by_role("button", name="p50 ms")
        fastest.click()
        upward = first_column(view.tab)
        assert upward[:3] == ["baseline", CHOSEN, "int8-dynamic-pc+fused@ort-cpu"]
        assert set(upward[-2:]) == {"int8-static-entropy-pc@ort-cpu", "fp8-amax-pc@ort-cpu"}
        fastest.press("Enter")
        downward = first_column(view.tab)
        assert downward[1] == "int8-static-minmax-pt-all-s8s8@ort-cpu" and downward[-3] == CHOSEN
        assert set(downward[-2:]) == set(upward[-2:])
        assert view.tab.locator("th[aria-sort]").all_inner_texts() == ["p50 ms"]
        view.tab.get_by_role("button", name="Candidate").click()
        assert first_column(view.tab) == ["baseline", *sorted(NAMES)]


def test_a_mark_tells_its_figures_and_a_name_opens_its_gates(chromium: Browser, pages: dict[str, Path]) -> None:
    """Under the mouse; and from the table to what a verdict rests on."""
    with visit(chromium, pages["promoted"]) as view:
        mark = view.tab.locator(f"figure.picture [aria-label^='{CHOSEN}']")
        mark.hover()
        assert (view.tab.locator(".tip").text_content() or "").startswith(f"{CHOSEN} (chosen): 1.51x")
        view.tab.locator("h1").hover()
        assert view.tab.locator(".tip").count() == 0
        view.tab.get_by_role("link", name=CHOSEN).click()
        opened = view.tab.locator("details[open] summary code")
        opened.first.wait_for()  # the page opens it after the jump
        assert opened.all_inner_texts() == [CHOSEN]


def test_contents_lead_to_every_section(chromium: Browser, pages: dict[str, Path]) -> None:
    with visit(chromium, pages["promoted"]) as view:
        links = view.tab.get_by_role("navigation", name="Contents").get_by_role("link")
        assert links.all_inner_texts() == view.tab.locator("main h2[id]").all_inner_texts()
        links.filter(has_text="Where the time went").click()
        assert view.tab.url.endswith("#seconds")


def test_the_page_of_all_runs_is_without_fault(chromium: Browser, pages: dict[str, Path]) -> None:
    """It leads to the reports that are here, sorts, and is read on a telephone."""
    folder = pages["promoted"].parent
    runs = [replace(RUN, id=str(number) * 32, outcome=outcome) for number, outcome in enumerate(("promoted", "error"))]
    (folder / runs[0].id).mkdir(exist_ok=True)
    (folder / runs[0].id / "report.html").write_text(pages["promoted"].read_text())
    page = folder / "index.html"
    page.write_text(render("index.html.j2", runs=runs_table(runs, folder), told="2 runs."))
    with visit(chromium, page, width=NARROW) as view:
        assert view.faults() == []
        view.tab.get_by_role("button", name="Outcome").click()
        assert view.tab.locator("tbody th").all_inner_texts() == ["11111111", "00000000"]
        assert view.tab.get_by_role("link").all_inner_texts() == ["00000000"]
        view.tab.get_by_role("link").click()
        assert view.tab.locator(".outcome .pill").first.inner_text() == "promoted"


def test_without_scripts_and_on_paper_every_picture_is_there(chromium: Browser, pages: dict[str, Path]) -> None:
    """A mail program runs none, and paper has none."""
    context = chromium.new_context(java_script_enabled=False, viewport={"width": WIDE, "height": 900})
    tab = context.new_page()
    tab.goto(pages["promoted"].as_uri())
    drawn = [figure.bounding_box() for figure in tab.locator("section > figure svg").all()]
    assert len(drawn) == 7 and all(box and box["width"] > 600 and box["height"] > 50 for box in drawn)
    context.close()
    with visit(chromium, pages["promoted"], media="print") as view:
        view.tab.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert view.tab.locator("details:not([open])").count() == 0, "paper cannot be unfolded"
        assert view.tab.locator("section > figure svg").count() == 7
        assert len(view.tab.pdf(format="A4")) > 50_000
