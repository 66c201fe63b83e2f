"""Checks of the version that the registry serves against the judged artifact."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.engines.tensorrt.shipped.files import check_files
from tasks.registry.champion_slot import MANIFEST_DIGEST, ChampionSlot
from tasks.registry.mlflow_registry import download
from validators.digests import digest_file
from validators.errors import InfrastructureError, VersionUnsound
from validators.gates.read_back import find_difference, tolerance_of

Batch = Mapping[str, NDArray[np.generic]]
FIX = "check the artifact store, and run again"


def check_artifact(place: ChampionSlot, version: Any) -> dict[str, Any]:
    """Download a version and check the manifest against the version's tag, and every file against it; return the manifest.

    Raises:
        VersionUnsound: a file differs from the registered one.
        InfrastructureError: the registry does not answer.
    """
    uri = place.uri(str(version.version))
    with tempfile.TemporaryDirectory(prefix="quantgate-") as folder:
        artifacts = download_version(uri, Path(folder))
        check_folder(uri, artifacts, version.tags)
        manifest: dict[str, Any] = json.loads((artifacts / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def check_folder(uri: str, artifacts: Path, tags: Mapping[str, str]) -> None:
    """Check a version's downloaded artifacts against its tags and the manifest, as `check_artifact` does.

    Raises:
        VersionUnsound: a file differs from the registered one.
    """
    manifest = artifacts / "manifest.json"
    if not manifest.is_file():
        raise _unsound(uri, "has no manifest", "the manifest that it was registered with")
    expected = tags.get(MANIFEST_DIGEST)
    # Versions of older releases have no such tag.
    if expected and (found := digest_file(manifest)) != expected:
        raise _unsound(uri, f"has a manifest with sha256 {found}", expected)
    try:
        check_files(artifacts / "variant", json.loads(manifest.read_text(encoding="utf-8"))["files"])
    except (RuntimeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unsound(uri, f"lacks the files that it was registered with: {error}", "its registered files") from error


def download_version(uri: str, folder: Path) -> Path:
    """Download a version below `folder`, and return its folder of artifacts.

    Raises:
        VersionUnsound: the registry has no such artifacts.
        InfrastructureError: the registry does not answer.
    """
    from mlflow.exceptions import MlflowException

    try:
        return download(uri, folder) / "artifacts"
    except (MlflowException, FileNotFoundError) as error:  # the registry answers that they are missing
        raise _unsound(uri, f"cannot be downloaded: {error}", "its registered files") from error


def load_version(uri: str) -> Any:
    """Load the model at a URI as a consumer does, which checks every file against the manifest.

    Raises:
        VersionUnsound: the model does not load.
        InfrastructureError: the registry does not answer.
    """
    import mlflow
    import requests
    from mlflow.exceptions import MlflowException

    try:
        return mlflow.pyfunc.load_model(uri)
    except (MlflowException, requests.RequestException, ConnectionError) as error:
        raise InfrastructureError(
            found=f"{uri} is not served: {str(error).splitlines()[0][:300]}",
            expected="a model that the registry serves",
            fix=FIX,
        ) from error
    except Exception as error:  # any error of the consumer's code or of the runtime keeps consumers from loading it
        raise _unsound(uri, f"does not load: {type(error).__name__}: {error}", "a model that answers") from error


def check_answer(uri: str, requests: Sequence[Batch], expected: Sequence[Batch], candidate: str) -> None:
    """Load a version and raise unless it answers each request as the judged artifact did, within the precision's tolerance.

    `requests` and `expected` map names to arrays with samples along axis 0. Each output is compared over all requests.

    Raises:
        VersionUnsound: the version does not load, or its answers differ.
        InfrastructureError: the registry does not answer.
    """
    loaded = load_version(uri)
    try:
        answers = [loaded.predict(request) for request in requests]
    except Exception as error:
        raise _unsound(
            uri, f"fails on a request: {type(error).__name__}: {error}", "outputs for every request"
        ) from error
    for name in expected[0]:
        if any(answer.get(name) is None for answer in answers):
            raise _unsound(uri, f"returns no output {name!r}", "every output of the artifact that was judged")
        # Compared flat, since the shape of an output may depend on the request.
        shapes = [np.shape(answer[name]) for answer in answers]
        judged = [np.shape(one[name]) for one in expected]
        if shapes != judged:
            raise _unsound(uri, f"returns {name!r} with the shapes {shapes}", f"{judged}")
        found, wanted = (np.concatenate([np.ravel(one[name]) for one in side]) for side in (answers, expected))
        if difference := find_difference(found, wanted, tolerance_of(candidate)):
            raise _unsound(
                uri,
                f"returns other values of {name!r} than the artifact that was judged: {difference}",
                "the same values",
            )


def _unsound(uri: str, found: str, expected: str) -> VersionUnsound:
    return VersionUnsound(found=f"{uri} {found}", expected=expected, fix=FIX)
