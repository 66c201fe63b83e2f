"""Rollback of the champion to the version before it, or to a given version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.champion.promote_version import LOCK_WAIT_SECONDS, check_unmoved
from tasks.champion.readback import check_artifact, load_version
from tasks.champion.reconcile import reconcile, restore
from tasks.engines.catalog import find_target
from tasks.measure.inventory import take_inventory, this_processor
from tasks.registry.champion_slot import DEVICE, TAG, ChampionSlot, find_place, identity_at, number_at, own_versions
from tasks.registry.mlflow_registry import connect, registry_call, warn_of_local_locks
from tasks.run.context import log
from tasks.run.settings import state_folder, store_place, tracking_uri
from tasks.run.step import step
from tasks.storage.leases import open_locks
from tasks.storage.locks import HeldLock
from validators.errors import CandidateRefused, ChampionMoved, InfrastructureError, JobError, VersionUnsound
from validators.records.journal import ROLLED_BACK, RolledBack, now, predecessors, read_rolled_back, tag_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


@dataclass(frozen=True)
class Rollback:
    """Result of a rollback: the version that the alias left, and the version that it points to now; None is no version."""

    name: str
    alias: str
    left: str | None
    now: str | None

    def __str__(self) -> str:
        """Return the result in words.

        >>> str(Rollback("fraud-quantized", "champion-ort-cpu", "3", None))
        'models:/fraud-quantized@champion-ort-cpu: version 3 was left, and there is no champion now'
        """
        here = f"models:/{self.name}@{self.alias}"
        there = f"version {self.now} is the champion" if self.now else "there is no champion"
        if self.left == self.now:
            return f"{here}: {there} already"
        return f"{here}: {f'version {self.left} was left, and ' if self.left else ''}{there} now"


def roll_back(
    model: str,
    target: str,
    to: int | None = None,
    reason: str = "",
    *,
    leaving: int | None = None,
    request: str = "",
) -> Rollback:
    """Roll the champion of a model back to version `to`, or to the one before it; 0 deletes the alias.

    `model` names the source or the model that holds its variants. If the goal is an older version, the version that is left
    gets a mark with time, reason and goal, and no variant with its identity is promoted on this target again. The version that
    becomes the champion loses such a mark.

    `leaving` is the version that the decision is about. It is compared with the champion under the promotion lock, so that a
    version promoted since the decision stays. `request` identifies a request: when it is repeated after a crash, it goes back
    one version and not two.

    Raises:
        JobError: no such model or version, no champion, or no sound version before it.
        ChampionMoved: the champion is not `leaving`, or the alias was moved meanwhile.
        VersionUnsound: version `to` differs from the registered one, or does not load.
        InfrastructureError: the registry does not answer, or a promotion holds the lock.
    """
    state = state_folder()
    warn_of_local_locks(state)
    with connect(tracking_uri(state)) as client:
        place = find_place(client, model, target)
        with open_locks(state, store_place()).hold(place.lock, wait_seconds=LOCK_WAIT_SECONDS) as held:
            reconcile(client, place)
            present = number_at(client, place, place.alias)
            versions = own_versions(client, place)
            if leaving is not None and not _is_done(versions, present, to, request):
                _check_leaving(place, leaving, present)
            goal = _goal(place, versions, present, to, request)
            if goal != present:
                mark = RolledBack(int(goal or 0), now(), " ".join(reason.split())[:1000], request)
                _move(client, place, held, present, goal, mark)
            if goal is not None:
                _clear_marks(client, place, versions, versions[goal])
    done = Rollback(place.name, place.alias, present, goal)
    log.info("rollback: %s", done)
    return done


roll_back_step = step("roll back")(roll_back)


def _goal(
    place: ChampionSlot, versions: dict[str, Any], present: str | None, to: int | None, request: str
) -> str | None:
    """Return the version to go to; None to delete the alias."""
    if to == 0:
        return None
    if to is not None:
        if str(to) not in versions:
            raise JobError(
                found=f"version {to} of {place.name} is not a variant for {place.target}",
                expected=f"one of {', '.join(versions)}",
                fix="correct the version",
            )
        if str(to) != present:
            _check(place, versions[str(to)])
        return str(to)
    return present if _is_done(versions, present, to, request) else _predecessor(place, versions, present)


def _check_leaving(place: ChampionSlot, leaving: int, present: str | None) -> None:
    """Raise ChampionMoved unless the champion is the version that the decision is about."""
    if present != str(leaving):
        raise ChampionMoved(
            found=f"models:/{place.name}@{place.alias} is {f'version {present}' if present else 'no version'}",
            expected=f"version {leaving}, the version to roll back",
            fix="check the present champion, and name its version to roll it back",
        )


def _is_done(versions: dict[str, Any], present: str | None, to: int | None, request: str) -> bool:
    """Return whether the alias already is at `to`, or where an earlier attempt of the same request put it."""
    now_at = int(present or 0)
    if to is not None:
        return to == now_at
    marks = [read_rolled_back(version.tags) for version in versions.values()]
    return bool(request) and any(mark and (mark.request, mark.to) == (request, now_at) for mark in marks)


def _predecessor(place: ChampionSlot, versions: dict[str, Any], present: str | None) -> str:
    """Return the latest champion before the present one that is sound and was not rolled back itself."""
    if present is None:
        raise JobError(
            found=f"{place.name} has no champion for {place.target}",
            expected="a champion to roll back",
            fix="name the version with --to",
        )
    for number in predecessors(present, {number: version.tags for number, version in versions.items()}):
        try:
            _check(place, versions[number])
        except VersionUnsound as error:
            log.warning("version %s is passed over: %s", number, error.found)
        else:
            return number
    raise JobError(
        found=f"{place.name} has no intact version that was the champion for {place.target} before version {present}",
        expected="an earlier champion to return to",
        fix="name a version with --to, or delete the alias with --to 0, so that consumers load the source",
    )


def _check(place: ChampionSlot, version: Any) -> None:
    """Raise unless a version is as registered and, if it can run here, loads."""
    manifest = check_artifact(place, version)
    device = version.tags.get(DEVICE)
    engine = version.tags.get(f"{TAG}candidate", "").partition("@")[2]
    # Who rolls back may sit at another machine than those that serve; consumers refuse a version whose sums saturate.
    is_exact = not this_processor().saturates(manifest.get("saturates_without", ()))
    if (_loads_anywhere(engine or place.target) and is_exact) or device == _device_here(place.target):
        load_version(place.uri(str(version.version)))
    else:
        log.warning(
            "version %s was read back, and not loaded: it is for %s, which is not here", version.version, device
        )


def _loads_anywhere(engine: str) -> bool:
    try:
        found = find_target(engine)
        found.check_device()
    except (CandidateRefused, JobError):  # the engine, or the package that brought it, is not installed here
        return False
    return found.facts.loads_anywhere


def _device_here(target: Any) -> str | None:
    try:
        return take_inventory(target).device_key
    except (InfrastructureError, JobError):
        return None


def _move(
    client: MlflowClient, place: ChampionSlot, held: HeldLock, present: str | None, goal: str | None, mark: RolledBack
) -> None:
    """Mark the version to leave, then move the alias: after a crash between the two, it is not promoted again.

    A move to a newer version reverts a rollback, so the version that is left gets no mark.
    """
    marked = present is not None and int(goal or 0) < int(present)
    if marked:
        registry_call(client.set_model_version_tag, place.name, present, ROLLED_BACK, tag_of(mark))
    try:
        held.check()
        check_unmoved(client, place, present)
        restore(client, place, goal)
    except BaseException:
        if marked and number_at(client, place, place.alias) == present:
            registry_call(client.delete_model_version_tag, place.name, present, ROLLED_BACK)
        raise


def _clear_marks(client: MlflowClient, place: ChampionSlot, versions: dict[str, Any], champion: Any) -> None:
    """Remove the rollback marks from all versions with the new champion's variant."""
    marked = {number: version for number, version in versions.items() if ROLLED_BACK in version.tags}
    identity = identity_at(place, champion) if marked else ""
    for number, version in marked.items():
        if identity_at(place, version) == identity:
            registry_call(client.delete_model_version_tag, place.name, number, ROLLED_BACK)
