"""Step 9: the report page, its pictures, and the table as Prefect artifacts."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from uuid import UUID

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact
from prefect.runtime import flow_run
from prefect.utilities.urls import url_for

from tasks.records.result_document import Findings
from tasks.records.run_record import report_address, run_address
from tasks.records.write_report import write_report
from tasks.reporting.markdown import artifact_rows, headline, verdict_markdown
from tasks.reporting.page import About
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.prefect_server import server_client
from tasks.run.step import step
from validators.plain_text import as_markdown, plain
from validators.records.artifact_paths import EVIDENCE, JOB, RESULT
from validators.records.result import Result

# Prefix of tags with the outcome of a run; a new attempt replaces the tags of the one before.
TAG = "result: "


@step("publish report")
def publish_report(run: LoadedRun, record: str, findings: Findings, result: Result) -> Path:
    """Write `report.html` and the pictures into the state folder and the table to Prefect; return the page's path."""
    page = report_of(run, record, findings, result)
    create_markdown_artifact(verdict_markdown(result), key="verdict", description=as_markdown(result.reason))
    if rows := artifact_rows(result):
        create_table_artifact(rows, key="candidates", description="one row a candidate")
    link = report_address(run, record) or page.as_uri()
    create_link_artifact(link, key="report", link_text="report.html", description="the whole report")
    _tag_flow_run(result)
    log.info("report: %s", page)
    return page


def about_run(run: LoadedRun, record: str, findings: Findings, folder: Path) -> About:
    """Return when the run began and where its records are; paths are relative to the folder of the page."""
    checks = findings.calibration.page if findings.calibration else None
    # The address of a server that ends with this command leads nowhere.
    prefect = url_for("flow-run", obj_id=flow_run.id) if os.environ.get("PREFECT_API_URL") else None
    facts = [
        ("run in MLflow", record, run_address(run, record) or ""),
        ("flow run in Prefect", str(flow_run.name), prefect or ""),
        *([("calibration checks", checks.name, os.path.relpath(checks, folder))] if checks else []),
        ("artifacts", ", ".join((JOB, RESULT, *([EVIDENCE] if findings.baseline else []))), ""),
        ("quantgate", metadata.version("quantgate"), ""),
        ("all runs", "quantgate report", ""),
    ]
    began = datetime.now(UTC) - timedelta(seconds=run.clock.elapsed_seconds)
    return About(record, began.strftime("%Y-%m-%d %H:%M UTC"), facts)


def _tag_flow_run(result: Result) -> None:
    """Write the outcome to the flow run's tags, which Prefect's list of runs shows."""
    told = [plain(word) for word in headline(result)]
    others = [tag for tag in flow_run.tags if not tag.startswith(TAG)]
    with server_client() as client:
        client.update_flow_run(UUID(str(flow_run.id)), tags=[*others, *(f"{TAG}{word}" for word in told)])


def report_of(run: LoadedRun, record: str, findings: Findings, result: Result) -> Path:
    """Write `report.html` and the pictures into the state folder; return the page's path."""
    folder = run.state / "reports" / record
    return write_report(run, folder, findings, result, about_run(run, record, findings, folder))
