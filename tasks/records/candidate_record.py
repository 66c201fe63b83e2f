"""Record of one candidate in MLflow: a nested run with its recipe, figures, verdicts and their evidence.

All functions raise ServiceDown if the tracking server does not answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from tasks.records.candidate_result import finite
from tasks.records.variant_model import record_model
from tasks.registry.mlflow_entities import as_metrics, as_params, as_table, as_tags, flat
from tasks.registry.mlflow_registry import registry_call
from tasks.registry.mlflow_runs import NAME, OUTCOME, candidate_identity, find_or_create_run
from validators.records.artifact_paths import (
    BESIDE_FP16,
    BUILD_LOG,
    CONFIRMED,
    KERNELS,
    LATENCY,
    NOISE,
    SCORES,
    VERDICTS,
)
from validators.records.latencies import Latency, point_labels
from validators.records.measurements import Coverage, Estimate
from validators.records.run import Champion, DataFile, Trial

if TYPE_CHECKING:
    from mlflow import MlflowClient


def open_candidate_run(client: MlflowClient, run_id: str, candidate: str) -> str:
    """Return the id of a candidate's run, nested in the parent run; an earlier attempt's run is reused."""
    experiment = registry_call(client.get_run, run_id).info.experiment_id
    identity = candidate_identity(run_id) | {NAME: candidate}
    return str(find_or_create_run(client, experiment, identity).info.run_id)


def log_table(client: MlflowClient, run_id: str, columns: dict[str, list[Any]], path: str) -> None:
    """Log a table to a run, replacing an earlier attempt's; MLflow's own call would append to it."""
    registry_call(client.log_dict, run_id, as_table(columns), path)
    # Tag that lists the artifacts that MLflow's page shows as tables.
    tag = "mlflow.loggedArtifacts"
    known = json.loads(registry_call(client.get_run, run_id).data.tags.get(tag, "[]"))
    table = {"path": path, "type": "table"}
    if table not in known:
        registry_call(client.set_tag, run_id, tag, json.dumps([*known, table]))


def record_trial(
    client: MlflowClient,
    run_id: str,
    trial: Trial,
    evaluation: DataFile | None = None,
    champion: Champion | None = None,
) -> None:
    """Write a candidate's figures, verdicts and evidence files to its run and its LoggedModel, and end the run.

    All figures go in one batch, since each call is a transaction; those of a variant are linked to its model.
    """
    params, metrics, tags = _params(trial), _metrics(trial), _tags(trial)
    registry_call(
        client.log_batch,
        run_id,
        params=as_params(params),
        metrics=[] if trial.variant else as_metrics(metrics),
        tags=as_tags(tags),
    )
    if trial.variant:
        facts = {"params": params, "metrics": metrics, "tags": tags}
        record_model(client, run_id, trial, **facts, evaluation=evaluation, champion=champion)
    if trial.verdicts:
        told = [asdict(verdict) for verdict in trial.verdicts]
        # MLflow's table cannot hold NaN or Inf; the verdict's reason explains them.
        table = {
            key: [finite(one[key]) if isinstance(one[key], float) else one[key] for one in told] for key in told[0]
        }
        log_table(client, run_id, table, VERDICTS)
    for path, artifact in _files(trial):
        registry_call(client.log_artifact, run_id, str(path), str(PurePosixPath(artifact).parent))
    registry_call(
        client.set_terminated,
        run_id,
        "FAILED" if trial.refusal and not (trial.is_copy or trial.is_stopped) else "FINISHED",
    )


def _params(trial: Trial) -> dict[str, Any]:
    if trial.variant is None:
        return {"candidate": trial.candidate}
    variant = trial.variant
    recipe = {"candidate": trial.candidate, "variant_digest": variant.digest}
    changes = {f"changed.{what}": count for what, count in variant.changes.items()}
    return recipe | flat({"session": variant.session.__dict__}) | changes


def _tags(trial: Trial) -> dict[str, str]:
    tags = {OUTCOME: str(trial.outcome), "quantgate.cached": str(trial.cached)}
    if trial.refusal:
        tags |= {"quantgate.refusal": trial.refusal.kind, "mlflow.note.content": trial.refusal.reason}
    if trial.copies:
        tags["quantgate.copies"] = ", ".join(trial.copies)
    if trial.saturation and trial.saturation.worst:
        tags["quantgate.saturation_worst"] = trial.saturation.worst.place
    for label, latency in _points(trial).items():
        if latency.disturbance:
            tags[f"quantgate.disturbance.{label}"] = latency.disturbance
    return tags | {f"quantgate.gate.{verdict.gate}": verdict.outcome for verdict in trial.verdicts}


def _metrics(trial: Trial) -> dict[str, float]:
    """Return all measured figures that are finite, by name."""
    metrics: dict[str, float | None] = {"seconds": trial.seconds}
    if trial.variant:
        metrics["size_bytes"] = trial.variant.size_bytes
    if trial.accuracy:
        metrics[trial.accuracy.metric] = trial.accuracy.value
        metrics |= _ends("sqnr_db", trial.accuracy.sqnr, "lower")
    metrics |= _ends("metric_drop", trial.drop, "upper")
    if trial.flips:
        metrics |= {"flips_lost": trial.flips.lost, "flips_gained": trial.flips.gained}
    for found in trial.slices:
        metrics |= _ends(f"metric_drop.{found.column}.{found.group}", found.drop, "upper")
    if trial.coverage:
        metrics |= _coverage_metrics(trial.coverage)
    if trial.saturation and trial.saturation.worst:
        metrics["saturation_max"] = trial.saturation.worst.share
    for label, latency in _points(trial).items():
        metrics |= {f"{name}_{label}": value for name, value in _latency_metrics(latency).items()}
    if trial.latency:
        metrics |= _latency_metrics(trial.latency)
    if trial.beside_fp16:
        metrics |= {
            "speedup_fp16": trial.beside_fp16.speedup.value,
            "speedup_fp16_lower": trial.beside_fp16.speedup.low,
        }
    if confirmed := trial.confirmed:
        metrics |= {"confirmed_metric": confirmed.value, "confirmed_baseline": confirmed.baseline_value}
        metrics |= _ends("confirmed_drop", confirmed.drop, "upper")
        metrics |= _ends("confirmed_speedup_p50", confirmed.latency.speedup if confirmed.latency else None, "lower")
    if trial.draws:
        metrics |= _ends("draw_spread", trial.draws.spread, "upper")
    return {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}


def _ends(name: str, estimate: Estimate | None, side: str) -> dict[str, float | None]:
    """Return an estimate and the bound that its gate judges."""
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_{side}": estimate.high if side == "upper" else estimate.low}


def _coverage_metrics(coverage: Coverage) -> dict[str, float | None]:
    metrics: dict[str, float | None] = {"coverage_macs": coverage.share, "coverage_time": coverage.time_share}
    if coverage.time_share is not None:
        metrics |= {
            "unfused_kernels": len(coverage.unfused),
            "unfused_time": coverage.unfused_time,
            "inserted_kernels": len(coverage.inserted),
            "inserted_time": coverage.inserted_time,
        }
    return metrics


def _latency_metrics(latency: Latency) -> dict[str, float | None]:
    """Return the figures of one operating point that are worth comparing from run to run."""
    return {
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


def _files(trial: Trial) -> Iterator[tuple[Path, str]]:
    """Yield the evidence files of the verdicts, each with its artifact path."""
    log = (
        trial.refusal.log
        if trial.refusal
        else trial.variant.engine.log
        if trial.variant and trial.variant.engine
        else None
    )
    if log:
        yield log, BUILD_LOG
    if trial.accuracy:
        yield trial.accuracy.scores_path, SCORES
        if trial.accuracy.noise_path:
            yield trial.accuracy.noise_path, NOISE
    if trial.coverage and trial.coverage.kernels_path:
        yield trial.coverage.kernels_path, KERNELS
    for label, latency in _points(trial).items():
        yield latency.samples_path, LATENCY.format(place=label)
    if trial.beside_fp16:
        yield trial.beside_fp16.samples_path, LATENCY.format(place=BESIDE_FP16)
    if trial.confirmed and trial.confirmed.latency:
        yield trial.confirmed.latency.samples_path, LATENCY.format(place=CONFIRMED)


def _points(trial: Trial) -> dict[str, Latency]:
    return dict(zip(point_labels(trial.latencies), trial.latencies, strict=True))
