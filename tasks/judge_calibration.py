"""Step 3, second half: the calibration data, judged before anything is made from it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tasks.context import Evidence, Run, log
from tasks.step import step
from validators import calibration_data
from validators.calibration_data import judge_calibration
from validators.digests import digest_code
from validators.records import CalibrationVerdict

CHECK_CODE = digest_code([Path(calibration_data.__file__).parent])


@step("judge calibration data", retried=False)
def judge_calibration_data(run: Run, evidence: Evidence) -> CalibrationVerdict:
    """The verdict on the calibration data, with the Data Docs page of its checkpoint in the store."""
    job = run.job
    files = [evidence.calibration, evidence.evaluation] + ([evidence.traffic] if evidence.traffic else [])
    key = (
        [samples.file.digest for samples in files],
        job.calibration.model_dump(),
        job.seed,
        [asdict(spec) for spec in evidence.inputs],
        CHECK_CODE,
    )
    with run.clock.work("judge calibration data"):
        verdict, _ = run.store.make(
            "calibration-verdict",
            key,
            CalibrationVerdict,
            lambda folder: judge_calibration(
                evidence.calibration, evidence.evaluation, evidence.traffic, job.calibration, folder, seed=job.seed
            ),
        )
    log.info("calibration data %s", verdict.outcome.replace("_", " "))
    for check in verdict.failed:
        log.warning(
            "calibration: %s (%s): found %s, expected %s", check.name, check.severity, check.found, check.expected
        )
    return verdict
