"""The run in MLflow: one parent run, one nested run a candidate, with params, metrics, pictures, tables and datasets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.context import Evidence, Given, Run
from tasks.registry import connect, experiment_id, registry_call
from tasks.step import step
from validators.calibration_data import RANGES_FILE
from validators.datasets import Samples
from validators.measurements import Latency, point_labels
from validators.records import CalibrationVerdict, Inventory, Trial
from validators.result import Result

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "quantgate"


@contextmanager
def recorded(run: Run, kind: Literal["run", "validation"]) -> Iterator[str]:
    """The id of a new parent run in MLflow, which fails when the block does; `close_run` ends it otherwise."""
    record = open_run(run, kind)
    try:
        yield record
    except BaseException:
        _abandon(run, record)
        raise


@step("open MLflow run")
def open_run(run: Run, kind: str) -> str:
    """Start the parent run, with the job as its parameters, and return its id.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
    job = run.job
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        identifier = experiment_id(client, EXPERIMENT, run.tracking_uri)
        tags = {"mlflow.runName": f"{job.source.rsplit(':/', 1)[-1]} on {job.target}", "quantgate.kind": kind}
        parent: Any = registry_call(client.create_run, identifier, tags=tags)
        params = _flat(job.model_dump(mode="json"))
        registry_call(client.log_batch, parent.info.run_id, params=_params(params))
    return str(parent.info.run_id)


@step("record in MLflow")
def record_evidence(run: Run, run_id: str, given: Given, inventory: Inventory, calibration: CalibrationVerdict) -> None:
    """What the run stands on: data sets as inputs, source and inventory as tags, the page on the calibration data."""
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        registry_call(client.log_inputs, run_id, datasets=_datasets(given.evidence))
        facts = {
            "source_uri": given.source.uri,
            "source_digest": given.source.digest,
            "parity_max_abs": str(given.source.parity_max_abs),
            "device": inventory.device_key,
            "runtimes": json.dumps(inventory.runtimes),
        }
        for key, value in facts.items():
            registry_call(client.set_tag, run_id, f"quantgate.{key}", value)
        registry_call(client.set_tag, run_id, "quantgate.calibration", calibration.outcome)
        failed = {f"quantgate.calibration.{check.name}": str(check.severity) for check in calibration.failed}
        figures = {f"calibration_{name}": value for name, value in calibration.figures.items()}
        registry_call(client.log_batch, run_id, metrics=_metrics(figures), tags=_tags(failed))
        # The page as one file: what lies beside it in the store does not come along into MLflow's preview.
        for file in (calibration.page, calibration.page.with_name(RANGES_FILE)):
            if file.exists():
                registry_call(client.log_artifact, run_id, str(file), "calibration")


@step("record candidates in MLflow")
def record_trials(run: Run, run_id: str, trials: tuple[Trial, ...]) -> None:
    """A nested run for each candidate: its recipe as params, measurements as metrics, verdicts and raw samples as artifacts."""
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        for trial in trials:
            nested = trial.mlflow_run_id or open_candidate_run(client, run_id, trial.candidate)
            _record_trial(client, nested, trial)


def open_candidate_run(client: MlflowClient, run_id: str, candidate: str) -> str:
    """Start the run of one candidate, nested in that of the whole, and return its id.

    Raises:
        InfrastructureError: the tracking server does not answer.
    """
    experiment = registry_call(client.get_run, run_id).info.experiment_id
    tags = {"mlflow.runName": candidate, "mlflow.parentRunId": run_id, "quantgate.kind": "candidate"}
    nested: Any = registry_call(client.create_run, experiment, tags=tags)
    return str(nested.info.run_id)


@step("close MLflow run")
def close_run(run: Run, run_id: str, result: Result, page: Path) -> None:
    """The outcome as tags, the result document, the report and its picture as artifacts; the run ends FINISHED."""
    with run.clock.work("record in MLflow"), connect(run.tracking_uri) as client:
        registry_call(client.set_tag, run_id, "quantgate.outcome", result.outcome)
        registry_call(client.set_tag, run_id, "mlflow.note.content", result.reason)
        if result.chosen:
            registry_call(client.set_tag, run_id, "quantgate.chosen", result.chosen or "")
        registry_call(client.log_dict, run_id, result.model_dump(mode="json"), "result.json")
        registry_call(client.log_table, run_id, _table(result), "candidates.json")
        for file in sorted(page.parent.iterdir()):
            registry_call(client.log_artifact, run_id, str(file), "report")
        metrics = {f"seconds_{step.replace(' ', '_')}": value for step, value in result.seconds.by_step.items()}
        metrics |= {"seconds_total": result.seconds.total, "seconds_overhead": result.seconds.overhead}
        registry_call(client.log_batch, run_id, metrics=_metrics(metrics))
        registry_call(client.set_terminated, run_id, "FINISHED")


def _abandon(run: Run, run_id: str) -> None:
    """Mark the parent run of a run that an error ended as FAILED, as far as the registry still answers."""
    with connect(run.tracking_uri) as client, suppress(Exception):
        client.set_terminated(run_id, "FAILED")


def _record_trial(client: Any, run_id: str, trial: Trial) -> None:
    """In one batch: a call for each value costs a transaction each."""
    params: dict[str, Any] = {"candidate": trial.candidate}
    metrics: dict[str, float] = {"seconds": trial.seconds}
    tags = {"quantgate.outcome": str(trial.outcome), "quantgate.cached": str(trial.cached)}
    if trial.refusal:
        tags |= {"quantgate.refusal": trial.refusal.kind, "mlflow.note.content": trial.refusal.reason}
    if trial.variant:
        params |= {"variant_digest": trial.variant.digest, **_flat({"session": trial.variant.session.__dict__})}
        params |= {f"changed.{what}": count for what, count in trial.variant.changes.items()}
        metrics["size_bytes"] = trial.variant.size_bytes
    if trial.accuracy:
        metrics[trial.accuracy.metric] = trial.accuracy.value
    if trial.drop and trial.drop.high is not None:
        metrics |= {"metric_drop": trial.drop.value, "metric_drop_upper": trial.drop.high}
    if trial.flips:
        metrics |= {"flips_lost": trial.flips.lost, "flips_gained": trial.flips.gained}
    if trial.accuracy and trial.accuracy.sqnr and trial.accuracy.sqnr.low is not None:
        metrics |= {"sqnr_db": trial.accuracy.sqnr.value, "sqnr_db_lower": trial.accuracy.sqnr.low}
    if trial.coverage:
        metrics["coverage_macs"] = trial.coverage.share
        if trial.coverage.time_share is not None:
            metrics |= {
                "coverage_time": trial.coverage.time_share,
                "unfused_kernels": len(trial.coverage.unfused),
                "unfused_time": trial.coverage.unfused_time or 0.0,
                "inserted_kernels": len(trial.coverage.inserted),
                "inserted_time": trial.coverage.inserted_time or 0.0,
            }
    if trial.saturation and trial.saturation.worst:
        metrics["saturation_max"] = trial.saturation.worst.share
        tags["quantgate.saturation_worst"] = trial.saturation.worst.place
    points = dict(zip(point_labels(trial.latencies), trial.latencies, strict=True))
    for label, latency in points.items():
        metrics |= {f"{name}_{label}": value for name, value in _latency_metrics(latency).items()}
        if latency.disturbance:
            tags[f"quantgate.disturbance.{label}"] = latency.disturbance
    tags |= {f"quantgate.gate.{verdict.gate}": verdict.outcome for verdict in trial.verdicts}
    registry_call(client.log_batch, run_id, params=_params(params), metrics=_metrics(metrics), tags=_tags(tags))
    for path in [trial.accuracy.scores_path] if trial.accuracy else []:
        registry_call(client.log_artifact, run_id, str(path), "accuracy")
    if trial.coverage and trial.coverage.kernels_path:
        registry_call(client.log_artifact, run_id, str(trial.coverage.kernels_path), "coverage")
    for label, latency in points.items():
        registry_call(client.log_artifact, run_id, str(latency.samples_path), f"latency/{label}")
    registry_call(client.set_terminated, run_id, "FAILED" if trial.refusal else "FINISHED")


def _latency_metrics(latency: Latency) -> dict[str, float]:
    """The figures of one operating point that are worth watching from run to run; what was not measured is left out."""
    figures = {
        "latency_p50_ms": latency.p50_ms,
        "speedup_p50": latency.speedup.value,
        "speedup_p50_lower": latency.speedup.low,
        "peak_memory_mb": latency.peak_memory_mb,
        "load_peak_memory_mb": latency.load_peak_memory_mb,
        "load_ms": latency.load_ms,
        "energy_mj": latency.energy_mj,
        "requests_per_s": latency.throughput.requests_per_s if latency.throughput else None,
        "end_to_end_p50_ms": latency.end_to_end.p50_ms if latency.end_to_end else None,
    }
    return {name: value for name, value in figures.items() if value is not None}


def _datasets(evidence: Evidence) -> list[Any]:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    def describe(samples: Samples, role: str) -> Any:
        file = samples.file
        shapes = {name: [str(array.dtype), *array.shape[1:]] for name, array in samples.inputs.items()}
        dataset = Dataset(
            name=file.path.stem,
            digest=file.digest[:36],
            source_type="local",
            source=json.dumps({"uri": file.path.as_uri()}),
            schema=json.dumps(shapes),
            profile=json.dumps({"rows": file.rows, "sha256": file.digest}),
        )
        return DatasetInput(dataset, [InputTag("mlflow.data.context", role)])

    given = {"calibration": evidence.calibration, "evaluation": evidence.evaluation, "traffic": evidence.traffic}
    return [describe(samples, role) for role, samples in given.items() if samples is not None]


def _table(result: Result) -> dict[str, list[Any]]:
    """The candidates as columns, for MLflow's table view."""
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


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined with dots."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _params(values: dict[str, Any]) -> list[Any]:
    from mlflow.entities import Param

    # MLflow refuses a key with any other character.
    return [Param(re.sub(r"[^\w\-. :/]", "", key), str(value)) for key, value in values.items()]


def _metrics(values: dict[str, float]) -> list[Any]:
    import time

    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    return [Metric(key, float(value), now, 0) for key, value in values.items()]


def _tags(values: dict[str, str]) -> list[Any]:
    from mlflow.entities import RunTag

    return [RunTag(key, value) for key, value in values.items()]
