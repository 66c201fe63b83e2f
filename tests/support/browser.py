"""A headless Chromium for the tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Until something is there; a busy machine takes its time.
WAIT_MS = 120_000


@contextmanager
def browser() -> Iterator[Browser]:
    """The browser of this machine."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "no Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield opened
        finally:
            opened.close()


@contextmanager
def page(opened: Browser, failed: Path) -> Iterator[Page]:
    """A fresh page; on a failure its picture is kept as `failed`."""
    context = opened.new_context(viewport={"width": 1400, "height": 1000})
    tab = context.new_page()
    tab.set_default_timeout(WAIT_MS)
    try:
        yield tab
    except BaseException:
        tab.screenshot(path=failed, full_page=True)
        raise
    finally:
        context.close()
