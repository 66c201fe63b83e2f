"""Origin of a given file: a path, a registered model version, or a script of the job's own."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tasks.evidence.given.run_script import file_of_script
from tasks.registry.mlflow_registry import MODEL_URI, connect, named_version, registry_call
from tasks.run.context import Run
from tasks.run.loaded_run import LoadedRun
from tasks.run.settings import registry_uri
from tasks.storage.product import Product
from validators.errors import CandidateRefused, SourceError
from validators.job.given_file import GivenFile
from validators.untrusted.paths import inside


def with_local_file(run: LoadedRun, given: GivenFile, endings: Collection[str]) -> GivenFile:
    """Return the given file with its path; unless the job names one it is in the store. `endings` are those of the engine.

    Raises:
        JobError: the operator does not allow the script.
        CandidateRefused: there is no such version, it does not hold exactly one model file, or the script makes none.
        InfrastructureError: the registry does not answer.
    """
    if given.make is not None:
        return given.model_copy(update={"file": file_of_script(run, given, endings)})
    return _of_version(run, given, given.source) if given.source is not None else given


def _of_version(run: Run, given: GivenFile, uri: str) -> GivenFile:
    match = MODEL_URI.fullmatch(uri)
    assert match is not None  # by the pattern of the key
    try:
        with connect(run.tracking_uri) as client:
            version = named_version(client, match)
    except SourceError as error:
        raise CandidateRefused(kind="invalid", found=error.found, expected=error.expected, fix=error.fix) from error

    def fetch(folder: Path) -> Path:
        from mlflow.artifacts import download_artifacts

        with connect(run.tracking_uri):
            model = Path(registry_call(download_artifacts, artifact_uri=uri, dst_path=str(folder)))
        return _only_file(model, uri)

    inputs = (registry_uri(run.tracking_uri), uri, version.creation_timestamp)
    file, _ = run.store.make(Product("given", inputs, Path, fetch))
    return given.model_copy(update={"file": file})


def _only_file(model: Path, uri: str) -> Path:
    """Return the one ONNX file, or `.xml` with a `.bin` beside it, of a downloaded version."""
    known = (path for path in model.rglob("*") if path.suffix in (".onnx", ".xml"))
    found = sorted(path for path in known if path.suffix == ".onnx" or path.with_suffix(".bin").exists())
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(model)) for path in found[:5]) or "none"
        raise CandidateRefused(
            kind="invalid",
            found=f"{uri} with the model files: {names}",
            expected="exactly one .onnx, or .xml with its .bin",
            fix="log the file alone as a model version, or name it with `file`",
        )
    return inside(model, str(found[0].relative_to(model)), said_by=uri)
