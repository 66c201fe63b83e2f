"""Prefect's pages in a real browser: the form of a job, the page of a run with its artifacts, the question and its answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from browser import WAIT_MS, browser, page
from conftest import Tiny
from deployed import Service
from page_checks import View, missing_pictures, visit
from playwright.sync_api import Browser, Locator, Page, expect
from stack import AUTH, Stack, wait_until

STATIC = "int8-static-minmax-pc@ort-cpu"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Tiny) -> Iterator[Service]:
    """The whole service with two models."""
    service = Service(Stack(tmp_path_factory.mktemp("service"), on_postgres=True))
    try:
        service.start_all(tiny.model, "asked", "other", "formed")
        yield service
    finally:
        service.stack.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all pages."""
    with browser() as opened:
        yield opened


@pytest.fixture
def tab(chromium: Browser, service: Service, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A fresh page of Prefect's; what it showed when a test failed is kept."""
    with page(chromium, service.stack.root / f"{request.node.name}.png") as opened:
        opened.goto(f"{service.site}/sign-in#{AUTH}")
        opened.get_by_text("Active Work Pools").wait_for()
        yield opened


def job(tiny: Tiny, name: str, **approval: Any) -> dict[str, Any]:
    """A job on a registered model, with an approval."""
    return tiny.job(source=f"models:/{name}/1", objective="size", approval={"required": True} | approval)


def setting(tab: Page, title: str) -> Locator:
    """The part of a form under the first title of these words."""
    words = re.compile(rf"^{re.escape(title)}( \(Optional\))?$")
    named = tab.locator(".schema-form-property__label", has_text=words).first
    return named.locator("xpath=ancestor::*[contains(concat(' ', @class, ' '), ' schema-form-property ')][1]")


def choose(tab: Page, at: Locator, option: str) -> None:
    """Choose in a list: it opens by its arrow."""
    at.locator(".p-select-button__icon").click()
    tab.locator(".p-select-option", has_text=option).click()


def see_table(tab: Page, service: Service, run: str, key: str) -> list[list[str]]:
    """The first table of an artifact of a flow run, from its page."""
    asked = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": [key]}}}
    (artifact,) = service.stack.ask("/artifacts/filter", asked)
    tab.goto(f"{service.site}/artifacts/artifact/{artifact['id']}")
    rows = tab.locator("table").first.locator("tbody tr")
    rows.first.wait_for()
    return [row.locator("td").all_inner_texts() for row in rows.all()]


def test_a_form_that_is_wrong_says_so_and_one_that_is_right_runs(service: Service, tiny: Tiny, tab: Page) -> None:
    """Bounds are held before anything runs; the run's page has the outcome, and its artifacts the figures of the result."""
    tab.goto(f"{service.site}/deployments/deployment/{service.deployment('quantize/quantize-model')}/run")
    newer = tab.context.new_page()
    newer.goto(tab.url.replace("/deployments/", "/v2/deployments/", 1))
    # Those that a job needs come first, although PostgreSQL does not keep the order of keys. Fields appear one after the other.
    for at, title in enumerate(("job", "Source", "Data", "Calibration (Optional)", "Evaluation", "Label (Optional)")):
        expect(tab.locator(".schema-form-property__label").nth(at)).to_have_text(title, timeout=WAIT_MS)
        expect(newer.locator("label").nth(at + 1)).to_have_text(title, timeout=WAIT_MS)
    given = tiny.job()["data"]
    assert isinstance(given, dict)
    for title, text in (
        ("Source", "models:/formed/1"),
        ("Calibration", given["calibration"]),
        ("Evaluation", given["evaluation"]),
    ):
        setting(tab, title).locator("textarea").fill(str(text))
    # A select with the default in it, a list in place of the default, a number that is taken off.
    expect(setting(tab, "Target").locator(".p-select-button__value")).to_have_text("ort-cpu", timeout=WAIT_MS)
    choose(tab, setting(tab, "Objective"), "size")
    names = setting(tab, "Candidates")
    names.get_by_role("button", name="names").click()
    names.get_by_role("button", name="Add item").click()
    names.locator("textarea").fill(STATIC)
    for title in ("Min speedup", "Max other load"):
        setting(tab, title).get_by_role("button", name="None").click()
    setting(tab, "Confidence").locator("input").fill("2")
    assert service.runs() == []
    tab.get_by_role("button", name="Submit").click()
    expect(tab.get_by_text("'job.gates.confidence'. Failure reason: 2 is greater than").first).to_be_visible(
        timeout=WAIT_MS
    )
    assert service.runs() == []
    setting(tab, "Confidence").locator("input").fill("0.9")
    tab.get_by_role("button", name="Submit").click()
    tab.wait_for_url("**?tab=Runs")
    (run,) = service.runs()
    assert service.wait_for(run, "COMPLETED")["name"] == "Promoted"
    tab.goto(f"{service.site}/runs/flow-run/{run}")
    expect(tab.get_by_text("Promoted").first).to_be_visible(timeout=WAIT_MS)
    result = service.result(run)
    assert (result["outcome"], result["chosen"]) == ("promoted", STATIC)
    assert service.champion("formed") == "1"
    rows = {row[0].split()[0]: row for row in see_table(tab, service, run, "verdict")}
    (candidate,) = result["candidates"]
    assert rows[STATIC][2] == f"{candidate['metric_value']:.3f}"
    assert rows["baseline"][2] == f"{result['baseline']['value']:.3f}"


# What the pages of MLflow 3.17.2 and Prefect 3.8.8 ask their own servers for in vain, whatever they show.
THEIRS = ("/ico/undefined.svg", "/mlflow/users/current")


def look(chromium: Browser, address: str) -> AbstractContextManager[View]:
    """A page of a server's, which asks it for news as long as it is open."""
    return visit(chromium, address, until="load")


def faults_of(view: View) -> list[str]:
    """What is wrong with a page of somebody else's: what it cannot load, its pictures, and what would leave the machine.

    Contrast and width are theirs. The console repeats each answer that was an error, without its address.
    """
    ours = [
        one for one in view.heard if not one.endswith(THEIRS) and not one.startswith("console: Failed to load resource")
    ]
    return ours + missing_pictures(view.tab)


def test_the_pages_of_a_run_show_it_without_a_network(service: Service, chromium: Browser) -> None:
    """Of the run above: Prefect's with its artifacts; MLflow's with a nested run a candidate, the pictures, the version."""
    (run,) = service.runs()
    record = service.record(run)["info"]
    with look(chromium, f"{service.site}/sign-in#{AUTH}") as view:
        expect(view.tab.get_by_text("Active Work Pools")).to_be_visible(timeout=WAIT_MS)
        view.tab.goto(f"{service.site}/runs/flow-run/{run}?tab=Artifacts")
        view.heard.clear()  # what the dashboard still asked for was given up
        for told in ("Promoted", f"result: {STATIC}", "as fast"):
            expect(view.tab.get_by_text(told).first).to_be_visible(timeout=WAIT_MS)
        view.tab.get_by_role("link", name="Artifacts").or_(view.tab.get_by_text("Artifacts", exact=True)).first.click()
        for key in ("verdict", "candidates", "report"):
            expect(view.tab.get_by_text(key, exact=True).first).to_be_visible(timeout=WAIT_MS)
        assert faults_of(view) == []
    server = service.report_of(run).partition("/#/")[0]
    of_run = f"{server}/#/experiments/{record['experiment_id']}/runs/{record['run_id']}"
    with look(chromium, of_run) as view:
        expect(view.tab.get_by_role("link", name=STATIC).first).to_be_visible(timeout=WAIT_MS)
        assert faults_of(view) == []
    with look(chromium, f"{of_run}/artifacts/report/pareto.png") as view:
        picture = view.tab.locator("img[src^='blob:'], img[src^='data:image/png'], img[src*='pareto']").first
        expect(picture).to_be_visible(timeout=WAIT_MS)
        assert faults_of(view) == []
    with look(chromium, service.report_of(run)) as view:
        report = view.tab.frame_locator("iframe").first
        expect(report.locator("figure.picture svg").first).to_be_visible(timeout=WAIT_MS)
        assert faults_of(view) == []
    with look(chromium, f"{server}/#/models/formed-quantized/versions/1") as view:
        expect(view.tab.get_by_text("Approved for").first).to_be_visible(timeout=WAIT_MS)
        assert faults_of(view) == []


def test_a_run_that_asks_is_suspended_until_somebody_approves(service: Service, tiny: Tiny, tab: Page) -> None:
    """The question is on the run's page with the verdicts; the answer is in the result, the registry and the version."""
    run = service.start("quantize/quantize-model", {"job": job(tiny, "asked")})
    assert service.wait_for(run, "PAUSED")["name"] == "Suspended"
    record = service.record(run)
    assert (record["info"]["status"], record["tags"]["quantgate.outcome"]) == ("RUNNING", "awaiting_approval")
    assert service.champion("asked") is None
    # Said once the run is suspended, by its process that ends.
    wait_until(lambda: service.tags("asked")["quantgate.ort-cpu.status"] == "awaiting_approval")
    assert any(row[:2] == [f"{STATIC} (chosen)", "passed"] for row in see_table(tab, service, run, "approval"))

    tab.goto(f"{service.site}/runs/flow-run/{run}")
    tab.get_by_role("button", name="Resume").click()
    question = tab.get_by_role("dialog")
    expect(question).to_contain_text("would become asked-quantized@champion-ort-cpu", timeout=WAIT_MS)
    question.get_by_role("button", name="Submit").click()
    expect(question).to_contain_text("'decision' is a required property", timeout=WAIT_MS)
    choose(tab, question, "approve")
    setting(tab, "Who").locator("textarea").fill("Ada | <b>*")
    setting(tab, "Comment").locator("textarea").fill("as agreed")
    question.get_by_role("button", name="Submit").click()
    assert service.wait_for(run, "COMPLETED")["name"] == "Promoted"

    result = service.result(run)
    assert {**result["sign_off"], "at": ""} == {
        "decision": "approved",
        "by": "Ada | <b>*",
        "comment": "as agreed",
        "at": "",
    }
    assert service.champion("asked") == "1"
    tags = service.tags("asked-quantized")
    assert (tags["quantgate.approved_by"], tags["quantgate.approval_comment"]) == ("Ada | <b>*", "as agreed")
    ended = service.record(run)
    assert (ended["info"]["run_id"], ended["info"]["status"]) == (record["info"]["run_id"], "FINISHED")
    assert not any(candidate["cached"] is False for candidate in result["candidates"]), "made again after the answer"
    tab.goto(service.report_of(run))
    report = tab.frame_locator("iframe").first
    expect(report.get_by_role("heading", level=1)).to_be_visible(timeout=WAIT_MS)


def test_unanswered_question_expires_and_second_try_is_rejected(service: Service, tiny: Tiny) -> None:
    """Prefect fails the run by itself; the sweep records it. Tried again, it asks anew; nothing is ever promoted."""
    run = service.start("quantize/quantize-model", {"job": job(tiny, "other", expires_hours=0.001)})
    assert service.wait_for(run, "FAILED")["message"] == "The flow was paused and never resumed."
    late = service.command("approve", run)
    assert late.returncode == 2 and "no runs" in late.stderr
    service.wait_for(service.start("sweep/nightly-sweep", {}), "COMPLETED")
    settled = service.record(run)
    assert (settled["info"]["status"], settled["tags"]["quantgate.outcome"]) == ("FINISHED", "rejected")
    tags = service.tags("other")
    assert (
        tags["quantgate.ort-cpu.status"] == "rejected" and "nobody answered in time" in tags["quantgate.ort-cpu.reason"]
    )

    again = service.start("quantize/quantize-model", {"job": job(tiny, "other")})
    service.wait_for(again, "PAUSED")
    listed = service.command("approvals").stdout
    assert again in listed and STATIC in listed and run not in listed
    told = service.command("reject", again, "--comment", "not before the holidays", "--who", "Grace")
    assert told.returncode == 0, told.stderr
    assert service.wait_for(again, "COMPLETED")["name"] == "Rejected"
    assert service.result(again)["outcome"] == "rejected" and service.champion("other") is None
    reason = service.tags("other")["quantgate.ort-cpu.reason"]
    assert "rejected by Grace" in reason and reason.endswith("not before the holidays")
