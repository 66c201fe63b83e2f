"""Registered models that hold variants: their names, their versions, and the champion among these.

Functions that ask the registry raise InfrastructureError if it does not answer.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.registry.mlflow_registry import download, pages, registry_call
from tasks.serving.promoted import FormerChampion
from validators.errors import JobError
from validators.records.journal import RolledBack, read_journal, read_rolled_back, was_champion
from validators.records.run import Champion, SessionSettings, identity_of

if TYPE_CHECKING:
    from mlflow import MlflowClient

TAG = "quantgate."
VARIANT_DIGEST, SOURCE_DIGEST = f"{TAG}variant_digest", f"{TAG}source_digest"
IDENTITY, EVIDENCE_DIGEST = f"{TAG}identity", f"{TAG}evidence_digest"
TARGET, DEVICE, MANIFEST_DIGEST = f"{TAG}target", f"{TAG}device", f"{TAG}manifest_digest"


@dataclass(frozen=True)
class ChampionSlot:
    """The champion's slot of one registered model on one target, with its names in the registry.

    Only one promotion at a time may change it.

    >>> ChampionSlot("fraud-quantized", "ort-cpu").alias
    'champion-ort-cpu'
    """

    name: str
    target: str

    @property
    def alias(self) -> str:
        """Alias that consumers load."""
        return f"champion-{self.target}"

    @property
    def staging(self) -> str:
        """Alias of a version during its promotion."""
        return f"promoting-{self.target}"

    @property
    def lock(self) -> str:
        """Name of the promotion lock."""
        return f"promotion-{self.name}-{self.target}"

    def uri(self, of: str) -> str:
        """Return the URI that a consumer loads, for an alias or a version number."""
        return f"models:/{self.name}{'/' if of.isdigit() else '@'}{of}"


def place_of(source_name: str, target: str) -> ChampionSlot:
    """Return the place of a source's variants on a target.

    >>> place_of("fraud", "ort-cpu").name
    'fraud-quantized'
    """
    return ChampionSlot(f"{source_name}-quantized", target)


def version_at(client: MlflowClient, place: ChampionSlot, alias: str) -> Any:
    """Return the version that an alias points to; None if there is no such alias, or no such model."""
    return _found(client.get_model_version_by_alias, place, alias)


def _found(call: Callable[[str, str], Any], place: ChampionSlot, which: str) -> Any:
    from mlflow.exceptions import MlflowException

    try:
        return registry_call(call, place.name, which)
    except MlflowException:  # it was deleted, or never made
        return None


def number_at(client: MlflowClient, place: ChampionSlot, alias: str) -> str | None:
    """Return the number of the version that an alias points to, or None."""
    found = version_at(client, place, alias)
    return None if found is None else str(found.version)


def own_versions(client: MlflowClient, place: ChampionSlot) -> dict[str, Any]:
    """Return every version of the model that quantgate registered for the target, by number, newest first."""
    # The registry's filters cannot escape a quote, and on PostgreSQL a backslash is an escape character.
    pattern = re.sub(r"['\\]", "_", place.name)
    ours = [
        one
        for one in pages(client.search_model_versions, filter_string=f"name LIKE '{pattern}'")
        if one.name == place.name and one.tags.get(TARGET) == place.target and one.tags.get(VARIANT_DIGEST)
    ]
    return {str(one.version): one for one in sorted(ours, key=lambda one: int(one.version), reverse=True)}


def find_place(client: MlflowClient, model: str, target: str) -> ChampionSlot:
    """Return the place of a model's variants on a target; `model` names the source or the model that holds them.

    Raises:
        JobError: there are no variants, or both the source's model and `model` itself hold some.
    """
    places = [place for place in (place_of(model, target), ChampionSlot(model, target)) if own_versions(client, place)]
    if len(places) != 1:
        found = " and ".join(place.name for place in places)
        raise JobError(
            found=f"both {found} have variants for {target}" if places else f"{model!r} has no variants for {target}",
            expected="the name of a source, or of the model that holds its variants",
            fix="name the model that holds the variants"
            if places
            else "look up the name, and the targets of its versions, in the registry",
        )
    return places[0]


def identity_at(place: ChampionSlot, version: Any) -> str:
    """Return the identity of a version's variant (`Variant.identity`); empty for a version that quantgate did not register.

    Versions of earlier releases have no such tag: their manifest has the session settings. If it cannot be read, the identity
    is the digest of the artifact alone.
    """
    from mlflow.exceptions import MlflowException

    digest = str(version.tags.get(VARIANT_DIGEST, ""))
    if not digest or IDENTITY in version.tags:
        return str(version.tags.get(IDENTITY, "")) if digest else ""
    uri = f"{place.uri(str(version.version))}/artifacts/manifest.json"
    try:
        with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
            manifest = download(uri, folder)
            session = json.loads(manifest.read_text(encoding="utf-8"))["session"]
        return identity_of(digest, SessionSettings(**session))
    except (MlflowException, OSError, ValueError, LookupError, TypeError):
        return digest


def rolled_back_variants(client: MlflowClient, place: ChampionSlot) -> dict[str, RolledBack]:
    """Return the identities of the variants that were rolled back on the target, each with its mark."""
    marks = ((one, read_rolled_back(one.tags)) for one in own_versions(client, place).values())
    return {identity_at(place, version): mark for version, mark in marks if mark is not None}


def former_champions(client: MlflowClient, place: ChampionSlot) -> tuple[FormerChampion, ...]:
    """Return every version that was champion on the target, latest first, with those that were rolled back."""
    versions = {number: one.tags for number, one in own_versions(client, place).items() if was_champion(one.tags)}
    return tuple(
        FormerChampion(
            number,
            tags.get(f"{TAG}candidate", ""),
            tags.get(f"{TAG}speedup_p50", ""),
            journal.at if (journal := read_journal(tags)) else "",
            read_rolled_back(tags),
        )
        for number, tags in versions.items()
    )


def champion_at(client: MlflowClient, place: ChampionSlot, before_flow_run: str | None = None) -> Champion | None:
    """Return the present champion, or None; the one before it if the flow run `before_flow_run` promoted it."""
    version = version_at(client, place, place.alias)
    journal = read_journal(version.tags) if version is not None else None
    if journal is not None and before_flow_run is not None and journal.flow_run == before_flow_run:
        version = _found(client.get_model_version, place, journal.previous) if journal.previous else None
    if version is None:
        return None
    tags = version.tags
    return Champion(
        place.name,
        str(version.version),
        place.alias,
        digest=tags.get(VARIANT_DIGEST, ""),
        source_digest=tags.get(SOURCE_DIGEST, ""),
        candidate=tags.get(f"{TAG}candidate", ""),
        previous=str(version.version),
        device=tags.get(DEVICE, ""),
        identity=identity_at(place, version),
    )
