"""Subject of the watch: the champion in the registry, its source, and its calibration data."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from tasks.champion.compare_champion import variant_of
from tasks.champion.fetch_champion import fetch_champion
from tasks.evidence.load_data import describe_source, load_file
from tasks.evidence.resolve_source import resolve_source
from tasks.registry.champion_slot import TAG, ChampionSlot, champion_at, own_versions, place_of
from tasks.registry.mlflow_registry import connect
from tasks.run.context import Run
from validators.errors import CandidateRefused, DataError, SourceError
from validators.records.journal import predecessors
from validators.records.run import Champion, Source, Variant
from validators.samples.datasets import Samples, TensorSpec
from validators.samples.feeds import Feeds


@dataclass(frozen=True)
class FixedRange:
    """Ends of the champion's fixed range for a tensor, and the share of values outside of it at promotion."""

    low: float
    high: float
    share_outside: float


@dataclass(frozen=True)
class Lineage:
    """Registry data on the champion: its source, the digest of its calibration data, and the version to roll back to."""

    place: ChampionSlot
    champion: Champion
    source_uri: str
    calibration_digest: str
    predecessor: str | None


@dataclass(frozen=True)
class WatchedChampion:
    """The champion, with everything that it is compared with.

    `variant` is None if it cannot be loaded here, `calibration` if its calibration data is missing or changed; `notes` say why.
    """

    source: Source
    feeds: Feeds
    output: TensorSpec
    batch_axis: int | None
    variant: Variant | None
    ranges: dict[str, FixedRange]
    calibration: Samples | None
    notes: tuple[str, ...]


def find_watched(run: Run) -> Lineage | None:
    """Return the registered champion of the job's source on its target, or None.

    Raises:
        InfrastructureError: the registry does not answer.
        SourceError: the source is not a registered model.
    """
    if run.job.source_name is None:
        raise SourceError(
            found=f"the job has `watch` and the source {run.job.source!r}",
            expected="a registered model, since variants of a file are never promoted",
            fix="register the model, or remove `watch`",
        )
    place = place_of(run.job.source_name, run.job.target)
    with connect(run.tracking_uri) as client:
        champion = champion_at(client, place)
        if champion is None:
            return None
        versions = {number: one.tags for number, one in own_versions(client, place).items()}
    tags = versions.get(champion.version, {})
    before = predecessors(champion.version, versions)
    return Lineage(
        place,
        champion,
        source_uri=f"models:/{tags.get(f'{TAG}source_name')}/{tags.get(f'{TAG}source_version')}",
        calibration_digest=tags.get(f"{TAG}calibration_digest", ""),
        predecessor=before[0] if before else None,
    )


def load_watched(run: Run, lineage: Lineage) -> WatchedChampion:
    """Load the champion, its source and its calibration data, and check each against the digest of its lineage.

    Raises:
        InfrastructureError: the registry does not answer, or the champion's files are not those that were promoted.
        SourceError: the champion's source is missing, or has changed.
    """
    champion = lineage.champion
    source = resolve_source(replace(run, job=run.job.model_copy(update={"source": lineage.source_uri})))
    if source.digest != champion.source_digest:
        raise SourceError(
            found=f"{lineage.source_uri} has sha256 {source.digest[:12]}",
            expected=f"{champion.source_digest[:12]}, the source of the champion, version {champion.version}",
            fix="restore that version of the model, or promote a variant of the present one",
        )
    feeds, output, batch_axis = describe_source(run, source)
    fetched = fetch_champion(run, champion)
    manifest: dict[str, Any] = json.loads(fetched.manifest.read_text(encoding="utf-8"))
    notes: list[str] = []
    variant, calibration = None, None
    try:
        variant = variant_of(run, champion)
    except CandidateRefused as error:
        notes.append(f"agreement is not measured: {error.found}")
    try:
        calibration = load_calibration(run, lineage, feeds, source)
    except DataError as error:
        notes.append(f"drift is not measured, only saturation of the champion's ranges: {error.found}")
    ranges = {tensor: FixedRange(**ends) for tensor, ends in manifest["ranges"].items()}
    if not ranges:
        notes.append("saturation is not measured: the champion fixes no range")
    return WatchedChampion(source, feeds, output, batch_axis, variant, ranges, calibration, tuple(notes))


def load_calibration(run: Run, lineage: Lineage, feeds: Feeds, source: Source) -> Samples:
    """Load the champion's calibration data, which is the job's unless somebody changed it.

    Raises:
        DataError: the data is missing, or has changed.
    """
    place = run.job.data.calibration
    if place is None:
        raise DataError(
            found="a job without calibration data",
            expected="samples that the traffic can be compared with",
            fix="set `data.calibration`, promote again, and the next look measures drift",
        )
    samples = load_file(run, "calibration", place, feeds, source)
    if samples.file.digest != lineage.calibration_digest:
        raise DataError(
            found=f"calibration data {samples.file.path.name} has sha256 {samples.file.digest[:12]}, but the champion was "
            f"calibrated on {lineage.calibration_digest[:12] or 'data that its tags do not name'}",
            expected="the data on which the champion was calibrated",
            fix="restore that data, or promote a variant that is calibrated on the present data",
        )
    return samples
