"""What there is at the moment: champions, the last runs, what is under way, and what waits for an approval."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.records.run_lookup import Recorded, latest
from tasks.registry.champion_slot import TAG, Place, place_of
from tasks.registry.mlflow_registry import connect, pages, registry_call
from tasks.run.exclusive_run import turn_name
from tasks.run.settings import database_file, registry_uri, state_folder, store_place, tracking_uri
from tasks.storage.locks import Locks
from tasks.storage.places import open_locks
from validators.errors import LockTaken
from validators.records.journal import read_journal

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from tasks.champion.approvals import Waiting

SHOWN_RUNS = 10
_ALIAS = "champion-"
_PAGE = 100


@dataclass(frozen=True)
class Standing:
    """A champion: which version of which model it is, for which target, and since when (UTC)."""

    model: str
    target: str
    version: str
    candidate: str
    since: str


@dataclass(frozen=True)
class UnderWay:
    """A run that MLflow has as running; `state` says what is known of its process."""

    run: Recorded
    state: str


@dataclass(frozen=True)
class Overview:
    """All of it; `approvals` is None where no Prefect server is named that runs could wait on."""

    registry: str
    champions: tuple[Standing, ...] = ()
    under_way: tuple[UnderWay, ...] = ()
    runs: tuple[Recorded, ...] = ()
    approvals: tuple[Waiting, ...] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing at all."""
        return not (self.champions or self.under_way or self.runs or self.approvals)


def survey(model: str | None) -> Overview:
    """What there is, of one model (a source, or the one that holds its variants) or of all.

    Raises:
        InfrastructureError: the registry does not answer, or a Prefect server is named that does not.
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
            under_way=tuple(UnderWay(run, _state(run, locks)) for run in going_on),
            runs=tuple(run for run in runs if run.status != "RUNNING"),
            approvals=waiting,
        )


def _champions(client: MlflowClient, model: str | None) -> list[Standing]:
    found = []
    for registered in pages(client.search_registered_models, max_results=_PAGE):
        if model is not None and registered.name not in (model, place_of(model, "").name):
            continue
        for alias, version in sorted(registered.aliases.items()):
            if alias.startswith(_ALIAS):
                place = Place(registered.name, alias.removeprefix(_ALIAS))
                found.append(_standing(registry_call(client.get_model_version, place.name, version), place))
    return found


def _standing(version: Any, place: Place) -> Standing:
    journal = read_journal(version.tags)
    since = journal.at[:16].replace("T", " ") if journal else ""
    return Standing(place.name, place.target, str(version.version), version.tags.get(f"{TAG}candidate", ""), since)


def _waiting(model: str | None) -> tuple[Waiting, ...] | None:
    if not os.environ.get("PREFECT_API_URL"):
        return None
    from tasks.champion.approvals import list_waiting

    return tuple(one for one in list_waiting() if _is_of(one.source, model))


def _is_of(source: str, model: str | None) -> bool:
    """Whether a source is a version of the model, or of that whose variants the model holds.

    >>> _is_of("models:/fraud/3", "fraud"), _is_of("models:/fraud@live", "fraud-quantized"), _is_of("models:/fraud/3", "fra")
    (True, True, False)
    """
    if model is None or source == model:
        return True
    name = source.removeprefix("models:/").replace("@", "/").split("/")[0]
    return source.startswith("models:/") and model in (name, place_of(name, "").name)


def _state(run: Recorded, locks: Locks | None) -> str:
    """Whether the process of a run is still there: MLflow is told nothing by one that was killed."""
    if run.outcome == "awaiting_approval":
        return "waits for an approval"
    if os.environ.get("PREFECT_API_URL") and run.flow_run:
        return _flow_state(run.flow_run)
    if locks is None:
        return "running, as far as MLflow knows"
    try:
        with locks.hold(turn_name(run.source, run.target), wait_seconds=0):
            return "cut short: nothing works on it; running its job again resumes it"
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
    return f"{found.state_name or 'unknown'}, as the Prefect server has it".lower()
