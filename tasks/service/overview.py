"""Overview of the present state: champions, the last runs, runs under way, and runs that wait for an approval."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.records.run_lookup import Recorded, latest
from tasks.registry.champion_slot import TAG, ChampionSlot, place_of
from tasks.registry.mlflow_registry import connect, pages, registry_call
from tasks.run.exclusive_run import turn_name
from tasks.run.settings import database_file, registry_uri, state_folder, store_place, tracking_uri
from tasks.storage.leases import open_locks
from tasks.storage.locks import Locks
from validators.errors import LockTaken
from validators.records.journal import read_journal

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.champion.approvals import PendingApproval

SHOWN_RUNS = 10
_ALIAS = "champion-"
_PAGE = 100


@dataclass(frozen=True)
class ChampionRow:
    """A champion: its model, target, version and candidate, and the time of its promotion (UTC)."""

    model: str
    target: str
    version: str
    candidate: str
    since: str


@dataclass(frozen=True)
class ActiveRun:
    """A run that MLflow lists as running; `state` describes its process."""

    run: Recorded
    state: str


@dataclass(frozen=True)
class Overview:
    """The whole overview; `approvals` is None if no Prefect server is configured for runs to wait on."""

    registry: str
    champions: tuple[ChampionRow, ...] = ()
    under_way: tuple[ActiveRun, ...] = ()
    runs: tuple[Recorded, ...] = ()
    approvals: tuple[PendingApproval, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """True if there is no champion, no run and no approval."""
        return not (self.champions or self.under_way or self.runs or self.approvals)


def survey(model: str | None) -> Overview:
    """Return the overview of one model (the source, or the model that holds its variants) or of all models.

    Raises:
        InfrastructureError: the registry, or the configured Prefect server, does not answer.
    """
    state = state_folder()
    uri = tracking_uri(state)
    waiting = _waiting(model)
    database = database_file(uri)
    if database is not None and not database.exists() and registry_uri(uri) == uri:
        return Overview(uri, approvals=waiting)
    with connect(uri) as client:
        runs = latest(client, SHOWN_RUNS, lambda run: _is_of(run.source, model))
        going_on = [run for run in runs if run.status == "RUNNING"]
        locks = open_locks(state, store_place()) if database else None
        return Overview(
            uri,
            champions=tuple(_champions(client, model)),
            under_way=tuple(ActiveRun(run, _state(run, locks)) for run in going_on),
            runs=tuple(run for run in runs if run.status != "RUNNING"),
            approvals=waiting,
        )


def _champions(client: MlflowClient, model: str | None) -> list[ChampionRow]:
    found = []
    for registered in pages(client.search_registered_models, max_results=_PAGE):
        if model is not None and registered.name not in (model, place_of(model, "").name):
            continue
        for alias, version in sorted(registered.aliases.items()):
            if alias.startswith(_ALIAS):
                place = ChampionSlot(registered.name, alias.removeprefix(_ALIAS))
                found.append(_standing(registry_call(client.get_model_version, place.name, version), place))
    return found


def _standing(version: Any, place: ChampionSlot) -> ChampionRow:
    journal = read_journal(version.tags)
    since = journal.at[:16].replace("T", " ") if journal else ""
    return ChampionRow(place.name, place.target, str(version.version), version.tags.get(f"{TAG}candidate", ""), since)


def _waiting(model: str | None) -> tuple[PendingApproval, ...] | None:
    if not os.environ.get("PREFECT_API_URL"):
        return None
    from tasks.champion.approvals import list_waiting

    return tuple(one for one in list_waiting() if _is_of(one.source, model))


def _is_of(source: str, model: str | None) -> bool:
    """Return True if a source is a version of the model, or of the model whose variants the model holds.

    >>> _is_of("models:/fraud/3", "fraud"), _is_of("models:/fraud@live", "fraud-quantized"), _is_of("models:/fraud/3", "fra")
    (True, True, False)
    """
    if model is None or source == model:
        return True
    name = source.removeprefix("models:/").replace("@", "/").split("/")[0]
    return source.startswith("models:/") and model in (name, place_of(name, "").name)


def _state(run: Recorded, locks: Locks | None) -> str:
    """Return in words whether the run's process is alive: MLflow shows the run of a killed process as running."""
    if run.outcome == "awaiting_approval":
        return "waits for an approval"
    if os.environ.get("PREFECT_API_URL") and run.flow_run:
        return _flow_state(run.flow_run)
    if locks is None:
        return "running, according to MLflow"
    try:
        with locks.hold(turn_name(run.source, run.target), wait_seconds=0):
            return "interrupted: no process works on it; run its job again to resume it"
    except LockTaken:
        return "running"


def _flow_state(flow_run: str) -> str:
    from uuid import UUID

    from prefect.exceptions import ObjectNotFound

    from tasks.run.prefect_server import server_client

    with server_client() as client:
        try:
            found = client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return "unknown to the Prefect server"
    return f"{found.state_name or 'unknown'}, according to the Prefect server".lower()
