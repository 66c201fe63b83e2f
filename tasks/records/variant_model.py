"""Record of a variant as a LoggedModel of MLflow, so that MLflow's own search and charts find and compare variants.

Its name is the candidate's, with `_` for characters that MLflow refuses; its source run is the candidate's run or, of the
promoted variant, the run that uploaded its files. Its params are `candidate`, `target`, `precision`, `variant_digest` and the
session's settings. Its metrics are those of the candidate's run, linked to the evaluation data: `speedup_p50`, `latency_p50_ms`
and the like without a label are of the point that gates judge. Its tags are `quantgate.outcome`, `quantgate.gate.<gate>` with
the gate's outcome and, of the promoted variant, `quantgate.version` as `<name>/<version>`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tasks.registry.mlflow_entities import DIGEST_LENGTH, as_metrics, as_tags
from tasks.registry.mlflow_registry import registry_call, sent_once
from validators.job.candidate_name import decode
from validators.records.run import Champion, DataFile, Trial

if TYPE_CHECKING:
    from mlflow import MlflowClient

VERSION = "quantgate.version"


def record_model(
    client: MlflowClient,
    run_id: str,
    trial: Trial,
    *,
    params: Mapping[str, Any],
    metrics: Mapping[str, float],
    tags: Mapping[str, str],
    evaluation: DataFile | None,
    champion: Champion | None,
) -> None:
    """Create or update the LoggedModel of a trial's variant; `run_id` is the candidate's run.

    The model of the promoted variant is the one that the version was uploaded as, and is loadable.

    Raises:
        ServiceDown: the tracking server does not answer.
    """
    assert trial.variant is not None
    run: Any = registry_call(client.get_run, run_id)
    is_champion = champion is not None and champion.identity == trial.variant.identity
    version = f"{champion.name}/{champion.version}" if champion and is_champion else ""
    model_id = (_uploaded(client, champion) if version and champion else None) or _created(client, run, trial.candidate)
    candidate = decode(trial.candidate)
    facts = {"target": candidate.target, "precision": candidate.precision} | dict(params)
    known: Any = registry_call(client.get_logged_model, model_id)
    missing = {key: str(value)[:500] for key, value in facts.items() if key not in known.params}
    if missing:
        registry_call(client.log_model_params, model_id, missing)
    shown = {tag.key: tag.value for tag in as_tags(dict(tags) | ({VERSION: version} if version else {}))}
    registry_call(client.set_logged_model_tags, model_id, shown)
    links = {"model_id": model_id, "run_id": run_id}
    if evaluation is not None:
        links |= {"dataset_name": evaluation.path.stem, "dataset_digest": evaluation.digest[:DIGEST_LENGTH]}
    registry_call(client.log_batch, run_id, metrics=as_metrics(dict(metrics), **links))


def _created(client: MlflowClient, run: Any, candidate: str) -> str:
    """Return the model of a candidate's run, which an earlier attempt may have created."""
    experiments, source = [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
    found: Any = registry_call(client.search_logged_models, experiments, filter_string=source)
    if found:
        return str(found[0].model_id)
    with sent_once():
        created: Any = registry_call(
            client.create_logged_model,
            run.info.experiment_id,
            name=re.sub(r"[^\w@-]", "_", candidate),
            source_run_id=run.info.run_id,
            model_type="quantgate",
        )
    registry_call(client.finalize_logged_model, created.model_id, "READY")
    return str(created.model_id)


def _uploaded(client: MlflowClient, champion: Champion) -> str | None:
    """Return the model that a version was uploaded as; None for a version of another kind."""
    version: Any = registry_call(client.get_model_version, champion.name, champion.version)
    source = version.source or ""
    return str(source.removeprefix("models:/")) if source.startswith("models:/") else None
