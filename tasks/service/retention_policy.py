"""Rules of retention: which registered variants, artifacts, store entries and old files may be deleted, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from validators.job.settings_base import Settings
from validators.records.journal import GOING_ON, ROLLED_BACK, predecessors, read_journal

VARIANT_DIGEST, TARGET = "quantgate.variant_digest", "quantgate.target"
SUFFIX = "-quantized"
DAY_SECONDS = 86_400.0
# Nobody can use what a killed process left unfinished; a day is longer than any step.
LEFTOVER_SECONDS = DAY_SECONDS

Kind = Literal["version", "model", "entry", "leftover", "data", "report", "log", "lock"]


class Policy(Settings):
    """Items that are always kept: the newest versions per model and target, and recently made or used ones."""

    keep_versions: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Newest versions to keep per model and target."""
    older_than_days: Annotated[int, Field(ge=1, le=36_500)] = 30
    """Keep whatever was made or last used within so many days."""


@dataclass(frozen=True)
class Version:
    """A version of a registered model: `created` in seconds since 1970.

    `aliases` name it, and `logged_model` holds its artifacts (empty if there is none).
    """

    model: str
    number: str
    created: float
    tags: Mapping[str, str]
    aliases: tuple[str, ...] = ()
    logged_model: str = ""


@dataclass(frozen=True)
class LoggedModel:
    """A variant as MLflow logged it: `created` in seconds since 1970."""

    identifier: str
    created: float


@dataclass(frozen=True)
class StoredItem:
    """A file or folder of the state: `used` in seconds since 1970; `refers_to` are the store entries that it names."""

    kind: Kind
    name: str
    used: float
    refers_to: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RetentionDecision:
    """The decision for one item: `goes` if it may be deleted, and the reason; `name` is unique within its kind."""

    kind: Kind
    name: str
    goes: bool
    reason: str


def judge_versions(versions: Sequence[Version], policy: Policy, now: float) -> tuple[RetentionDecision, ...]:
    """Return the decision for each version of one registered model, newest first.

    A version is kept if any of these holds: quantgate did not register it; an alias names it; it is a champion's predecessor;
    its promotion is in progress; a mark keeps its variant from being promoted again; it is young, or among the newest of its
    target.
    """
    ordered = sorted(versions, key=lambda one: int(one.number), reverse=True)
    before = _predecessors_of_champions(ordered)
    newest: dict[str, int] = {}
    fates = []
    for version in ordered:
        target = version.tags.get(TARGET, "")
        place = newest.get(target, 0)
        newest[target] = place + is_own(version)
        stays = _why_it_stays(version, before, place, policy, now)
        days = (now - version.created) / DAY_SECONDS
        fates.append(
            RetentionDecision(
                "version", name_of(version), not stays, stays or f"{days:.0f} days old, and {place} are newer"
            )
        )
    return tuple(fates)


def _why_it_stays(version: Version, before: Mapping[str, str], place: int, policy: Policy, now: float) -> str:
    """Return the first reason to keep a version; empty if there is none."""
    journal = read_journal(version.tags)
    reasons = {
        "not quantgate's": not is_own(version),
        f"alias {', '.join(version.aliases)}": bool(version.aliases),
        f"predecessor of {before.get(version.number)}": version.number in before,
        "its promotion is in progress": journal is not None and journal.phase in GOING_ON,
        "its mark keeps the variant from being promoted again": ROLLED_BACK in version.tags,
        f"among the newest {policy.keep_versions}": place < policy.keep_versions,
        f"younger than {policy.older_than_days} days": _is_young(version.created, policy, now),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def is_own(version: Version) -> bool:
    """Return True if quantgate registered the version."""
    return version.model.endswith(SUFFIX) and bool(version.tags.get(VARIANT_DIGEST))


def name_of(version: Version) -> str:
    """Return the version as people write it.

    >>> name_of(Version("fraud-quantized", "3", 0.0, {}))
    'fraud-quantized/3'
    """
    return f"{version.model}/{version.number}"


def _predecessors_of_champions(versions: Sequence[Version]) -> dict[str, str]:
    """Return the versions to which aliases could be rolled back, each with its alias; people may have set some aliases.

    Includes the predecessor that a rollback takes and the one that the journal names: the latter may be usable though marked.
    """
    found: dict[str, str] = {}
    for version in versions:
        same = {one.number: one.tags for one in versions if one.tags.get(TARGET) == version.tags.get(TARGET)}
        journal = read_journal(version.tags)
        first = [*predecessors(version.number, same)[:1], *([journal.previous] if journal and journal.previous else [])]
        for alias in version.aliases:
            found |= dict.fromkeys(first, alias)
    return found


def judge_models(
    models: Iterable[LoggedModel], versions: Iterable[Version], policy: Policy, now: float
) -> tuple[RetentionDecision, ...]:
    """Return the decision for logged variants: one may be deleted if it is old and no registered version uses it.

    A young one may be about to be registered.
    """
    named = {one.logged_model: name_of(one) for one in versions}
    return tuple(
        _fate("model", one.identifier, one.created, named.get(one.identifier, ""), "no version", policy, now)
        for one in models
    )


def judge_things(things: Sequence[StoredItem], policy: Policy, now: float) -> tuple[RetentionDecision, ...]:
    """Return the decision for files and folders of the state; a store entry is kept as long as a kept entry names it."""
    kept = {one.name for one in things if one.kind == "entry" and _is_young(one.used, policy, now)}
    names = {one.name: one.refers_to for one in things if one.kind == "entry"}
    holders: dict[str, str] = {}
    waiting = list(kept)
    while waiting:
        holder = waiting.pop()
        for other in names[holder] & names.keys() - kept - holders.keys():
            holders[other] = f"used by {holder}"
            waiting.append(other)
    fates = []
    for one in things:
        if one.kind in ("leftover", "lock"):
            goes = now - one.used >= LEFTOVER_SECONDS
            fates.append(
                RetentionDecision(
                    one.kind, one.name, goes, "left by a process that ended" if goes else "less than a day old"
                )
            )
        else:
            fates.append(_fate(one.kind, one.name, one.used, holders.get(one.name, ""), "not used", policy, now))
    return tuple(fates)


def _fate(kind: Kind, name: str, used: float, holder: str, why: str, policy: Policy, now: float) -> RetentionDecision:
    if holder:
        return RetentionDecision(kind, name, goes=False, reason=holder)
    if _is_young(used, policy, now):
        return RetentionDecision(kind, name, goes=False, reason=f"younger than {policy.older_than_days} days")
    return RetentionDecision(kind, name, goes=True, reason=f"{why} for {(now - used) / DAY_SECONDS:.0f} days")


def _is_young(at: float, policy: Policy, now: float) -> bool:
    return now - at < policy.older_than_days * DAY_SECONDS
