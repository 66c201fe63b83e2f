"""The Great Expectations checkpoint over calibration data: one suite, one run, one page.

Importing this module imports Great Expectations (4 s): import it inside the function that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from validators.calibration_checks import MAX_DUPLICATE_SHARE, Evidence, Result, Severity
from validators.expectations import ExpectColumnToCoverLabels, ExpectColumnToFollowReference
from validators.quiet_import import quiet_import

with quiet_import():
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

NAME = "calibration"
# The module exports its classes in a way that strict typing does not see.
gxe: Any = built_in


def run_checkpoint(evidence: Evidence, page_folder: Path) -> tuple[list[Result], Path]:
    """Judge the table of the evidence, write the Data Docs site into `page_folder`, and return results and page.

    Everything but the site stays in memory: no project folder, no progress bars, nothing sent anywhere.

    Raises:
        RuntimeError: an expectation could not be evaluated, or the page was not written: a fault of this program.
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
    # Data Docs writes column names into the page as they are, and a model may call its input anything.
    table = evidence.table.rename(columns=escape)
    batch = (
        context.data_sources.add_pandas(NAME).add_dataframe_asset("samples").add_batch_definition_whole_dataframe("all")
    )
    suite = context.suites.add(gx.ExpectationSuite(name=NAME, expectations=list(_list_expectations(evidence))))
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
    (result,) = run.run_results.values()
    return list(_read_results(result)), pages.pop()


def _find_pages(folder: Path) -> set[Path]:
    # Below these two names of suite and run, a folder for the time of the run, and the page in it.
    return set(folder.glob(f"validations/{NAME}/{NAME}/*/*.html"))


def _read_results(suite_result: ExpectationSuiteValidationResult) -> Iterator[Result]:
    for result in suite_result.results:
        config = result.expectation_config
        assert config is not None and config.meta is not None
        # One dictionary, or one for each metric that failed.
        infos = (
            [result.exception_info] if "raised_exception" in result.exception_info else result.exception_info.values()
        )
        for info in infos:
            if info["raised_exception"]:
                raise RuntimeError(
                    f"{config.type} on {config.meta['subject'] or 'the samples'}: {info['exception_message']}"
                )
        severity: Severity = "critical" if config.severity.value == "critical" else "warning"
        yield Result(config.meta["check"], config.meta["subject"], bool(result.success), severity, dict(result.result))


def _list_expectations(evidence: Evidence) -> Iterator[Expectation]:
    bounds = evidence.bounds
    yield gxe.ExpectColumnUniqueValueCountToBeBetween(
        column="digest",
        min_value=bounds.min_samples,
        **_tell("enough_samples", "", "critical", f"there are at least {bounds.min_samples} distinct samples"),
    )
    for name in evidence.float_inputs:
        yield gxe.ExpectColumnMaxToBeBetween(
            column=escape(f"{name}.not finite"),
            max_value=0,
            **_tell(
                "finite",
                name,
                "critical",
                "no sample holds values that are NaN or Inf (observed: the most in a sample)",
            ),
        )
    for name in (*evidence.float_inputs, *evidence.other_inputs):
        yield gxe.ExpectColumnSumToBeBetween(
            column=escape(f"{name}.differs from first"),
            min_value=1,
            **_tell(
                "varies",
                name,
                "critical" if name in evidence.float_inputs else "warning",
                "the input is not the same in all samples (observed: samples that differ from the first)",
            ),
        )
    yield gxe.ExpectColumnSumToBeBetween(
        column="in evaluation",
        max_value=0,
        **_tell("no_leakage", "", "critical", "no sample is in the evaluation data (observed: samples that are)"),
    )
    yield gxe.ExpectColumnProportionOfUniqueValuesToBeBetween(
        column="digest",
        min_value=1 - MAX_DUPLICATE_SHARE,
        **_tell("no_duplicates", "", "warning", f"at least {1 - MAX_DUPLICATE_SHARE:.0%} of the samples are distinct"),
    )
    if evidence.reference_labels is not None:
        yield _expect_labels(evidence, evidence.reference_labels)
    yield from _expect_distributions(evidence)


def _expect_labels(evidence: Evidence, reference: dict[int, int]) -> Expectation:
    share = evidence.bounds.min_label_share
    return ExpectColumnToCoverLabels(
        column="label",
        labels=list(reference),
        reference_counts=list(reference.values()),
        min_share=share,
        **_tell(
            "labels_covered",
            "",
            "critical",
            f"each label of {evidence.reference} that must occur does, with at least {share:g} times its share there",
        ),
    )


def _expect_distributions(evidence: Evidence) -> Iterator[Expectation]:
    bounds = evidence.bounds
    limits = f"PSI at most {bounds.max_psi:g} above chance, corrected KS p-value at least {bounds.min_drift_p_value:g}"
    for comparison in evidence.comparisons:
        severities: tuple[tuple[int, Severity], ...] = ((1, "critical"), (0, "warning"))
        for max_signs, severity in severities:
            yield ExpectColumnToFollowReference(
                column=escape(comparison.statistic),
                edges=list(comparison.edges),
                reference_counts=list(comparison.reference_counts),
                p_value=comparison.p_value,
                max_psi=bounds.max_psi,
                min_p_value=bounds.min_drift_p_value,
                max_signs=max_signs,
                **_tell(
                    "same_distribution",
                    comparison.statistic,
                    severity,
                    f"distributed like {evidence.reference}: {'either' if max_signs else 'both'} of {limits}",
                ),
            )


def _tell(check: str, subject: str, severity: Severity, text: str) -> dict[str, Any]:
    """What the page and the verdict need to know of an expectation. The page shows `description`."""
    return {
        "severity": severity,
        "description": f"{check} ({severity}): {text}",
        "meta": {"check": check, "subject": subject},
    }
