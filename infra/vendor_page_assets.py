"""Fetches what the Data Docs pages link into `validators/page_assets`: `python infra/vendor_page_assets.py`. Needs npm.

The versions are those that Great Expectations 1.24 links; where it links a major version alone, the last one of it.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "validators" / "calibration" / "page_assets"


@dataclass(frozen=True)
class Package:
    """An npm package: the files that are taken, and whose code its minified files hold as well (name or name@version)."""

    name: str
    version: str
    files: tuple[str, ...]
    bundled: tuple[str, ...] = ()
    # The package whose licence holds for this one too, where the tarball brings none: vega 5.33.1 left out what 5.33.0 had.
    licence_of: str = ""


D3 = """array color delaunay dispatch dsv force format geo geo-projection hierarchy interpolate path quadtree scale
scale-chromatic shape time time-format timer"""
FILTER = "dist/extensions/filter-control/bootstrap-table-filter-control.min"

PACKAGES = (
    Package("bootstrap", "4.3.1", ("dist/css/bootstrap.min.css", "dist/js/bootstrap.min.js")),
    Package(
        "bootstrap-datepicker",
        "1.9.0",
        ("dist/css/bootstrap-datepicker.min.css", "dist/js/bootstrap-datepicker.min.js"),
    ),
    Package(
        "bootstrap-table",
        "1.19.1",
        ("dist/bootstrap-table.min.css", "dist/bootstrap-table.min.js", f"{FILTER}.css", f"{FILTER}.js"),
        bundled=("core-js@3.10.1",),
    ),
    Package("@fortawesome/fontawesome-free", "6.6.0", ("css/all.min.css", "webfonts/fa-solid-900.woff2")),
    Package("jquery", "3.7.1", ("dist/jquery.min.js",)),
    Package(
        "vega",
        "5.33.1",
        ("build/vega.min.js",),
        bundled=(
            *(f"d3-{name}" for name in D3.split()),
            *("delaunator", "internmap", "robust-predicates", "topojson-client"),
        ),
        licence_of="vega-canvas",
    ),
    Package(
        "vega-embed",
        "6.29.0",
        ("build/vega-embed.min.js",),
        bundled=(
            *("fast-json-patch", "json-stringify-pretty-compact", "semver", "tslib"),
            *("vega-schema-url-parser", "vega-themes", "vega-tooltip"),
        ),
    ),
    Package(
        "vega-lite",
        "5.23.0",
        ("build/vega-lite.min.js",),
        bundled=("json-stringify-pretty-compact", "tslib", "vega-event-selector", "vega-expression"),
    ),
)

README = """# What the Data Docs pages link

Great Expectations writes pages that load styles, scripts and an icon font from elsewhere. These files stand in for them, so
that a page can be read with no network; `validators/calibration/offline_pages.py` copies them into each site and points the
pages at them. They are what their authors published, unchanged; `python infra/vendor_page_assets.py` fetches them again and
writes this table. `page.css` is ours.

Two files that the pages link are left out. popper.js places drop-down menus and tooltips, and the pages have none of
Bootstrap's. bootstrap-dark recolours the pages on a dark desktop, where the charts, which are transparent, could not be read.

`LICENSE-bundled.txt` holds the licences of what a minified file contains of other packages.

| package | version | licence | file | bytes | sha256 |
|---|---|---|---|---|---|
"""


def main() -> None:
    """Replace all vendored files, and the table of them."""
    rows = []
    for package in PACKAGES:
        target = FOLDER / package.name.split("/")[-1]
        shutil.rmtree(target, ignore_errors=True)
        with tempfile.TemporaryDirectory() as folder:
            licence = vendor(package, Path(folder), target)
        for path in sorted(target.rglob("*")):
            if path.is_file():
                found = path.read_bytes()
                digest, place = hashlib.sha256(found).hexdigest(), path.relative_to(FOLDER)
                rows.append(f"| {package.name} | {package.version} | {licence} | {place} | {len(found)} | {digest} |\n")
    (FOLDER / "README.md").write_text(README + "".join(rows), encoding="utf-8")


def vendor(package: Package, folder: Path, target: Path) -> str:
    """Install the package and what it bundles into `folder`, copy what is wanted to `target`, return the licence's name."""
    wanted = [f"{package.name}@{package.version}", *(name for name in package.bundled if "@" in name)]
    # Its dependencies come along; the peers, which are vendored on their own, do not.
    flags = ["--ignore-scripts", "--legacy-peer-deps", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(["npm", "install", "--prefix", str(folder), *flags, *wanted], check=True)  # noqa: S607  # whichever npm there is
    modules = folder / "node_modules"
    for file in package.files:
        # Below `dist` or `build`, as published: a style sheet finds its font by a relative path.
        place = target / file.removeprefix("dist/").removeprefix("build/")
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(modules / package.name / file, place)
    shutil.copyfile(find_licence(modules / (package.licence_of or package.name)), target / "LICENSE")
    texts: dict[str, list[str]] = {}
    for name in package.bundled:
        module = name.split("@")[0]
        texts.setdefault(find_licence(modules / module).read_text(encoding="utf-8").strip(), []).append(module)
    if texts:
        pieces = [f"{', '.join(names)}\n\n{text}\n" for text, names in texts.items()]
        (target / "LICENSE-bundled.txt").write_text(f"\n{'-' * 80}\n".join(pieces), encoding="utf-8")
    return str(json.loads((modules / package.name / "package.json").read_text(encoding="utf-8"))["license"])


def find_licence(module: Path) -> Path:
    """The licence file of an installed package."""
    found = sorted(path for path in module.iterdir() if path.name.lower().startswith("license"))
    if not found:
        raise RuntimeError(f"{module.name} brings no licence file: it must not be vendored")
    return found[0]


if __name__ == "__main__":
    main()
