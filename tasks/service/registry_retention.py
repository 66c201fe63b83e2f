"""What the registry holds of old variants, listed and deleted by policy; the rules are in `tasks.service.retention_policy`."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.records.run_record import EXPERIMENT
from tasks.registry.champion_slot import place_of
from tasks.registry.mlflow_registry import connect, pages, registry_call
from tasks.run.context import log
from tasks.run.settings import state_folder, store_place, tracking_uri
from tasks.run.step import step
from tasks.service.file_retention import delete_thing, find_things
from tasks.service.retention_policy import (
    SUFFIX,
    TARGET,
    Fate,
    LoggedModel,
    Policy,
    Version,
    judge_models,
    judge_things,
    judge_versions,
    name_of,
)
from tasks.storage.locks import Locks
from tasks.storage.places import open_locks
from validators.errors import LockTaken

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Of `mlflow.pyfunc.log_model` in a promotion.
LOGGED_NAME = "variant"


@dataclass(frozen=True)
class RetentionOutcome:
    """The fate of everything that there is, and what was deleted, by kind and name, or why it was not after all."""

    fates: tuple[Fate, ...]
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


@step("list what is kept")
def list_kept(policy: Policy) -> RetentionOutcome:
    """The fate of every variant, artifact, store entry, report and leftover, as if all that goes were gone already.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    state, now = state_folder(), time.time()
    with connect(tracking_uri(state)) as client:
        models = variant_models(client)
        fates = [fate for model in models for fate in judge_versions(versions_of(client, model), policy, now)]
        gone = {fate.name for fate in fates if fate.goes}
        left = [version for version in every_version(client) if name_of(version) not in gone]
        fates += judge_models(logged_variants(client), left, policy, now)
    fates += judge_things(find_things(state), policy, now)
    return RetentionOutcome(tuple(fates))


@step("delete what goes")
def delete_all(policy: Policy, listed: RetentionOutcome) -> RetentionOutcome:
    """Delete what goes; each thing is judged again right before, since much may happen between a list and its end.

    What a crash leaves is found by the next list: a version without its artifacts is not there any more, artifacts without a
    version go, and so does what is half deleted.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    state = state_folder()
    locks = open_locks(state, store_place())
    deleted: list[str] = []
    failed: list[str] = []
    with connect(tracking_uri(state)) as client:
        for fate in listed.fates:
            if not fate.goes:
                continue
            if fate.kind == "version":
                why = delete_version(client, locks, fate.name, policy)
            elif fate.kind == "model":
                why = delete_model(client, fate.name, policy)
            else:
                why = delete_thing(state, fate, policy)
            (failed if why else deleted).append(f"{fate.kind} {fate.name}" + (f": {why}" if why else ""))
            (log.warning if why else log.info)(
                "retention: %s %s%s", fate.kind, fate.name, f" stays: {why}" if why else " is gone"
            )
    return replace(listed, deleted=tuple(deleted), failed=tuple(failed))


def delete_version(client: MlflowClient, locks: Locks, name: str, policy: Policy) -> str:
    """Delete a version of a registered model, unless it stays by now; why, or nothing where it went.

    Nothing is promoted or rolled back on its target meanwhile. Aliases that people set have no such lock: they are read last.
    """
    from mlflow.exceptions import MlflowException

    model, _, number = name.rpartition("/")
    try:
        found = {one.number: one for one in versions_of(client, model)}
        if number not in found:
            return ""
        place = place_of(model.removesuffix(SUFFIX), found[number].tags.get(TARGET, ""))
        with locks.hold(place.lock, wait_seconds=0):
            fates = {one.name: one for one in judge_versions(versions_of(client, model), policy, time.time())}
            if not fates[name].goes:
                return fates[name].reason
            registry_call(client.delete_model_version, model, number)
    except LockTaken:
        return "a promotion is going on"
    except MlflowException as error:
        return str(error).splitlines()[0][:200]
    return ""


def delete_model(client: MlflowClient, identifier: str, policy: Policy) -> str:
    """Delete the files of a logged variant and then its entry, unless a version is made of it by now; why, or nothing."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        found: Any = registry_call(client.get_logged_model, identifier)
        (fate,) = judge_models([_logged(found)], every_version(client), policy, time.time())
        if not fate.goes:
            return fate.reason
        if identifier not in found.artifact_location.split("/"):
            return f"its files are at {found.artifact_location}, which is no place of its own"
        registry_call(get_artifact_repository(found.artifact_location).delete_artifacts)
        registry_call(client.delete_logged_model, identifier)
    except MlflowException as error:
        return str(error).splitlines()[0][:200]
    return ""


def variant_models(client: MlflowClient) -> list[str]:
    """The registered models whose names are those of variants."""
    found = pages(client.search_registered_models, filter_string=f"name LIKE '%{SUFFIX}'")
    return sorted(model.name for model in found if model.name.endswith(SUFFIX))


def versions_of(client: MlflowClient, model: str) -> tuple[Version, ...]:
    """Every version of a registered model with the aliases that name it, read from the model, where they are whole."""
    aliases: dict[str, list[str]] = {}
    known: Any = registry_call(client.get_registered_model, model)
    versions = [one for one in every_version(client, model) if one.model == model]
    for alias, number in known.aliases.items():
        aliases.setdefault(str(number), []).append(alias)
    return tuple(replace(one, aliases=tuple(sorted(aliases.get(one.number, ())))) for one in versions)


def every_version(client: MlflowClient, model: str | None = None) -> tuple[Version, ...]:
    """Every version of the registry, or of one model, without aliases."""
    # The registry's filters have no escape for a quote: `_` stands for any one character, and callers compare the names.
    pattern = (model or "%").replace("'", "_").replace("\\", "_")
    return tuple(
        Version(
            one.name,
            str(one.version),
            one.creation_timestamp / 1000,
            dict(one.tags),
            logged_model=one.source.removeprefix("models:/") if (one.source or "").startswith("models:/") else "",
        )
        for one in pages(client.search_model_versions, filter_string=f"name LIKE '{pattern}'")
    )


def logged_variants(client: MlflowClient) -> list[LoggedModel]:
    """The variants that runs of quantgate logged, promoted or not."""
    experiment: Any = registry_call(client.get_experiment_by_name, EXPERIMENT)
    if experiment is None:
        return []
    found = pages(client.search_logged_models, experiment_ids=[experiment.experiment_id])
    return [_logged(one) for one in found if one.name == LOGGED_NAME]


def _logged(found: Any) -> LoggedModel:
    return LoggedModel(found.model_id, found.creation_timestamp / 1000, found.artifact_location)
