"""The Great Expectations checkpoint over calibration data: one suite, one run, one page.

Importing this module imports Great Expectations (4 s): import it inside the function that needs it.
"""

from __future__ import annotations

from validators.calibration import expectations  # first: it imports Great Expectations quietly

# isort: split
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import great_expectations as gx
import great_expectations.expectations as built_in
from great_expectations.checkpoint.actions import UpdateDataDocsAction
from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.expectations.expectation import Expectation

from validators.calibration.checks.catalog import CHECKS
from validators.calibration.checks.check import ExpectationResult, Expected, Severity
from validators.calibration.evidence import CalibrationEvidence
from validators.calibration.offline_pages import make_offline, write_alone

NAME = "calibration"
PAGE = "calibration.html"


def run_checkpoint(evidence: CalibrationEvidence, page_folder: Path) -> tuple[list[ExpectationResult], Path]:
    """Judge the table of the evidence, write the Data Docs site into `page_folder`, and return results and page.

    The page, `calibration.html`, is the site's page as one self-contained file.

    Everything but the site stays in memory: no project folder, no progress bars, no analytics.

    Raises:
        RuntimeError: an expectation could not be evaluated, or the page was not written; both are bugs of quantgate.
    """
    site = {
        "class_name": "SiteBuilder",
        "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(page_folder.absolute())},
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            data_docs_sites={NAME: site},
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        ),
    )
    # Data Docs does not escape column names, and a model may give its inputs any name.
    table = evidence.table.rename(columns=escape)
    batch = (
        context.data_sources.add_pandas(NAME).add_dataframe_asset("samples").add_batch_definition_whole_dataframe("all")
    )
    suite = context.suites.add(gx.ExpectationSuite(name=NAME, expectations=list(_make_expectations(evidence))))
    validation = context.validation_definitions.add(gx.ValidationDefinition(name=NAME, data=batch, suite=suite))
    action = UpdateDataDocsAction(name="write the page", site_names=[NAME])
    checkpoint = context.checkpoints.add(
        gx.Checkpoint(name=NAME, validation_definitions=[validation], actions=[action])
    )
    before = _find_pages(page_folder)
    run = checkpoint.run(batch_parameters={"dataframe": table}, run_id=gx.RunIdentifier(run_name=NAME))
    pages = _find_pages(page_folder) - before
    if len(pages) != 1 or not (page_folder / "index.html").is_file():
        raise RuntimeError(f"Great Expectations wrote no page into {page_folder}; its log says why")
    make_offline(page_folder)
    write_alone(pages.pop(), page_folder / PAGE)
    (result,) = run.run_results.values()
    return list(_read_results(result)), page_folder / PAGE


def _make_expectations(evidence: CalibrationEvidence) -> Iterator[Expectation]:
    for check in CHECKS:
        for expected in check.expect(evidence):
            kind = getattr(expectations, expected.expectation, None) or getattr(built_in, expected.expectation)
            yield kind(**_keywords(check.name, expected))


def _keywords(check: str, expected: Expected) -> dict[str, Any]:
    """Return the keywords of an expectation. Column names and texts are escaped, because Data Docs does not escape them."""
    column = {"column": escape(expected.column)} if expected.column else {}
    return {
        **column,
        **expected.arguments,
        "severity": expected.severity,
        "description": escape(f"{check} ({expected.severity}): {expected.text}", quote=False),
        "meta": {"check": check, "subject": expected.subject},
    }


def _find_pages(folder: Path) -> set[Path]:
    # Layout: suite name, run name, folder of the run's time, page.
    return set(folder.glob(f"validations/{NAME}/{NAME}/*/*.html"))


def _read_results(suite_result: ExpectationSuiteValidationResult) -> Iterator[ExpectationResult]:
    for result in suite_result.results:
        config = result.expectation_config
        assert config is not None and config.meta is not None
        # `exception_info` is one dictionary, or one per failed metric.
        infos = (
            [result.exception_info] if "raised_exception" in result.exception_info else result.exception_info.values()
        )
        for info in infos:
            if info["raised_exception"]:
                raise RuntimeError(
                    f"{config.type} on {config.meta['subject'] or 'the samples'}: {info['exception_message']}"
                )
        severity: Severity = "critical" if config.severity.value == "critical" else "warning"
        yield ExpectationResult(
            config.meta["check"], config.meta["subject"], bool(result.success), severity, dict(result.result)
        )
