"""Self-contained Data Docs sites: pages load nothing from the network, and the site holds no unused file.

A page can also become one file, for viewers without access to the files beside it: MLflow's preview, a mail.
"""

from __future__ import annotations

import base64
import mimetypes
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

ASSETS = Path(__file__).parent / "page_assets"
# Linked file names, with their paths below `static` in the site; None removes the link.
LINKS: dict[str, str | None] = {
    "all.min.css": "vendor/fontawesome-free/css/all.min.css",
    "bootstrap-datepicker.min.css": "vendor/bootstrap-datepicker/css/bootstrap-datepicker.min.css",
    "bootstrap-datepicker.min.js": "vendor/bootstrap-datepicker/js/bootstrap-datepicker.min.js",
    "bootstrap-prefers-dark.css": None,
    "bootstrap-table-filter-control.css": (
        "vendor/bootstrap-table/extensions/filter-control/bootstrap-table-filter-control.min.css"
    ),
    "bootstrap-table-filter-control.min.css": (
        "vendor/bootstrap-table/extensions/filter-control/bootstrap-table-filter-control.min.css"
    ),
    "bootstrap-table-filter-control.min.js": (
        "vendor/bootstrap-table/extensions/filter-control/bootstrap-table-filter-control.min.js"
    ),
    "bootstrap-table.min.css": "vendor/bootstrap-table/bootstrap-table.min.css",
    "bootstrap-table.min.js": "vendor/bootstrap-table/bootstrap-table.min.js",
    "bootstrap.min.css": "vendor/bootstrap/css/bootstrap.min.css",
    "bootstrap.min.js": "vendor/bootstrap/js/bootstrap.min.js",
    # Great Expectations puts these two into the site, but links one elsewhere and the other at a wrong depth.
    "favicon.ico": "images/favicon.ico",
    "logo-long.png": "images/logo-long.png",
    "jquery-3.7.1.min.js": "vendor/jquery/jquery.min.js",
    "popper.min.js": None,
    "vega@5": "vendor/vega/vega.min.js",
    "vega-embed@6": "vendor/vega-embed/vega-embed.min.js",
    "vega-lite@5": "vendor/vega-lite/vega-lite.min.js",
}
_OWN_STYLE = "vendor/page.css"
_TAG = re.compile(r"<(?:script|link|img)\b[^>]*>(?:\s*</script>)?")
_LINK = re.compile(r'(?<=\s)(src|href)="([^"]*)"')
# An anchor to another page of the site.
_ANCHOR = re.compile(r'<a([^>]*?)\shref="(?!#|https?:)[^"]*"')
_INTEGRITY = re.compile(r'\s(?:integrity|crossorigin)="[^"]*"')
# Half of a dark theme, with an external image; the other half is bootstrap-prefers-dark.css, which the site omits.
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(?:[^{}]*\{[^{}]*\})*[^{}]*\}")
# Advertisements for a newsletter and for tutorials, which cover the end of the page.
_FOOTER = re.compile(r"<footer\b.*?</footer>", re.DOTALL)
# Without a tab stop the keyboard cannot scroll a wide table. Tables are made in a later handler of the same event.
TAB_STOPS = """<script>
addEventListener("load", () => setTimeout(() => {
  for (const box of document.querySelectorAll(".fixed-table-body")) box.tabIndex = 0;
}));
</script>
"""
# Label that Great Expectations gives to in-memory data.
_NO_ASSET = " Data asset: None<br>"
_CSS_LINK = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")


def make_offline(site: Path) -> None:
    """Add the linked files to the Data Docs site in folder `site`, point its pages at them, and remove unused files.

    The function is idempotent.

    Raises:
        RuntimeError: a page would still load an external or a missing file.
    """
    static = site / "static"
    shutil.copytree(ASSETS, static / "vendor", dirs_exist_ok=True)
    pages = sorted(site.rglob("*.html"))
    for page in pages:
        to_static = "../" * (len(page.relative_to(site).parts) - 1) + "static/"
        before = page.read_text(encoding="utf-8")
        page.write_text(_rewrite(before, to_static), encoding="utf-8")
    _remove_unused(static)
    for page in pages:
        _check(page, site)


def write_alone(page: Path, target: Path) -> None:
    """Write a page of an offline site as one self-contained file; its links to other pages of the site become text."""

    def bring(tag: re.Match[str]) -> str:
        link = _LINK.search(tag[0])
        path = page.parent / unquote(link[2]) if link and not urlsplit(link[2]).scheme else None
        if link is None or path is None or not path.is_file():
            return tag[0]
        if path.suffix == ".css":
            return f"<style>{_bring_fonts(path)}</style>"
        if path.suffix == ".js":
            # `</script` ends an inline script, but not a script in a file.
            return f"<script>{path.read_text(encoding='utf-8').replace('</script', '<' + chr(92) + '/script')}</script>"
        return _LINK.sub(lambda _: f'{link[1]}="{_as_data(path)}"', tag[0], count=1)

    text = _TAG.sub(bring, page.read_text(encoding="utf-8"))
    target.write_text(_ANCHOR.sub(r"<a\1", text), encoding="utf-8")


def _bring_fonts(style: Path) -> str:
    def bring(link: re.Match[str]) -> str:
        if urlsplit(link[1]).scheme:
            return link[0]
        path = style.parent / urlsplit(link[1]).path
        # Fonts of unused icons are not vendored.
        return link[0].replace(link[1], _as_data(path) if path.is_file() else "data:,")

    return _CSS_LINK.sub(bring, style.read_text(encoding="utf-8"))


def _as_data(path: Path) -> str:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"


def _rewrite(text: str, to_static: str) -> str:
    def mend(tag: re.Match[str]) -> str:
        link = _LINK.search(tag[0])
        name = PurePosixPath(urlsplit(link[2]).path).name if link else ""
        if link is None or name not in LINKS:
            return tag[0]
        place = LINKS[name]
        if place is None:
            return ""
        return _INTEGRITY.sub("", _LINK.sub(f'{link[1]}="{to_static}{place}"', tag[0], count=1))

    text = _FOOTER.sub("", _DARK.sub("", _TAG.sub(mend, text)))
    text = text.replace(_NO_ASSET, "").replace("<html>", '<html lang="en">', 1)
    head = f'<link rel="stylesheet" href="{to_static}{_OWN_STYLE}">\n{TAB_STOPS}'
    return text if head in text else text.replace("</head>", f"{head}</head>", 1)


def _remove_unused(static: Path) -> None:
    """Remove unused files: Great Expectations adds 4 MB of fonts and animations, but the pages load an icon and a logo."""
    used = {static / place for place in LINKS.values() if place}
    for path in sorted(static.rglob("*"), reverse=True):  # children before their folder
        if path.is_relative_to(static / "vendor"):
            continue
        if path.is_dir():
            if not any(path.iterdir()):
                path.rmdir()
        elif path not in used:
            path.unlink()


def _check(page: Path, site: Path) -> None:
    reader = _PageReader()
    reader.feed(page.read_text(encoding="utf-8"))
    for link in reader.links:
        parts = urlsplit(link)
        if parts.scheme == "data" or not link:
            continue
        if parts.scheme or parts.netloc or not (page.parent / unquote(parts.path)).is_file():
            raise RuntimeError(
                f"found: {page.relative_to(site)} loads {link}; expected: a file of the site; "
                "fix: vendor it (infra/vendor_page_assets.py) and name it in LINKS of validators/calibration/offline_pages.py"
            )


class _PageReader(HTMLParser):
    """HTML parser that collects the URLs a browser loads with a page, without its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        self.links += [link.strip() for name, value in attrs for link in _read_attribute(tag, name, value or "")]

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002  # the base class names it
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.links += _CSS_LINK.findall(data)


def _read_attribute(tag: str, name: str, value: str) -> Iterator[str]:
    if name in ("src", "poster", "data", "background") or (name == "href" and tag in ("link", "base", "image", "use")):
        yield value
    elif name == "srcset":
        yield from (piece.split()[0] for piece in value.split(",") if piece.strip())
    elif name == "style":
        yield from _CSS_LINK.findall(value)
