"""Step 3, second half: judgement of the calibration data, before any variant is made from it."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from prefect.artifacts import create_link_artifact

from tasks.evidence.sequences import one_call_each
from tasks.measure.activations import open_tapped, view_samples
from tasks.measure.taps import find_taps
from tasks.run.context import log
from tasks.run.loaded_run import LoadedRun
from tasks.run.step import step
from tasks.storage.product import Product
from validators.calibration.judge import judge_calibration
from validators.calibration.model_view import ModelView
from validators.errors import CandidateRefused, DataError
from validators.plain_text import as_markdown
from validators.records.run import CalibrationVerdict
from validators.samples.datasets import Samples


@step("judge calibration data")
def judge_calibration_data(run: LoadedRun) -> CalibrationVerdict | None:
    """Return the verdict on the calibration data, with the Data Docs page of its checkpoint in the store.

    None for a job without: its candidates are files of other tools.

    Raises:
        DataError: the source fails on the samples.
        JobError: `calibration.representation` is no tensor of the source.
    """
    job, evidence = run.job, run.evidence
    if evidence.calibration is None:
        return None
    inputs = (
        [file.digest for file in evidence.files.values()],
        run.source.digest,
        evidence.output.name,
        job.data.label,
        job.data.slices,
        job.data.groups,
        job.calibration.model_dump(),
        job.seed,
        [asdict(spec) for spec in evidence.inputs],
    )
    with run.clock.work("judge calibration data"):
        verdict, _ = run.store.make(
            Product("calibration-verdict", inputs, CalibrationVerdict, partial(_judge, run, evidence.calibration))
        )
    create_link_artifact(
        verdict.page.as_uri(),
        key="calibration-data",
        link_text="the checks of the calibration data",
        description=as_markdown(_tell(verdict)),
    )
    log.info("calibration data %s", verdict.outcome.replace("_", " "))
    for check in verdict.failed:
        log.warning(
            "calibration: %s (%s): found %s, expected %s", check.name, check.severity, check.found, check.expected
        )
    return verdict


def _judge(run: LoadedRun, samples: Samples, folder: Path) -> CalibrationVerdict:
    evidence, calibration = run.evidence, one_call_each(samples)
    view = _view(run, calibration) if run.job.calibration.model_samples else None
    return judge_calibration(
        calibration,
        one_call_each(evidence.evaluation),
        one_call_each(evidence.traffic) if evidence.traffic else None,
        view,
        run.job.calibration,
        folder,
        seed=run.job.seed,
    )


def _view(run: LoadedRun, calibration: Samples) -> ModelView | None:
    """Return the source's view of some calibration and reference samples; None if either side has no usable sample."""
    job, evidence = run.job, run.evidence
    reference = one_call_each(evidence.reference)
    try:
        with open_tapped(
            run.source.onnx_path,
            run.reference_session,
            lambda graph: find_taps(graph, evidence.output.name, job.calibration.representation),
        ) as watch:
            return view_samples(
                watch,
                calibration,
                reference,
                most=job.calibration.model_samples,
                fixed_batch=evidence.batch_axis,
                seed=job.seed,
            )
    except CandidateRefused as error:
        raise DataError(
            found=f"{run.source.uri} fails on samples of {calibration.file.path.name} or {reference.file.path.name}: "
            f"{error.found}",
            expected="samples that the model runs on",
            fix="check the values (a token beyond the vocabulary, an axis of another size), or set "
            "`calibration.model_samples: 0` to skip the checks with the model",
        ) from error


def _tell(verdict: CalibrationVerdict) -> str:
    """Return the verdict in one line, as the description of the link."""
    failed = ", ".join(f"{check.name} ({check.severity})" for check in verdict.failed)
    return verdict.outcome.replace("_", " ") + (f": {failed}" if failed else f": {len(verdict.checks)} checks passed")
