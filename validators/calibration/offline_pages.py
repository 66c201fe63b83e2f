"""Makes a Data Docs site whole: its pages load nothing from the network, and nothing lies in it that no page loads.

And makes one file of a page, for where the files beside it do not come along: MLflow's preview, a mail.
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
# What the pages link, by the file name, and where below `static` the site has it; None is what they do without.
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
    # These two Great Expectations puts into the site itself, and then links one elsewhere and the other at a wrong depth.
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
# An anchor that leads to another page of the site.
_ANCHOR = re.compile(r'<a([^>]*?)\shref="(?!#|https?:)[^"]*"')
_INTEGRITY = re.compile(r'\s(?:integrity|crossorigin)="[^"]*"')
# Half of a dark theme, and a picture from elsewhere in it: the other half is bootstrap-prefers-dark.css.
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(?:[^{}]*\{[^{}]*\})*[^{}]*\}")
# An advertisement for a newsletter and one for tutorials, both laid over the end of the page.
_FOOTER = re.compile(r"<footer\b.*?</footer>", re.DOTALL)
# What it says of any table that is judged from memory.
_NO_ASSET = " Data asset: None<br>"
_CSS_LINK = re.compile(r"""(?:url\(\s*|@import\s+)["']?([^"')\s;]+)""")


def make_offline(site: Path) -> None:
    """Give the Data Docs site in folder `site` what its pages load, point them at it, and remove what none of them loads.

    Done a second time, it changes nothing.

    Raises:
        RuntimeError: a page would still load something from elsewhere, or something that is not there.
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
    """Write a page of an offline site as one file that loads nothing; its links to other pages of the site become text."""

    def bring(tag: re.Match[str]) -> str:
        link = _LINK.search(tag[0])
        path = page.parent / unquote(link[2]) if link and not urlsplit(link[2]).scheme else None
        if link is None or path is None or not path.is_file():
            return tag[0]
        if path.suffix == ".css":
            return f"<style>{_bring_fonts(path)}</style>"
        if path.suffix == ".js":
            # What ends a script in a page is no end in a file.
            return f"<script>{path.read_text(encoding='utf-8').replace('</script', '<' + chr(92) + '/script')}</script>"
        return _LINK.sub(lambda _: f'{link[1]}="{_as_data(path)}"', tag[0], count=1)

    text = _TAG.sub(bring, page.read_text(encoding="utf-8"))
    target.write_text(_ANCHOR.sub(r"<a\1", text), encoding="utf-8")


def _bring_fonts(style: Path) -> str:
    def bring(link: re.Match[str]) -> str:
        if urlsplit(link[1]).scheme:
            return link[0]
        path = style.parent / urlsplit(link[1]).path
        # Fonts of icons that no page shows are not vendored.
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
    text = text.replace(_NO_ASSET, "")
    style = f'<link rel="stylesheet" href="{to_static}{_OWN_STYLE}">\n'
    return text if style in text else text.replace("</head>", f"{style}</head>", 1)


def _remove_unused(static: Path) -> None:
    """Great Expectations puts 4 MB of fonts and moving pictures into each site; the pages load an icon and a logo."""
    used = {static / place for place in LINKS.values() if place}
    for path in sorted(static.rglob("*"), reverse=True):  # what a folder holds comes before the folder
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
    """Collects what a browser would load with a page: not where its anchors lead."""

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
