"""Export of a registered version, as MLflow's folder or as a model for Triton Inference Server."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.champion.readback import check_folder, download_version
from tasks.registry.champion_slot import TAG, VARIANT_DIGEST, ChampionSlot, find_place, number_at, own_versions
from tasks.registry.mlflow_registry import connect
from tasks.run.settings import state_folder, tracking_uri
from tasks.serving.folder import check_own, write_folder
from tasks.serving.triton import ONNX, TritonModel, check_served, tensors_of, triton_model
from validators.errors import JobError

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Characters of registry names that Triton's folder names must not have.
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class Exported:
    """Result of an export: the version, its files below `folder`, and the parts of the approval that the format cannot hold."""

    uri: str
    candidate: str
    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def export_version(model: str, target: str, folder: Path, version: int | None = None) -> Exported:
    """Write all artifacts of the champion, or of a version, to `folder`, from which MLflow can load the model.

    Raises:
        JobError: no such model or version, no champion, or `folder` holds other files.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or `folder` cannot be written.
    """
    check_own(folder)
    with connect(tracking_uri(state_folder())) as client, tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        place, found = _find_version(client, model, target, version)
        uri = place.uri(str(found.version))
        root = _fetch(uri, Path(scratch), found).parent
        contents = {str(path.relative_to(root)): path for path in sorted(root.rglob("*")) if path.is_file()}
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_folder(folder, dict(contents), _about(uri, found), folder.absolute().parent)
    return Exported(uri, _candidate(found), folder, tuple(contents), ())


def export_triton(
    model: str, target: str, repository: Path, version: int | None = None, max_batch: int | None = None
) -> Exported:
    """Write the champion, or a version, as a model of a Triton repository: `<model>/config.pbtxt`, and the files in `1`.

    `max_batch` replaces the largest measured batch size.

    Raises:
        JobError: no such model or version, no champion, other files where the model would be written, or a model that Triton
            cannot serve.
        VersionUnsound: the version's files differ from those that were registered.
        InfrastructureError: the registry does not answer, or the folder cannot be written.
    """
    with connect(tracking_uri(state_folder())) as client, tempfile.TemporaryDirectory(prefix="quantgate-") as scratch:
        place, found = _find_version(client, model, target, version)
        name = _UNFIT.sub("_", place.name)
        folder = repository.absolute() / name
        check_own(folder)
        uri = place.uri(str(found.version))
        artifacts = _fetch(uri, Path(scratch), found)
        made = _as_triton(name, uri, artifacts, folder, found, max_batch)
        contents: dict[str, Path | str] = {f"1/{new}": artifacts / "variant" / old for new, old in made.files.items()}
        contents["config.pbtxt"] = made.config
        # Staged outside the repository: a polling server would take a partial folder for a model.
        beside = repository.absolute().parent
        beside.mkdir(parents=True, exist_ok=True)
        write_folder(folder, contents, _about(uri, found) | {"not_carried_over": made.notes}, beside)
    return Exported(uri, _candidate(found), folder, tuple(contents), made.notes)


def _as_triton(name: str, uri: str, artifacts: Path, folder: Path, found: Any, max_batch: int | None) -> TritonModel:
    manifest = json.loads((artifacts / "manifest.json").read_text(encoding="utf-8"))
    about = f"Written by quantgate: {_candidate(found)}, {uri}, sha256 {found.tags[VARIANT_DIGEST]}"
    check_served(manifest)
    tensors = tensors_of(artifacts / "variant" / ONNX)
    return triton_model(name, manifest, tensors, folder, about=about, max_batch=max_batch)


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


def _fetch(uri: str, folder: Path, found: Any) -> Path:
    """Return the version's folder of artifacts, checked against its tags and manifest."""
    artifacts = download_version(uri, folder)
    check_folder(uri, artifacts, found.tags)
    return artifacts


def _candidate(found: Any) -> str:
    return str(found.tags.get(f"{TAG}candidate", ""))


def _about(uri: str, found: Any) -> dict[str, object]:
    return {"version": uri, "candidate": _candidate(found), "variant_sha256": found.tags[VARIANT_DIGEST]}
