"""Repair of the state that a killed promotion leaves; `tasks/champion/promote_version.py` lists the possible states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tasks.champion.readback import check_artifact
from tasks.registry.champion_slot import ChampionSlot, own_versions, version_at
from tasks.registry.mlflow_registry import registry_call
from tasks.run.context import log
from validators.errors import VersionUnsound
from validators.records.journal import (
    DONE,
    FAILED,
    GOING_ON,
    INTERRUPTED,
    JOURNAL,
    Journal,
    now,
    read_journal,
    tag_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient


def reconcile(client: MlflowClient, place: ChampionSlot) -> None:
    """Repair the state after killed promotions. The caller must hold the lock of the place, so that none is in progress.

    A champion with an unfinished promotion was loaded and checked against the judged artifact before the alias moved. It
    stays if its files are unchanged; otherwise the previous champion is restored.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    champion = version_at(client, place, place.alias)
    if champion is not None:
        _finish(client, place, champion)
    if version_at(client, place, place.staging) is not None:
        log.warning("removing models:/%s@%s, which a promotion left that was killed", place.name, place.staging)
        registry_call(client.delete_registered_model_alias, place.name, place.staging)
    for number, version in own_versions(client, place).items():
        journal = read_journal(version.tags)
        if journal is not None and journal.phase in GOING_ON:
            write_phase(client, place, number, journal, INTERRUPTED, f"it ended when it was {journal.phase}")


def write_phase(
    client: MlflowClient, place: ChampionSlot, number: str, journal: Journal, phase: str, reason: str = ""
) -> None:
    """Write the reached phase to the journal of a version.

    Raises:
        InfrastructureError: the registry does not answer.
    """
    written = replace(journal, phase=phase, at=now(), reason=reason)
    registry_call(client.set_model_version_tag, place.name, number, JOURNAL, tag_of(written))


def restore(client: MlflowClient, place: ChampionSlot, previous: str | None) -> None:
    """Set the alias back to its previous version, or delete it if there was none or that version is gone."""
    from mlflow.exceptions import MlflowException

    if previous is not None:
        try:
            registry_call(client.set_registered_model_alias, place.name, place.alias, previous)
            return
        except MlflowException as error:
            log.warning("version %s of %s cannot be the champion again: %s", previous, place.name, error)
    registry_call(client.delete_registered_model_alias, place.name, place.alias)


def _finish(client: MlflowClient, place: ChampionSlot, champion: Any) -> None:
    """Finish or undo a promotion that was killed after it moved the alias."""
    journal = read_journal(champion.tags)
    if journal is None or journal.phase not in GOING_ON | {INTERRUPTED}:
        return
    number = str(champion.version)
    try:
        check_artifact(place, champion)
    except VersionUnsound as error:
        log.warning("%s; the champion before it is restored", error.found)
        restore(client, place, journal.previous)
        write_phase(client, place, number, journal, FAILED, error.found)
    else:
        log.warning("finishing the promotion of models:/%s/%s, which was killed", place.name, number)
        write_phase(client, place, number, journal, DONE)
