"""Retention of variants in the registry; the rules are in `tasks.service.retention_policy`.

All functions raise InfrastructureError if the registry does not answer.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tasks.registry.champion_slot import place_of
from tasks.registry.mlflow_registry import connect, pages, registry_call
from tasks.registry.mlflow_runs import EXPERIMENT
from tasks.run.settings import state_folder, store_place, tracking_uri
from tasks.service.file_retention import delete_thing, find_things
from tasks.service.retention_policy import (
    SUFFIX,
    TARGET,
    LoggedModel,
    Policy,
    RetentionDecision,
    Version,
    judge_models,
    judge_things,
    judge_versions,
    name_of,
)
from tasks.storage.leases import open_locks
from tasks.storage.locks import Locks
from validators.errors import LockTaken

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The name that a promotion passes to `mlflow.pyfunc.log_model`.
LOGGED_NAME = "variant"
log = logging.getLogger("quantgate")


@dataclass(frozen=True)
class RetentionOutcome:
    """The decision for every item, the deleted items by kind and name, and those that could not be deleted, with why."""

    fates: tuple[RetentionDecision, ...]
    deleted: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


def list_kept(policy: Policy) -> RetentionOutcome:
    """Return the decision for every variant, artifact, store entry, report and leftover.

    Artifacts are judged as if the versions that may be deleted were deleted already.
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


def delete_all(policy: Policy, listed: RetentionOutcome) -> RetentionOutcome:
    """Delete the items that may be deleted; each is judged again right before, since it may have been used meanwhile.

    The next list finds what a crash left: artifacts are deleted after their version, and half-deleted items are listed again.
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
    """Delete a version of a registered model; return the reason if it must be kept by now, else an empty text.

    Holds the lock of promotions and rollbacks on its target. Aliases that people set have no such lock: they are read last.
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
        return "a promotion or rollback holds the lock"
    except MlflowException as error:
        return str(error).splitlines()[0][:200]
    return ""


def delete_model(client: MlflowClient, identifier: str, policy: Policy) -> str:
    """Delete a logged variant, its files first; return the reason if it must be kept by now, else an empty text."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    try:
        found: Any = registry_call(client.get_logged_model, identifier)
        (fate,) = judge_models([_logged(found)], every_version(client), policy, time.time())
        if not fate.goes:
            return fate.reason
        if identifier not in found.artifact_location.split("/"):
            return f"its files are at {found.artifact_location}, a location that it shares with others"
        registry_call(get_artifact_repository(found.artifact_location).delete_artifacts)
        registry_call(client.delete_logged_model, identifier)
    except MlflowException as error:
        return str(error).splitlines()[0][:200]
    return ""


def variant_models(client: MlflowClient) -> list[str]:
    """Return the registered models whose names are those of variants."""
    found = pages(client.search_registered_models, filter_string=f"name LIKE '%{SUFFIX}'")
    return sorted(model.name for model in found if model.name.endswith(SUFFIX))


def versions_of(client: MlflowClient, model: str) -> tuple[Version, ...]:
    """Return every version of a registered model with its aliases, read from the model, which lists all of them."""
    aliases: dict[str, list[str]] = {}
    known: Any = registry_call(client.get_registered_model, model)
    versions = [one for one in every_version(client, model) if one.model == model]
    for alias, number in known.aliases.items():
        aliases.setdefault(str(number), []).append(alias)
    return tuple(replace(one, aliases=tuple(sorted(aliases.get(one.number, ())))) for one in versions)


def every_version(client: MlflowClient, model: str | None = None) -> tuple[Version, ...]:
    """Return every version of the registry, or of one model, without aliases."""
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
    """Return the variants that runs of quantgate logged, promoted or not."""
    experiment: Any = registry_call(client.get_experiment_by_name, EXPERIMENT)
    if experiment is None:
        return []
    found = pages(client.search_logged_models, experiment_ids=[experiment.experiment_id])
    return [_logged(one) for one in found if one.name == LOGGED_NAME]


def _logged(found: Any) -> LoggedModel:
    return LoggedModel(found.model_id, found.creation_timestamp / 1000)


def tell_kept(kept: RetentionOutcome, *, deleted: bool) -> str:
    """Return a summary in one sentence."""
    goes = Counter(fate.kind for fate in kept.fates if fate.goes)
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(goes.items())) or "nothing"
    stays = sum(not fate.goes for fate in kept.fates)
    if not deleted:
        return f"may go: {counts}; {stays} stay; nothing was deleted"
    left = f"; {len(kept.failed)} stay after all: {'; '.join(kept.failed[:5])}" if kept.failed else ""
    return f"deleted {len(kept.deleted)} ({counts}){left}; {stays} stay"
