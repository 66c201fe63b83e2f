"""The checks of pages find what they are for: each fault, planted alone, and none in a page without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import browser
from page_checks import NARROW, visit
from playwright.sync_api import Browser

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all pages."""
    with browser() as opened:
        yield opened


def write(folder: Path, body: str, head: str = "") -> Path:
    page = folder / "page.html"
    page.write_text(
        f'<!doctype html><html lang="en"><head><title>A page</title>{head}</head>'
        f"<body><main><h1>A page</h1>{body}</main></body></html>",
        encoding="utf-8",
    )
    return page


def test_a_sound_page_has_no_faults(chromium: Browser, tmp_path: Path) -> None:
    """Wide things in a box that scrolls, and links that lead away, are none."""
    (tmp_path / "own.js").write_text("console.warn('a warning is no error')")
    scrolled = '<div style="overflow-x: auto" tabindex="0"><div style="width: 3000px">wide</div></div>'
    picture, link = f'<img src="{PIXEL}" alt="a dot">', '<a href="https://elsewhere.example/">elsewhere</a>'
    page = write(tmp_path, scrolled + picture + link, '<script src="own.js"></script>')
    for dark in (False, True):
        with visit(chromium, page, width=NARROW, dark=dark) as view:
            assert view.faults() == []
            assert view.tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") is dark


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('<script>console.error("lost")</script>', ["console: lost"]),
        ("<script>nothing.here()</script>", ["script: nothing is not defined"]),
        ('<script src="gone.js"></script>', ["failed: file://", "gone.js"]),
        ('<link rel="stylesheet" href="https://fonts.example/a.css">', ["leaves: https://fonts.example/a.css"]),
        ('<img src="gone.png" alt="a picture" loading="lazy">', ["picture gone.png is missing"]),
        ('<div style="width: 500px">wide</div>', ["pixels wide in a window of 390", '<div style="width: 500px">']),
        ('<p style="color: #aaa; background: #fff">pale</p>', ["color-contrast", "insufficient color contrast"]),
        ("<table><tr><td>1</td></tr></table><button></button>", ["button-name"]),
    ],
)
def test_a_planted_fault_is_found(chromium: Browser, tmp_path: Path, body: str, words: list[str]) -> None:
    with visit(chromium, write(tmp_path, body), width=NARROW) as view:
        faults = "\n".join(view.faults())
    assert [word for word in words if word not in faults] == [], faults


def test_a_pale_text_of_the_dark_page_alone_is_found_there(chromium: Browser, tmp_path: Path) -> None:
    # With a background of its own: axe-core takes the browser's own dark one for white.
    style = "<style>@media (prefers-color-scheme: dark) { body { background: #111; color: #eee } p { color: #444 } }</style>"
    page = write(tmp_path, "<p>pale</p>", style)
    found = []
    for dark in (False, True):
        with visit(chromium, page, dark=dark) as view:
            found.append(any("color-contrast" in fault for fault in view.faults()))
    assert found == [False, True]


def test_a_rule_that_is_left_out_is_not_asked(chromium: Browser, tmp_path: Path) -> None:
    with visit(chromium, write(tmp_path, '<p style="color: #aaa; background: #fff">pale</p>')) as view:
        assert view.faults(without=("color-contrast",)) == []
