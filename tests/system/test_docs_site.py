"""The documentation site: it builds, a link that leads nowhere ends the build, and its pages are whole in a real browser."""

from __future__ import annotations

import doctest
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from browser import WAIT_MS, browser
from docs_pages import ROOT
from page_checks import NARROW, WIDE, missing_pictures, overflows, visit
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
# The corner above names of rows is empty in many tables; screen readers tell the row by its first cell.
WITHOUT = ("empty-table-header",)
# One of each: tables and links, code of each kind, generated pages with links in code, a picture, a box with a warning.
LOOKED_AT = ("index", "install", "tutorial", "ci", "reference/commands", "how-calibration-is-judged", "gpu-worker")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        str(root / "mkdocs.yml"),
        "--site-dir",
        str(site),
    ]
    # A proxy that is not there: nothing may be fetched while the pages are made.
    env = os.environ | {
        "NO_MKDOCS_2_WARNING": "true",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all pages."""
    with browser() as opened:
        yield opened


@pytest.mark.golden
def test_the_site_builds_without_a_warning(site: Path) -> None:
    """Part of `make test`: a heading that was renamed breaks links on other pages."""
    assert (site / "index.html").is_file()


@pytest.mark.parametrize(("width", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide and light", "narrow and dark"])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_is_whole_and_can_be_read(chromium: Browser, address: str, name: str, width: int, dark: bool) -> None:
    """Contrast, names of landmarks and the rest of axe-core's rules."""
    with visit(chromium, f"{address}/{name}.html", width=width, dark=dark) as view:
        assert view.faults(WITHOUT) == []
        scheme = "slate" if dark else "default"
        assert view.tab.locator("body").get_attribute("data-md-color-scheme") == scheme


def test_every_page_is_whole_when_opened_as_a_file(chromium: Browser, site: Path) -> None:
    """At both widths, with its pictures and no error, and no request that fails or leaves. 404.html is for servers alone."""
    pages = sorted(path for path in site.rglob("*.html") if path.name != "404.html")
    assert len(pages) > 35
    faults = {}
    with visit(chromium, site / "index.html") as view:
        for path in pages:
            name = str(path.relative_to(site))
            view.heard.clear()
            view.tab.set_viewport_size({"width": NARROW, "height": 900})
            view.tab.goto(path.as_uri())
            found = missing_pictures(view.tab) + overflows(view.tab)
            view.tab.set_viewport_size({"width": WIDE, "height": 900})
            faults[name] = [*view.heard, *found, *overflows(view.tab)]
    assert {name: found for name, found in faults.items() if found} == {}


def test_a_page_reads_as_a_file(chromium: Browser, site: Path) -> None:
    with visit(chromium, site / "tutorial.html") as view:
        assert overflows(view.tab) == []
        view.tab.get_by_role("link", name="your own model").last.click()
        expect(view.tab.get_by_role("heading", level=1)).to_contain_text("Bring your own model")
        view.tab.get_by_role("navigation", name="Navigation").get_by_role("link", name="Install", exact=True).click()
        expect(view.tab.get_by_role("heading", level=1)).to_contain_text("Install")


@pytest.mark.parametrize(("dark", "picture"), [(False, "report.png"), (True, "report-dark.png")])
def test_home_shows_the_report_in_its_colours(chromium: Browser, site: Path, dark: bool, picture: str) -> None:
    with visit(chromium, site / "index.html", dark=dark) as view:
        assert view.heard + missing_pictures(view.tab) == []
        shown = view.tab.locator("article img").evaluate_all("all => all.map(one => one.currentSrc)")
        assert shown == [(site / "pictures" / picture).as_uri()]


# A part of a name as pages write it, or a whole name, and a page that has it: the first one found.
SOUGHT = {
    "csv": "Judge two files",
    "npz": "Bring your own model",
    "parquet": "Bring your own model",
    "min_speedup": "Gates",
    "max_drop": "Gates",
    "int8-static-mse-pc": "Candidates",
}


@pytest.mark.parametrize("words", SOUGHT)
def test_search_of_a_file_finds_parts_of_names(chromium: Browser, site: Path, words: str) -> None:
    """By the theme's own search, which a page from a file runs without a worker."""
    with visit(chromium, site / "index.html") as view:
        box = view.tab.get_by_role("textbox", name="Search").first
        box.click()
        # One key alone is heard: the search is asked once.
        box.fill(words[:-1])
        box.press_sequentially(words[-1])
        expect(view.tab.locator(".md-search-result__item h1").first).to_have_text(SOUGHT[words], timeout=WAIT_MS)
        assert view.heard == []


def test_the_search_finds_a_command(chromium: Browser, address: str) -> None:
    with visit(chromium, f"{address}/index.html") as view:
        # The index is fetched when the box is entered.
        box = view.tab.get_by_role("textbox", name="Search").first
        box.click()
        box.press_sequentially("suggest-calibration")
        expect(view.tab.locator(".md-search-result__item").first).to_contain_text(
            "suggest-calibration", timeout=WAIT_MS
        )
        assert view.heard == []


def test_the_examples_of_the_hooks_hold() -> None:
    """They are in no package, where doctests would be collected."""
    spec = spec_from_file_location("docs_site", ROOT / "infra" / "docs_site.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert doctest.testmod(module) == (0, 2)


BROKEN = {
    "[x](nowhere.md)": "contains a link 'nowhere.md'",
    "[x](verdicts.md#nowhere)": "'verdicts.md#nowhere'",
    "[x](reference/job.md#nowhere)": "'reference/job.md#nowhere'",
    "[x](../benchmarks/README.md#nowhere)": "'benchmarks/README.md#nowhere'",
    "![x](pictures/nowhere.png)": "'pictures/nowhere.png'",
    "[x](/verdicts.md)": "absolute link '/verdicts.md'",
}


def test_links_that_lead_nowhere_end_the_build(tmp_path: Path) -> None:
    """To a page, to a place on one that is kept, generated or beside docs/, to a picture; one warning each."""
    for name in ("docs", "infra", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("mkdocs.yml", "CHANGELOG.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, tmp_path)
    page = tmp_path / "docs" / "engines.md"
    page.write_text("\n\n".join([page.read_text(encoding="utf-8"), *BROKEN]), encoding="utf-8")
    done = build(tmp_path, tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode != 0 and f"Aborted with {len(BROKEN)} warnings" in said, said
    assert [words for words in BROKEN.values() if words not in said] == []
