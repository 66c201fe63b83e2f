"""What must hold of any page that people see: `with visit(chromium, address) as view: assert view.faults() == []`.

The page sees no network: what is not of its own origin is refused and counts as a fault. `chromium` is `browser.browser()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from browser import WAIT_MS
from playwright.sync_api import Browser, Page, Request, Route

WIDE, NARROW = 1280, 390

# Lazy pictures are loaded first: the rest of the page is looked at as one who has read to its end has it.
_PICTURES = """async () => {
  const pictures = [...document.images];
  pictures.forEach(picture => { picture.loading = 'eager'; });
  await Promise.all(pictures.map(picture => picture.decode().catch(() => {})));
  return pictures.filter(picture => !picture.naturalWidth)
                 .map(picture => `picture ${picture.getAttribute('src') || picture.currentSrc} is missing`);
}"""

# What sticks out, without what lies in a box that scrolls or clips; of nested elements the innermost.
_OVERFLOW = """() => {
  const width = window.innerWidth, page = document.scrollingElement.scrollWidth;
  if (page <= width) return [];
  const held = element => {
    for (let box = element.parentElement; box && box !== document.body; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== 'visible') return true;
    return false;
  };
  const wide = [...document.body.querySelectorAll('*')]
    .filter(element => element.getBoundingClientRect().right > width + 1 && !held(element));
  const inner = wide.filter(element => !wide.some(other => other !== element && element.contains(other)));
  const told = inner.slice(0, 5).map(element => element.outerHTML.slice(0, 80));
  return [`${page} pixels wide in a window of ${width}: ${told.join(' ... ')}`];
}"""


@dataclass
class View:
    """A page that is open, with all that it complained of so far."""

    tab: Page
    heard: list[str] = field(default_factory=list)
    """Errors of scripts and of the console, requests that failed, requests that wanted to leave."""

    def faults(self, without: tuple[str, ...] = ()) -> list[str]:
        """Everything that is wrong with the page as it is now; `without` names rules of axe-core to leave out, with a reason
        beside the call."""
        seen = missing_pictures(self.tab) + overflows(self.tab) + violations(self.tab, without)
        return self.heard + seen

    def keep(self, path: Path) -> None:
        """A picture of the whole page, to look at."""
        self.tab.screenshot(path=path, full_page=True)


@contextmanager
def visit(
    opened: Browser,
    address: str | Path,
    *,
    width: int = WIDE,
    dark: bool = False,
    media: Literal["print"] | None = None,
    until: Literal["load", "networkidle"] = "networkidle",
) -> Iterator[View]:
    """Open a page, a file or an address on this machine, and wait until it has loaded all that it asks for.

    A page that asks its server again and again is never done with it: `until="load"`.
    """
    where = address.absolute().as_uri() if isinstance(address, Path) else address
    context = opened.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light", reduced_motion="reduce"
    )
    context.set_default_timeout(WAIT_MS)
    view = View(context.new_page())
    context.route("**/*", lambda route: _keep_home(route, where, view.heard))
    view.tab.on("console", lambda said: view.heard.append(f"console: {said.text}") if said.type == "error" else None)
    view.tab.on("pageerror", lambda error: view.heard.append(f"script: {error}"))
    view.tab.on("requestfailed", lambda asked: _failed(asked, view.heard))
    view.tab.on(
        "response", lambda got: view.heard.append(f"{got.status}: {got.url[:200]}") if got.status >= 400 else None
    )
    try:
        if media:
            view.tab.emulate_media(media=media)
        view.tab.goto(where, wait_until=until)
        yield view
    finally:
        # What the page asks for just now ends with it, and is no error of whoever looks.
        context.unroute_all(behavior="ignoreErrors")
        context.close()


def _failed(asked: Request, heard: list[str]) -> None:
    # What a page still asked for when it was left for the next one was cut short by that, and failed at nothing.
    if asked.failure != "net::ERR_ABORTED":
        heard.append(f"failed: {asked.url[:200]}: {asked.failure}")


def _keep_home(route: Route, where: str, heard: list[str]) -> None:
    asked, home = urlsplit(route.request.url), urlsplit(where)
    if asked.scheme in ("data", "blob") or (asked.scheme, asked.netloc) == (home.scheme, home.netloc):
        route.continue_()
    else:
        heard.append(f"leaves: {route.request.url[:200]}")
        route.abort()


def missing_pictures(tab: Page) -> list[str]:
    """Pictures that show nothing."""
    return list(tab.evaluate(_PICTURES))


def overflows(tab: Page) -> list[str]:
    """What makes the page wider than its window, which then has to be pushed about sideways."""
    return list(tab.evaluate(_OVERFLOW))


def violations(tab: Page, without: tuple[str, ...] = ()) -> list[str]:
    """What axe-core finds: contrast of text, names of controls, order of headings, tables without headers and more.

    A page that is dark without a background colour of its own is taken for a white one.
    """
    options: dict[str, Any] = {"resultTypes": ["violations"], "rules": {rule: {"enabled": False} for rule in without}}
    found = Axe().run(tab, options=options).response["violations"]
    return [f"{rule['id']}: {node['target']}: {_summary(node)}" for rule in found for node in rule["nodes"]]


def _summary(node: dict[str, Any]) -> str:
    return " ".join(str(node["failureSummary"]).split())
