"""Crash-safe promotion of an approved variant to champion.

The registry has no compare-and-swap on aliases, so a promotion holds the lock of its model and target. Each step below is one
write to the registry, so that a crash falls between two of them. The next holder of the lock repairs the state that a crash
leaves (`tasks/champion/reconcile.py`).

| killed after | what is there | what reconcile does |
|---|---|---|
| nothing, or the upload | files that no version refers to | nothing: no consumer sees them |
| the version is registered | journal `registered` | marks it `interrupted` |
| it is described | the same | the same |
| its files were read back | journal `verified` | the same |
| the staging alias is set | that alias, journal `verified` | removes the alias; the same |
| it answered as it was judged | staging alias, journal `moving`, champion as before | the same |
| the alias is moved | champion is the new version, journal `moving` | reads it back: `done`, or restores the previous |
| the staging alias is removed | the same without staging | the same |
| the journal says `done` | nothing to mend | nothing |
| the old alias is restored | journal of the phase that failed | marks it `interrupted` |

An `interrupted` version is complete: the next promotion of the same variant, from the same source and with the same manifest
and evidence, resumes it instead of registering another. Evidence names its run, so only a retry of that run resumes. A `failed`
version differs from the judged artifact and is never resumed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.champion.readback import check_artifact
from tasks.champion.reconcile import reconcile, restore, write_phase
from tasks.registry.champion_slot import (
    EVIDENCE_DIGEST,
    IDENTITY,
    MANIFEST_DIGEST,
    SOURCE_DIGEST,
    VARIANT_DIGEST,
    ChampionSlot,
    identity_at,
    number_at,
    own_versions,
    rolled_back_variants,
    version_at,
)
from tasks.registry.mlflow_registry import quiet_mlflow, registry_call, sent_once
from tasks.run.context import log
from tasks.storage.locks import HeldLock, Locks
from validators.errors import ChampionMoved, InfrastructureError, VersionUnsound
from validators.records.journal import (
    DONE,
    FAILED,
    INTERRUPTED,
    JOURNAL,
    MOVING,
    REGISTERED,
    VERIFIED,
    Journal,
    now,
    read_journal,
    tag_of,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Enough for the promotion of a model of several GB, which is read back once and loaded twice.
LOCK_WAIT_SECONDS = 900.0
# Tags that identify a registered version with the one that would be registered now.
SAME = (VARIANT_DIGEST, SOURCE_DIGEST, MANIFEST_DIGEST, EVIDENCE_DIGEST)


@dataclass(frozen=True)
class ApprovedVariant:
    """An approved variant to promote.

    `tags` are those of its version. `upload()` uploads its files and returns their URI. `check(uri)` raises `VersionUnsound`
    unless the model at the URI answers as the variant did. `describe()` returns the description of the version as Markdown.
    """

    tags: dict[str, str]
    upload: Callable[[], str]
    check: Callable[[str], None]
    describe: Callable[[], str]


def promote_version(
    client: MlflowClient,
    locks: Locks,
    place: ChampionSlot,
    offer: ApprovedVariant,
    *,
    judged_against: str | None,
    flow_run: str | None,
) -> str:
    """Make the offered variant the champion and return its version; nothing changes if it is the champion already.

    The alias moves last. Any failure, before or after that, leaves the alias at its former version. `judged_against` is the
    champion version that the variant was compared with, or None.

    Raises:
        ChampionMoved: the champion has changed since the comparison.
        VersionUnsound: the registry serves another artifact than the judged one.
        InfrastructureError: the registry does not answer, another promotion holds the lock, or the variant was rolled back
            since it was judged.
    """
    with locks.hold(place.lock, wait_seconds=LOCK_WAIT_SECONDS) as held:
        reconcile(client, place)
        present = version_at(client, place, place.alias)
        if present is not None and identity_at(place, present) == offer.tags[IDENTITY]:
            return str(present.version)
        check_unmoved(client, place, judged_against)
        # A mark whose version has no readable manifest is about every variant of its artifact.
        if rolled_back_variants(client, place).keys() & {offer.tags[IDENTITY], offer.tags[VARIANT_DIGEST]}:
            raise InfrastructureError(
                found=f"the variant was rolled back from {place.target} while it was being judged",
                expected="a variant that was not rolled back",
                fix="run again: the variant will fail the gate `not_rolled_back`, and the next best is tried",
            )
        journal = Journal(REGISTERED, previous=judged_against, flow_run=flow_run, at=now())
        version = _take_up(client, place, offer, journal) or _register(client, place, offer, journal)
        attempt = _Attempt(client, place, held, version, journal)
        try:
            _move(attempt, offer)
        except BaseException as error:
            _undo(attempt, error)
            raise
    return attempt.number


@dataclass(frozen=True)
class _Attempt:
    """A registered version during its promotion."""

    client: MlflowClient
    place: ChampionSlot
    held: HeldLock
    version: Any
    journal: Journal

    @property
    def number(self) -> str:
        return str(self.version.version)

    def write(self, phase: str, reason: str = "") -> None:
        """Write the reached phase to the version's journal."""
        write_phase(self.client, self.place, self.number, self.journal, phase, reason)


def _move(attempt: _Attempt, offer: ApprovedVariant) -> None:
    client, place, number = attempt.client, attempt.place, attempt.number
    registry_call(client.update_model_version, place.name, number, description=offer.describe())
    check_artifact(place, attempt.version)
    attempt.write(VERIFIED)
    registry_call(client.set_registered_model_alias, place.name, place.staging, number)
    offer.check(place.uri(place.staging))
    attempt.write(MOVING)
    attempt.held.check()
    check_unmoved(client, place, attempt.journal.previous)
    registry_call(client.set_registered_model_alias, place.name, place.alias, number)
    try:
        offer.check(place.uri(place.alias))
    finally:
        # If the alias has just been moved, another version answered the check.
        check_unmoved(client, place, number)
    registry_call(client.delete_registered_model_alias, place.name, place.staging)
    attempt.write(DONE)


def check_unmoved(client: MlflowClient, place: ChampionSlot, expected: str | None) -> None:
    """Raise unless the champion is the expected version; None expects no champion.

    Raises:
        ChampionMoved: the champion is another version.
        InfrastructureError: the registry does not answer.
    """
    found = number_at(client, place, place.alias)
    if found != expected:
        raise ChampionMoved(
            found=f"models:/{place.name}@{place.alias} is {_told(found)}",
            expected=f"{_told(expected)}, as when the variant was compared with it",
            fix="run again: finished work is kept, and the variant is compared with the new champion",
        )


def _told(number: str | None) -> str:
    return f"version {number}" if number else "no version"


def _take_up(client: MlflowClient, place: ChampionSlot, offer: ApprovedVariant, journal: Journal) -> Any:
    """Return the version that an interrupted attempt registered, updated to this attempt's tags; None if there is none."""
    for number, version in own_versions(client, place).items():
        left = read_journal(version.tags)
        same = all(version.tags.get(key) == offer.tags[key] for key in SAME)
        if left is None or left.phase != INTERRUPTED or not same or version.status != "READY":
            continue
        log.info("taking up models:/%s/%s, which an attempt before this one registered", place.name, number)
        tags = offer.tags | {JOURNAL: tag_of(journal)}
        for key, value in tags.items():
            if version.tags.get(key) != value:
                registry_call(client.set_model_version_tag, place.name, number, key, value)
        return version
    return None


def _register(client: MlflowClient, place: ChampionSlot, offer: ApprovedVariant, journal: Journal) -> Any:
    """Register a new version together with its journal, and return it."""
    import mlflow

    uri = offer.upload()
    # Sent once: a repeated request would register a second version. The next attempt resumes an unfinished one.
    with quiet_mlflow(), sent_once():
        made = registry_call(mlflow.register_model, uri, place.name, tags=offer.tags | {JOURNAL: tag_of(journal)})
    return registry_call(client.get_model_version, place.name, str(made.version))


def _undo(attempt: _Attempt, error: BaseException) -> None:
    """Restore the alias if it points to this version, mark the version, and remove the staging alias.

    If the registry does not answer, the next promotion repairs the state.
    """
    from mlflow.exceptions import MlflowException

    client, place, number = attempt.client, attempt.place, attempt.number
    reason = " ".join(str(getattr(error, "found", error) or type(error).__name__).split())[:1000]
    try:
        if number_at(client, place, place.alias) == number:
            restore(client, place, attempt.journal.previous)
        attempt.write(FAILED if isinstance(error, VersionUnsound) else INTERRUPTED, reason)
        if number_at(client, place, place.staging) == number:
            registry_call(client.delete_registered_model_alias, place.name, place.staging)
    except (InfrastructureError, MlflowException) as second:
        log.warning("models:/%s/%s is left as it is until the next promotion: %s", place.name, number, second)
