"""Export of a registered version: MLflow's folder, or one for a model server or another program that runs decoders."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.champion.readback import check_folder, download_version
from tasks.registry.champion_slot import TAG, VARIANT_DIGEST, ChampionSlot, find_place, number_at, own_versions
from tasks.registry.mlflow_registry import connect
from tasks.run.settings import state_folder, tracking_uri
from tasks.serving.exporter import Exporter, RegisteredVersion, Written, exporter_of
from tasks.serving.folder import check_own, write_folder
from validators.errors import JobError

if TYPE_CHECKING:
    from mlflow import MlflowClient

# The option for the version as MLflow has it.
AS_IT_IS = "--out"


@dataclass(frozen=True)
class Exported:
    """Result of an export: the version, its files below `folder`, and the parts of the approval that the format cannot hold."""

    uri: str
    candidate: str
    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def export_version(
    option: str, model: str, target: str, folder: Path, version: int | None = None, max_batch: int | None = None
) -> Exported:
    """Write the champion, or a version, in the format of an option of `quantgate export`.

    `max_batch` replaces the largest measured batch size, for a server's repository.

    Raises:
        JobError: no such model or version, no champion, other files where it would be written, or a version that the format
            cannot hold.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    folder = folder.absolute()
    with _fetched(model, target, version) as fetched:
        exporter = Exporter(_as_it_is) if option == AS_IT_IS else exporter_of(option, fetched.manifest)
        # Staged outside a repository: a polling server would take a partial folder for a model.
        place = folder / fetched.name if exporter.in_repository else folder
        check_own(place)
        made = exporter.write(fetched, place, max_batch)
        folder.parent.mkdir(parents=True, exist_ok=True)
        about = {**fetched.origin, **({"not_carried_over": made.notes} if made.notes else {})}
        write_folder(place, made.contents, about, folder.parent)
        return Exported(fetched.uri, fetched.candidate, place, tuple(made.contents), made.notes)


def _as_it_is(version: RegisteredVersion, _folder: Path, _max_batch: int | None) -> Written:
    """All artifacts, from which MLflow can load the model."""
    root = version.artifacts.parent
    return Written({str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()})


@contextmanager
def _fetched(model: str, target: str, version: int | None) -> Iterator[RegisteredVersion]:
    """Download a version and check it against its tags and manifest; its files are removed at the end of the block."""
    with connect(tracking_uri(state_folder())) as client, tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        place, found = _find_version(client, model, target, version)
        uri = place.uri(str(found.version))
        artifacts = download_version(uri, Path(scratch))
        check_folder(uri, artifacts, found.tags)
        candidate, digest = str(found.tags.get(f"{TAG}candidate", "")), str(found.tags[VARIANT_DIGEST])
        yield RegisteredVersion(uri, place.name, candidate, digest, artifacts)


def _find_version(client: MlflowClient, model: str, target: str, wanted: int | None) -> tuple[ChampionSlot, Any]:
    place = find_place(client, model, target)
    number = str(wanted) if wanted is not None else number_at(client, place, place.alias)
    versions = own_versions(client, place)
    if number is None:
        raise JobError(
            found=f"{place.name} has no version with the alias {place.alias}",
            expected="a champion",
            fix=f"name a version with --version: one of {', '.join(versions)}",
        )
    if number not in versions:
        raise JobError(
            found=f"version {number} of {place.name} is not a variant for {place.target}",
            expected=f"one of {', '.join(versions)}",
            fix="correct the version",
        )
    return place, versions[number]
