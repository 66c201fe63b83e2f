"""The page on the calibration data without a network: what a real browser shows of it, and what it lacks without each asset."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from numpy.typing import NDArray

from validators.calibration.judge import judge_calibration
from validators.calibration.offline_pages import ASSETS, LINKS, TAB_STOPS, make_offline
from validators.job.job_data import CalibrationBounds
from validators.records.run import DataFile
from validators.samples.datasets import Samples

# Bootstrap's own text-success, text-danger and table border, and the two bars of a chart.
GREEN, RED, BORDER, CALIBRATION, REFERENCE = "#28a745", "#dc3545", "#dee2e6", "#d55e00", "#56b4e9"
ROW = re.compile(
    r"\| (?P<package>\S+) \| (?P<version>\S+) \| .+ \| (?P<file>\S+) \| (?P<bytes>\d+) \| (?P<sha256>\w+) \|"
)


def draw(n: int, seed: int, scale: float = 1.0) -> Samples:
    values = np.random.default_rng(seed).normal(1.0, 1.0, (n, 8)).astype(np.float32) * np.float32(scale)
    return Samples(DataFile(Path("x.npz"), "0" * 64, n), {"x": values}, None)


def judge(samples: Samples, folder: Path) -> Path:
    """The page of the verdict in the site, which `folder` holds."""
    judge_calibration(samples, draw(1000, seed=2), None, None, CalibrationBounds(), folder, seed=7)
    (page,) = folder.glob("validations/*/*/*/*.html")
    return page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages of clean samples, of samples that fail, and of these as Great Expectations writes them."""
    from validators.calibration import gx_checkpoint as checkpoint

    around = tmp_path_factory.mktemp("sites")
    pages = {"passed": judge(draw(128, seed=1), around / "passed")}
    pages["warned"] = judge(draw(1000, seed=1, scale=1.09), around / "warned")
    pages["failed"] = judge(draw(128, seed=1, scale=2), around / "failed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "make_offline", lambda site: None)
        pages["raw"] = judge(draw(128, seed=1, scale=2), around / "raw")
    return pages


def site_of(page: Path) -> Path:
    return page.parents[4]


# What a browser shows.


def find_browser() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    return pytest.fail("found: no chromium, expected: a browser to open the pages in, fix: apt-get install chromium")


@dataclass(frozen=True)
class Sight:
    """A page in the browser: the document after its scripts, their errors, and the pixels, shape `(height, width, 3)`."""

    dom: str
    errors: list[str]
    pixels: NDArray[np.int16]

    def count(self, color: str, near: int = 0) -> int:
        """How many pixels have this colour; `near` allows for the edge of a stroke, which is blended."""
        channels = [int(color[start : start + 2], 16) for start in (1, 3, 5)]
        return int((np.abs(self.pixels - np.array(channels, np.int16)) <= near).all(axis=-1).sum())


def look(page: Path, folder: Path, height: int = 4800) -> Sight:
    """Open a page in a headless browser that reaches no network: no name has an address, and the proxy is not there."""
    flags = [f"--disable-{what}" for what in ("gpu", "quic", "background-networking", "component-update", "sync")]
    flags += ["--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", "--virtual-time-budget=8000"]
    flags += ["--proxy-server=127.0.0.1:9", "--enable-logging=stderr", "--dump-dom"]
    paths = [f"--user-data-dir={folder / 'profile'}", f"--screenshot={folder / 'page.png'}"]
    window = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size=1280,{height}", page.absolute().as_uri()]
    done = subprocess.run([find_browser(), *flags, *paths, *window], capture_output=True, timeout=120, check=True)
    errors = [
        line for line in done.stderr.decode(errors="replace").splitlines() if "CONSOLE" in line and "rror" in line
    ]
    pixels = (matplotlib.image.imread(folder / "page.png")[..., :3] * 255).round().astype(np.int16)
    return Sight(done.stdout.decode(), errors, pixels)


def find_faults(sight: Sight, charts: int) -> set[str]:
    """What of a page with so many charts is not seen: `table`, `pass marks`, `fail marks`, `charts`; or `errors` of scripts.

    A mark has 16 x 16 pixels: a green disc with a tick left out, or a cross of two thin strokes. The bars of a chart lie on
    440 x 150. A row of a table has a line below it, of the page's width unless the table is a narrow one; without Bootstrap
    there is no line.
    """
    # In the document itself, not in the text of a script that makes a table of it.
    elements = re.sub(r"<script.*?</script>", "", sight.dom, flags=re.DOTALL)
    faults = {"errors"} if sight.errors else set()
    marks = (
        ("pass marks", GREEN, "fa-check-circle text-success", range(80, 220)),
        ("fail marks", RED, "fa-times text-danger", range(12, 120)),
    )
    for name, color, classes, size in marks:
        if (number := elements.count(f'<i class="fas {classes}')) and sight.count(color, near=12) // number not in size:
            faults.add(name)
    drawn = len(re.findall(r'<canvas[^>]*class="marks"', elements))
    bars = [sight.count(color) / max(charts, 1) for color in (CALIBRATION, REFERENCE)]
    if drawn != charts or (charts and not all(2_000 < area < 30_000 for area in bars)):
        faults.add("charts")
    if "<td" not in elements or sight.count(BORDER) < 400 * elements.count("<tr"):
        faults.add("table")
    return faults


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passed", "failed"])
def test_the_page_is_whole_without_a_network(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    sight = look(made[name], tmp_path)
    charts = made[name].read_text(encoding="utf-8").count("vegaEmbed(")
    assert charts >= 5, "one for each of mean, std, min, max and share of zeros"
    assert (find_faults(sight, charts), sight.errors) == (set(), [])
    assert (sight.count(RED) > 0, sight.count(GREEN) > 0) == (name == "failed", True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passed", "failed"])
def test_the_page_as_one_file_is_whole_alone(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    """Without the files that lay beside it, as in MLflow's preview."""
    alone = Path(shutil.copy(site_of(made[name]) / "calibration.html", tmp_path / "alone.html"))
    text = alone.read_text(encoding="utf-8")
    sight = look(alone, tmp_path)
    assert (find_faults(sight, text.count("vegaEmbed(")), sight.errors) == (set(), [])
    assert not re.search(r'(?:src|href)="(?!data:|#)', re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passed", "failed"])
def test_the_index_is_whole_without_a_network(name: str, made: dict[str, Path], tmp_path: Path) -> None:
    sight = look(site_of(made[name]) / "index.html", tmp_path, 800)
    assert (find_faults(sight, 0), sight.errors) == (set(), [])
    assert (sight.count(RED) > 0, sight.count(GREEN) > 0) == (name == "failed", name == "passed")


@pytest.mark.slow
def test_as_written_the_page_is_bare(made: dict[str, Path], tmp_path: Path) -> None:
    """The browser of these tests does have no network, and what they look for does not come from elsewhere."""
    sight = look(made["raw"], tmp_path)
    assert find_faults(sight, charts=5) == {"table", "pass marks", "fail marks", "charts", "errors"}


MARKS = {"pass marks", "fail marks"}
LOST = {
    "bootstrap/css/bootstrap.min.css": {"table", *MARKS},
    "bootstrap/js/bootstrap.min.js": {"errors"},
    "fontawesome-free/css/all.min.css": MARKS,
    "fontawesome-free/webfonts/fa-solid-900.woff2": MARKS,
    "jquery/jquery.min.js": {"errors"},
    "vega/vega.min.js": {"charts", "errors"},
    "vega-embed/vega-embed.min.js": {"charts", "errors"},
    "vega-lite/vega-lite.min.js": {"charts", "errors"},
}


@pytest.mark.slow
@pytest.mark.parametrize("asset", LOST)
def test_without_an_asset_the_page_lacks_what_it_is_for(asset: str, made: dict[str, Path], tmp_path: Path) -> None:
    """The test above can fail, for each asset in its own way."""
    site = shutil.copytree(site_of(made["failed"]), tmp_path / "site")
    (site / "static" / "vendor" / asset).unlink()
    page = site / made["failed"].relative_to(site_of(made["failed"]))
    charts = page.read_text(encoding="utf-8").count("vegaEmbed(")
    assert find_faults(look(page, tmp_path), charts) == LOST[asset]


@pytest.mark.slow
@pytest.mark.parametrize(
    "asset", ["bootstrap-table/bootstrap-table.min.js", "bootstrap-datepicker/js/bootstrap-datepicker.min.js"]
)
def test_without_its_script_the_index_lacks_its_table(asset: str, made: dict[str, Path], tmp_path: Path) -> None:
    site = shutil.copytree(site_of(made["failed"]), tmp_path / "site")
    (site / "static" / "vendor" / asset).unlink()
    sight = look(site / "index.html", tmp_path, 800)
    assert "errors" in find_faults(sight, 0)


def test_a_missing_browser_fails_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.fail.Exception, match="fix: apt-get install chromium"):
        find_browser()


# What lies in the site.


def test_the_site_holds_the_assets_and_what_its_pages_load(made: dict[str, Path]) -> None:
    static = site_of(made["failed"]) / "static"
    own = {path.relative_to(ASSETS) for path in ASSETS.rglob("*") if path.is_file()}
    found = {path.relative_to(static) for path in static.rglob("*") if path.is_file()}
    assert found == {Path("vendor") / path for path in own} | {Path("images/favicon.ico"), Path("images/logo-long.png")}
    size = (site_of(made["failed"]) / "calibration.html").stat().st_size
    assert size < 2_300_000, "logged to MLflow in each run"


def test_the_pages_say_nothing_of_news_and_tutorials(made: dict[str, Path]) -> None:
    texts = {name: made[name].read_text(encoding="utf-8") for name in ("raw", "failed")}
    index = (site_of(made["failed"]) / "index.html").read_text(encoding="utf-8")
    for piece in ("newsletter", "prefers-color-scheme", "Data asset: None"):
        assert piece in texts["raw"] and piece not in texts["failed"] and piece not in index, piece


def test_a_second_time_changes_nothing(made: dict[str, Path], tmp_path: Path) -> None:
    site = shutil.copytree(site_of(made["raw"]), tmp_path / "site")
    make_offline(site)
    once = {path: path.read_bytes() for path in site.rglob("*") if path.is_file()}
    make_offline(site)
    assert {path: path.read_bytes() for path in site.rglob("*") if path.is_file()} == once


@pytest.mark.parametrize("name", ["passed", "warned", "failed"])
def test_chart_stands_once_for_a_statistic_and_in_failed_rows(name: str, made: dict[str, Path]) -> None:
    """Else `Failed Only` would hide it."""
    sections = re.split('class="ge-section', made[name].read_text(encoding="utf-8"))
    seen = set()
    for section in (section for section in sections if "same_distribution" in section):
        rows = [row for row in section.split("<tr>") if "same_distribution" in row]
        failed = ["text-danger" in row for row in rows]
        assert ["vegaEmbed(" in row for row in rows] == [True, False] if failed != [False, True] else [False, True]
        seen.add(tuple(failed))
    assert {"passed": (False, False), "warned": (False, True), "failed": (True, True)}[name] in seen


def test_a_chart_holds_strings_and_numbers_only() -> None:
    """It is written as a Python literal into a script."""
    from validators.calibration.charts import draw_shares

    def leaves(value: object) -> list[object]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return [value] if inner is None else [leaf for piece in inner for leaf in leaves(piece)]

    chart = draw_shares([0.5, 1.0], [1, 2, 3], [4, 0, 0])
    assert {type(leaf) for leaf in leaves(chart)} <= {str, int, float}
    shares = [(bar["bin"], bar["samples"], round(bar["share"], 3)) for bar in chart["data"]["values"]]
    assert shares == [
        *(("≤ 0.5", "calibration", 0.167), ("0.5 to 1", "calibration", 0.333), ("> 1", "calibration", 0.5)),
        *(("≤ 0.5", "reference", 1.0), ("0.5 to 1", "reference", 0.0), ("> 1", "reference", 0.0)),
    ]


# Rewriting, by hand-made pages.

FAR = "https://cdn.example"


def write_page(site: Path, place: str, head: str, body: str = "") -> Path:
    page = site / place
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f"<html><head>{head}</head><body>{body}</body></html>", encoding="utf-8")
    return page


@pytest.mark.parametrize(("place", "up"), [("index.html", ""), ("a/x.html", "../"), ("a/b/c/x.html", "../../../")])
def test_links_lead_to_the_assets_from_any_depth(place: str, up: str, tmp_path: Path) -> None:
    page = write_page(
        tmp_path,
        place,
        f'<script src="{FAR}/npm/vega@5"></script>\n'
        f'<script src="//cdn.example/4/js/bootstrap.min.js?v=1" integrity="sha384-x" crossorigin="anonymous"></script>\n'
        f'<script src="{FAR}/popper.min.js"></script>\n'
        f'<link rel="stylesheet" href="{FAR}/css/all.min.css"/>',
        f'<a href="{FAR}/bootstrap.min.js">how it works</a><script>x = "{FAR}/vega@5"</script>',
    )
    make_offline(tmp_path)
    assert page.read_text(encoding="utf-8") == (
        f'<html lang="en"><head><script src="{up}static/vendor/vega/vega.min.js"></script>\n'
        f'<script src="{up}static/vendor/bootstrap/js/bootstrap.min.js"></script>\n'
        f"\n"
        f'<link rel="stylesheet" href="{up}static/vendor/fontawesome-free/css/all.min.css"/>'
        f'<link rel="stylesheet" href="{up}static/vendor/page.css">\n{TAB_STOPS}'
        f'</head><body><a href="{FAR}/bootstrap.min.js">how it works</a><script>x = "{FAR}/vega@5"</script></body></html>'
    )


@pytest.mark.parametrize(
    ("piece", "link"),
    [
        (f'<script src="{FAR}/new.js"></script>', f"{FAR}/new.js"),
        ('<link rel="stylesheet" href="//cdn.example/new.css">', "//cdn.example/new.css"),
        (f"<img src='{FAR}/p.png'>", f"{FAR}/p.png"),
        (f'<img srcset="a.png 1x, {FAR}/p.png 2x">', "a.png"),
        (f"<style>i {{ background: url('{FAR}/p.png') }}</style>", f"{FAR}/p.png"),
        (f'<style>@import "{FAR}/new.css";</style>', f"{FAR}/new.css"),
        (f'<i style="background: url({FAR}/p.png)"></i>', f"{FAR}/p.png"),
        (f'<iframe src="{FAR}/"></iframe>', f"{FAR}/"),
        ('<script src="static/scripts/gone.js"></script>', "static/scripts/gone.js"),
    ],
)
def test_what_would_still_be_loaded_is_an_error(piece: str, link: str, tmp_path: Path) -> None:
    write_page(tmp_path, "a/page.html", piece)
    with pytest.raises(RuntimeError, match=rf"found: a/page\.html loads {re.escape(link)};"):
        make_offline(tmp_path)


def test_text_and_inline_pictures_are_no_error(tmp_path: Path) -> None:
    write_page(
        tmp_path, "page.html", '<img src="data:image/png;base64,AAAA">', f"url({FAR}/p.png) &lt;img src='{FAR}'&gt;"
    )
    make_offline(tmp_path)


# The vendored files.


def rows() -> list[re.Match[str]]:
    return list(ROW.finditer((ASSETS / "README.md").read_text(encoding="utf-8")))


def test_the_table_names_every_vendored_file_as_it_is() -> None:
    files = {str(path.relative_to(ASSETS)): path.read_bytes() for path in ASSETS.rglob("*") if path.is_file()}
    listed = {row["file"]: (int(row["bytes"]), row["sha256"]) for row in rows()}
    own = {"README.md", "page.css"}
    assert listed == {
        name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in files.items() if name not in own
    }
    assert sum(map(len, files.values())) < 1_800_000


def test_every_package_has_its_licence_and_an_exact_version() -> None:
    folders = {path for path in ASSETS.iterdir() if path.is_dir()}
    assert len(folders) == 8 == len({row["package"] for row in rows()})
    for folder in folders:
        assert len((folder / "LICENSE").read_text(encoding="utf-8")) > 500, folder
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", row["version"]) for row in rows())


def test_every_vendored_file_is_linked_or_loaded_by_one_that_is() -> None:
    linked = {place.removeprefix("vendor/") for place in LINKS.values() if place and place.startswith("vendor/")}
    files = {row["file"] for row in rows() if "LICENSE" not in row["file"]}
    font = "fontawesome-free/webfonts/fa-solid-900.woff2"
    assert files - linked == {font} and linked <= files
    assert "url(../webfonts/fa-solid-900.woff2)" in (ASSETS / "fontawesome-free/css/all.min.css").read_text()


def test_a_file_is_what_great_expectations_asks_for(made: dict[str, Path]) -> None:
    """Its pages carry the digest of a script, which a browser would check."""
    tags = re.findall(
        r'<script src="[^"]*/([^/"]+)" integrity="sha384-([^"]+)"', made["raw"].read_text(encoding="utf-8")
    )
    asked = {LINKS[name]: digest for name, digest in tags}
    asked.pop(None)  # left out
    assert list(asked) == ["vendor/bootstrap/js/bootstrap.min.js"]
    for place, digest in asked.items():
        content = (ASSETS / str(place).removeprefix("vendor/")).read_bytes()
        assert base64.b64encode(hashlib.sha384(content).digest()).decode() == digest
