"""The report of a run as a page with its pictures."""

from __future__ import annotations

from importlib import util
from pathlib import Path

from tasks.records.flipped import changes_of
from tasks.records.result_document import Findings
from tasks.reporting.page import NO_PICTURES, About, render_page
from tasks.reporting.pictures.run_pictures import draw_pictures
from tasks.run.loaded_run import LoadedRun
from validators.records.result import Result
from validators.redact import redact


def write_report(run: LoadedRun, folder: Path, findings: Findings, result: Result, about: About) -> Path:
    """Write `report.html` and the pictures into the folder; return the page's path.

    Without vl-convert, as where only `quantgate judge` is installed, the page has no pictures.
    """
    page = folder / "report.html"
    with run.clock.work("report"):
        folder.mkdir(parents=True, exist_ok=True)
        changes = changes_of(run, findings.baseline, findings.trials)
        sqnr = {name: one.sqnr_db for name, one in changes.items()}
        draws = util.find_spec("vl_convert") is not None
        pictures = draw_pictures(result, run.job.gates, findings.trials, sqnr) if draws else NO_PICTURES
        worst = {name: one.worst for name, one in changes.items()}
        text = render_page(result, run.job, findings.trials, pictures, about, worst)
        page.write_text(redact(text), encoding="utf-8")
        for name, picture in pictures.of_run(result.chosen).items():
            (folder / f"{name}.png").write_bytes(picture.png)
    return page
