"""The champion's artifact, from the registry into the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tasks.champion.readback import check_folder
from tasks.registry.mlflow_registry import connect, download, registry_call
from tasks.run.context import Run
from tasks.run.settings import registry_uri
from tasks.storage.product import Product
from validators.records.run import Champion

# Names of a champion's file other than that of ONNX: a compiled package, and OpenVINO's own.
OTHER_FILES = ("model.pt2", "model.xml")


@dataclass(frozen=True)
class FetchedChampion:
    """The champion's artifact and its manifest, as they came from the registry."""

    model: Path
    manifest: Path


def fetch_champion(run: Run, champion: Champion) -> FetchedChampion:
    """Fetch the champion's artifact once; check on every call that each file is what was registered.

    Raises:
        VersionUnsound: one is not, or is missing.
        InfrastructureError: the registry does not answer.
    """
    uri = f"models:/{champion.name}/{champion.version}"
    with connect(run.tracking_uri) as client:
        tags = registry_call(client.get_model_version, champion.name, champion.version).tags
    inputs = (registry_uri(run.tracking_uri), champion.name, champion.version, champion.digest)
    make = partial(_download, run.tracking_uri, uri, tags)
    fetched = run.store.make(Product("champion", inputs, FetchedChampion, make))[0]
    check_folder(uri, fetched.manifest.parent, tags)
    return fetched


def _download(tracking_uri: str, uri: str, tags: Mapping[str, str], folder: Path) -> FetchedChampion:
    with connect(tracking_uri):
        model = download(uri, folder)
    # Nothing of a version is opened before it is known to be quantgate's own.
    check_folder(uri, model / "artifacts", tags)
    variant = model / "artifacts" / "variant"
    others = (variant / name for name in OTHER_FILES if (variant / name).exists())
    path = next(others, variant / "model.onnx")
    return FetchedChampion(path, model / "artifacts" / "manifest.json")
