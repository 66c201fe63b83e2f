"""Record of a run in MLflow: a parent run with params, metrics, pictures, tables and datasets; a nested run per candidate."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from prefect.exceptions import PrefectSignal
from prefect.runtime import flow_run

from tasks.records.candidate_record import log_table, open_candidate_run, record_trial
from tasks.registry.mlflow_entities import DIGEST_LENGTH, as_metrics, as_params, as_tags, flat
from tasks.registry.mlflow_registry import connect, experiment_id, registry_call
from tasks.registry.mlflow_runs import (
    EXPERIMENT,
    FLOW_RUN,
    KIND,
    NAME,
    OUTCOME,
    close_candidates,
    delete_duplicates,
    find_or_create_run,
    find_runs,
)
from tasks.reporting.page import job_yaml
from tasks.run.context import Run, log
from tasks.run.loaded_run import LoadedRun
from tasks.run.settings import pages_address
from tasks.run.signals import signals_kept
from tasks.run.step import step
from validators.calibration.judge import RANGES_FILE
from validators.records.artifact_paths import CONFIRMATION_ROWS, JOB, RESULT
from validators.records.result import Result
from validators.records.run import CalibrationVerdict, Champion, DataFile, Trial
from validators.samples.datasets import Samples
from validators.samples.evidence import Evidence

if TYPE_CHECKING:
    from mlflow import MlflowClient

EVALUATION_TAG, CONFIRMED_TAG = "quantgate.evaluation_digest", "quantgate.confirmed"
# At 5 % each, ten promotions include a false one with a probability of up to 40 %.
MANY_CONFIRMATIONS = 10


@contextmanager
def recorded(run: Run, kind: Literal["run", "validation"]) -> Iterator[str]:
    """Open the parent run in MLflow and yield its id. `close_run` ends it, unless the block raises.

    Then it is marked FAILED, or KILLED if a signal ended the run. A flow run that was suspended or
    retried continues with its earlier parent run.
    """
    record = ""
    try:
        record = open_run(run, kind)
        with signals_kept(), _system_metrics(run, record):
            yield record
    except PrefectSignal:
        raise
    except BaseException as error:
        # Anything else is a signal: Ctrl-C, or SIGTERM, by which Prefect cancels a run too.
        is_signal = not isinstance(error, Exception)
        if record or is_signal:
            _abandon(run, record, "KILLED" if is_signal else "FAILED")
        raise


@contextmanager
def _system_metrics(run: Run, run_id: str) -> Iterator[None]:
    """Log processor, memory, disk, network and GPUs to the parent run meanwhile, where MLflow's own switch asks for it."""
    from mlflow.environment_variables import MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING

    # MLflow does not annotate the two.
    switch: Any = MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING
    if not switch.get():
        yield
        return
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    make_monitor: Any = SystemMetricsMonitor
    # A run that was suspended goes on behind its last sample.
    monitor = make_monitor(run_id, tracking_uri=run.tracking_uri, resume_logging=True)
    monitor.start()
    try:
        yield
    finally:
        monitor.finish()


@step("open MLflow run")
def open_run(run: Run, kind: str) -> str:
    """Start the parent run, with the job as its parameters, and return its id; a retried flow run reuses its own.

    Raises:
        ServiceDown: the tracking server does not answer.
    """
    job = run.job
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        identifier = experiment_id(client, EXPERIMENT, run.tracking_uri)
        name = {NAME: f"{job.source.rsplit(':/', 1)[-1]} on {job.target}"}
        parent = find_or_create_run(client, identifier, {FLOW_RUN: str(flow_run.id), KIND: kind}, name)
        if parent.info.status != "RUNNING":
            registry_call(client.update_run, parent.info.run_id, status="RUNNING")
        params = flat(job.model_dump(mode="json"))
        registry_call(client.log_batch, parent.info.run_id, params=as_params(params))
    return str(parent.info.run_id)


@step("record in MLflow")
def record_evidence(run: LoadedRun, run_id: str, calibration: CalibrationVerdict | None) -> None:
    """Record the run's inputs: data sets, the confirmation samples, source and inventory as tags, the calibration page."""
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        registry_call(client.log_inputs, run_id, datasets=_datasets(run.evidence))
        facts = {
            "source_uri": run.source.uri,
            "source_digest": run.source.digest,
            "parity_max_abs": str(run.source.parity_max_abs),
            "device": run.inventory.device_key,
            "runtimes": json.dumps(run.inventory.runtimes),
        }
        facts["evaluation_digest"] = run.evidence.evaluation.file.digest
        facts["evaluation_confirmed"] = str(count_confirmations(client, run_id, run.evidence.evaluation))
        for key, value in facts.items():
            registry_call(client.set_tag, run_id, f"quantgate.{key}", value)
        with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
            rows = Path(folder, PurePosixPath(CONFIRMATION_ROWS).name)
            np.save(rows, run.evidence.confirmation)
            registry_call(client.log_artifact, run_id, str(rows), str(PurePosixPath(CONFIRMATION_ROWS).parent))
        if calibration is None:
            return
        registry_call(client.set_tag, run_id, "quantgate.calibration", calibration.outcome)
        failed = {f"quantgate.calibration.{check.name}": str(check.severity) for check in calibration.failed}
        figures = {f"calibration_{name}": value for name, value in calibration.figures.items()}
        registry_call(client.log_batch, run_id, metrics=as_metrics(figures), tags=as_tags(failed))
        # Only the page and its ranges: MLflow's preview cannot load the other files beside the page in the store.
        for file in (calibration.page, calibration.page.with_name(RANGES_FILE)):
            if file.exists():
                registry_call(client.log_artifact, run_id, str(file), "calibration")


@step("record candidates in MLflow")
def record_trials(
    run: Run,
    run_id: str,
    trials: tuple[Trial, ...],
    evaluation: DataFile | None = None,
    champion: Champion | None = None,
) -> None:
    """Record a nested run per candidate: recipe as params, measurements as metrics, verdicts and raw samples as artifacts.

    Each variant is a LoggedModel too (see `variant_model`), whose metrics are on `evaluation`. `champion` is what was promoted.
    """
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        for trial in trials:
            nested = trial.mlflow_run_id or open_candidate_run(client, run_id, trial.candidate)
            record_trial(client, nested, trial, evaluation, champion)
        if any(trial.confirmed for trial in trials):
            registry_call(client.set_tag, run_id, CONFIRMED_TAG, "true")


def count_confirmations(client: MlflowClient, run_id: str, evaluation: Samples) -> int:
    """Count the other runs that confirmed a winner on this evaluation data, and warn if there are many.

    Promotions, and the changes that people make after them, adapt to samples that confirm often.

    Raises:
        ServiceDown: the tracking server does not answer.
    """
    experiment = registry_call(client.get_run, run_id).info.experiment_id
    condition = f"tags.`{EVALUATION_TAG}` = '{evaluation.file.digest}' and tags.`{CONFIRMED_TAG}` = 'true'"
    found: Any = registry_call(client.search_runs, [experiment], condition, max_results=1000)
    times = sum(1 for other in found if other.info.run_id != run_id)
    if times >= MANY_CONFIRMATIONS:
        log.warning(
            "%s confirmed %d winners before: the chance that one of them is a false promotion grows with each; draw new "
            "evaluation samples",
            evaluation.file.path.name,
            times,
        )
    return times


@step("record that an approval is asked for")
def record_awaiting(run: Run, run_id: str, result: Result, page: Path) -> str | None:
    """Record the outcome so far and the report, and leave the run open; return the report's address if there is a server."""
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        registry_call(client.set_tag, run_id, OUTCOME, result.outcome)
        registry_call(client.set_tag, run_id, "mlflow.note.content", result.reason)
        _log_report(client, run_id, page)
    return report_address(run, run_id)


def report_address(run: Run, run_id: str) -> str | None:
    """Return the URL of the report in MLflow's UI; None if MLflow is a database without a server."""
    page = run_address(run, run_id)
    return f"{page}/artifacts/report/report.html" if page else None


def run_address(run: Run, run_id: str) -> str | None:
    """Return the URL of a run in MLflow's UI; None if MLflow is a database without a server."""
    pages = pages_address(run.tracking_uri)
    if pages is None:
        return None
    with connect(run.tracking_uri) as client:
        experiment = registry_call(client.get_run, run_id).info.experiment_id
    return f"{pages}/#/experiments/{experiment}/runs/{run_id}"


def _log_report(client: MlflowClient, run_id: str, page: Path) -> None:
    for file in sorted(page.parent.iterdir()):
        registry_call(client.log_artifact, run_id, str(file), "report")


@step("close MLflow run")
def close_run(run: Run, run_id: str, result: Result, page: Path) -> None:
    """Record the outcome as tags, and the result document and report as artifacts; end the run as FINISHED.

    Duplicates from unanswered requests are deleted, so that each candidate has one run and none still runs.
    """
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        registry_call(client.set_tag, run_id, OUTCOME, result.outcome)
        registry_call(client.set_tag, run_id, "mlflow.note.content", result.reason)
        if result.chosen:
            registry_call(client.set_tag, run_id, "quantgate.chosen", result.chosen or "")
        registry_call(client.log_dict, run_id, result.model_dump(mode="json"), RESULT)
        registry_call(client.log_text, run_id, job_yaml(run.job, result), JOB)
        log_table(client, run_id, _table(result), "candidates.json")
        _log_report(client, run_id, page)
        metrics = {f"seconds_{step.replace(' ', '_')}": value for step, value in result.seconds.by_step.items()}
        metrics |= {"seconds_total": result.seconds.total, "seconds_overhead": result.seconds.overhead}
        if result.footprint:
            metrics |= result.footprint.model_dump()
        registry_call(client.log_batch, run_id, metrics=as_metrics(metrics))
        _close_others(client, run_id)
        registry_call(client.set_terminated, run_id, "FINISHED")


def _close_others(client: MlflowClient, run_id: str) -> None:
    """Delete duplicates of the parent run and of its candidates' runs, and end candidates' runs that still run."""
    record = registry_call(client.get_run, run_id)
    identity = {key: record.data.tags[key] for key in (FLOW_RUN, KIND)}
    delete_duplicates(client, record.info.experiment_id, identity, keep=run_id)
    close_candidates(client, record.info.experiment_id, run_id)


def _abandon(run: Run, run_id: str, status: str) -> None:
    """Give the parent run its last status after an error, if the registry still answers.

    Without its id a signal came while it was opened: then it may exist.
    """
    with connect(run.tracking_uri) as client, suppress(Exception):
        if not run_id:
            identifier = experiment_id(client, EXPERIMENT, run.tracking_uri)
            run_id = find_runs(client, identifier, {FLOW_RUN: str(flow_run.id)})[0].info.run_id
        client.set_terminated(run_id, status)
        _close_others(client, run_id)


def _datasets(evidence: Evidence) -> list[Any]:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    def describe(samples: Samples, role: str) -> Any:
        file = samples.file
        shapes = {name: [str(array.dtype), *array.shape[1:]] for name, array in samples.inputs.items()}
        dataset = Dataset(
            name=file.path.stem,
            digest=file.digest[:DIGEST_LENGTH],
            source_type="s3" if file.uri else "local",
            source=json.dumps({"uri": file.uri or file.path.as_uri()}),
            schema=json.dumps(shapes),
            profile=json.dumps(
                {"rows": file.rows, "sha256": file.digest} | ({"version": file.version} if file.uri else {})
            ),
        )
        return DatasetInput(dataset, [InputTag("mlflow.data.context", role)])

    samples_by_role = {
        "calibration": evidence.calibration,
        "evaluation": evidence.evaluation,
        "traffic": evidence.traffic,
    }
    return [describe(samples, role) for role, samples in samples_by_role.items() if samples is not None]


def _table(result: Result) -> dict[str, list[Any]]:
    """Return the candidates as columns, for MLflow's table view."""
    rows = [
        {
            "candidate": candidate.name,
            "outcome": candidate.outcome,
            "metric": candidate.metric_value,
            "drop": candidate.metric_drop.value if candidate.metric_drop else None,
            "lost": candidate.flips.lost if candidate.flips else None,
            "gained": candidate.flips.gained if candidate.flips else None,
            "sqnr_db": candidate.sqnr_db.value if candidate.sqnr_db else None,
            "speedup_p50": candidate.speedup_p50.value if candidate.speedup_p50 else None,
            "latency_p50_ms": candidate.latency_p50_ms,
            "size_bytes": candidate.size_bytes,
            "coverage_macs": candidate.coverage_macs,
            "coverage_time": candidate.coverage_time,
            "refusal": candidate.refusal.reason if candidate.refusal else None,
        }
        for candidate in result.candidates
    ]
    keys = list(rows[0]) if rows else ["candidate", "outcome"]
    return {key: [row[key] for row in rows] for key in keys}
