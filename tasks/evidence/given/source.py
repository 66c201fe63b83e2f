"""Origin of a given file: a path, a registered model version, artifacts of a run, or a script of the job's own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.engines.given import only_file
from tasks.evidence.given.run_script import file_of_script
from tasks.registry.mlflow_registry import MODEL_URI, connect, download, named_version, registry_call
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.run.settings import registry_uri
from tasks.storage.product import Product
from validators.errors import CandidateRefused, SourceError
from validators.job.given_file import GivenFile

if TYPE_CHECKING:
    from mlflow import MlflowClient


def with_local_file(run: LoadedRun, given: GivenFile, endings: Collection[str]) -> GivenFile:
    """Return the given file with its path; unless the job names one it is in the store. `endings` are those of the engine.

    Raises:
        JobError: the operator does not allow the script.
        CandidateRefused: there is no such version or artifact, it holds not exactly one model file, or the script makes none.
        InfrastructureError: the registry does not answer.
    """
    if given.make is not None:
        file = file_of_script(run, given, endings)
    elif given.source is not None:
        file = _fetched(run, given.source, endings)
    else:
        file = only_file(given.file, endings, given.file.name)
    return given.model_copy(update={"file": file})


def _fetched(run: Run, uri: str, endings: Collection[str]) -> Path:
    from mlflow.exceptions import MlflowException

    def fetch(folder: Path) -> Path:
        with connect(run.tracking_uri):
            model = download(uri, folder)
        return only_file(model, endings, uri)

    try:
        with connect(run.tracking_uri) as client:
            made = _state_of(client, uri)
        inputs = (registry_uri(run.tracking_uri), uri, made, sorted(endings))
        return run.store.make(Product("given", inputs, Path, fetch))[0]
    except SourceError as error:
        raise CandidateRefused(kind="invalid", found=error.found, expected=error.expected, fix=error.fix) from error
    except MlflowException as error:
        raise CandidateRefused(
            kind="invalid",
            found=f"{uri}: {error.message}",
            expected="a version, or an artifact of a run, of this MLflow server",
            fix="correct `source`",
        ) from error


def _state_of(client: MlflowClient, uri: str) -> Any:
    """Return what changes when the files behind a URI change: of a version nothing does, a run may log again."""
    match = MODEL_URI.fullmatch(uri)
    if match:
        return named_version(client, match).creation_timestamp
    _, run_id, path = uri.split("/", 2)
    folder = path if registry_call(client.list_artifacts, run_id, path) else str(Path(path).parent)
    files = registry_call(client.list_artifacts, run_id, None if folder == "." else folder)
    return registry_call(client.get_run, run_id).info.end_time, sorted((one.path, one.file_size) for one in files)
