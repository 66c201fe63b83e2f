"""Step 1: the registered model version, or the file, that a run starts from, as one checked ONNX file."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from tasks.context import MAKER_CODE, Run, log
from tasks.export import export_program
from tasks.ptq.graph import gather_weights, notes_of, scratch
from tasks.ptq.upgrade import upgrade_opset
from tasks.registry import connect, registry_call
from tasks.step import step
from validators.datasets import load_samples
from validators.digests import digest_file, digest_model, digest_values
from validators.errors import SourceError
from validators.onnx_graph import LEAST_OPSET, check_source_graph, external_files, opset_of
from validators.records import Source

_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))")


_CODE = digest_values(
    MAKER_CODE, *(digest_file(Path(__file__).with_name(name)) for name in ("resolve_source.py", "export.py"))
)


@dataclass(frozen=True)
class _Version:
    name: str
    version: str
    run_id: str | None
    created: int


@step("resolve source")
def resolve_source(run: Run) -> Source:
    """The source of the job.

    Raises:
        SourceError: it is not there, not ready, of another flavor, pickled, or not a float ONNX graph.
        InfrastructureError: the registry does not answer.
    """
    with run.clock.work("resolve source"):
        source = _from_file(run) if run.job.source_is_file else _from_registry(run)
        check_source_graph(source.onnx_path, custom_operators=bool(run.libraries))
    if run.libraries:
        # What is made from a source, and how well it does, depends on what its operators compute.
        digest = digest_values(source.digest, [library.digest for library in run.libraries])
        source = replace(source, digest=digest)
    for about, note in notes_of(source.onnx_path).items():
        log.info("the source was %s %s", about, note)
    log.info("source %s, %s, sha256 %s", source.uri, source.flavor, source.digest[:12])
    return source


def _from_file(run: Run) -> Source:
    path = Path(run.job.source)
    check_source_graph(path, custom_operators=bool(run.libraries))

    def gather(folder: Path) -> Source:
        parity = _gather(run, path, folder / "model.onnx")
        digest = digest_model(folder / "model.onnx")
        return Source(str(path), path.stem, None, digest, folder / "model.onnx", "file", parity_max_abs=parity)

    files = [path, *external_files(path)]
    return run.store.make("source", (_CODE, *(digest_file(file) for file in files)), Source, gather)[0]


def _from_registry(run: Run) -> Source:
    version = _find_version(run)
    uri = f"models:/{version.name}/{version.version}"
    key = (run.tracking_uri, uri, version.created, _CODE)

    def fetch(folder: Path) -> Source:
        from mlflow.artifacts import download_artifacts

        with connect(run.tracking_uri):
            model = Path(registry_call(download_artifacts, artifact_uri=uri, dst_path=str(folder)))
        return _read_model(model, folder, uri, version, run)

    source, _ = run.store.make("source", key, Source, fetch)
    return replace(source, uri=run.job.source)


def _find_version(run: Run) -> _Version:
    from mlflow.exceptions import MlflowException

    match = _URI.fullmatch(run.job.source)
    if match is None:
        raise SourceError(
            found=f"source {run.job.source!r}",
            expected="models:/<name>/<version>, models:/<name>@<alias>, or a path to an ONNX file",
            fix="correct `source`",
        )
    name, number, alias = match.group("name", "version", "alias")
    with connect(run.tracking_uri) as client:
        try:
            found: Any = (
                registry_call(client.get_model_version, name, number)
                if number
                else registry_call(client.get_model_version_by_alias, name, alias)
            )
        except MlflowException as error:
            raise SourceError(
                found=f"no {run.job.source} in the registry at {run.tracking_uri}",
                expected="a registered model version",
                fix="register the model first, or set MLFLOW_TRACKING_URI to the registry that has it",
            ) from error
    if found.status != "READY":
        raise SourceError(
            found=f"{run.job.source} in state {found.status}: {found.status_message or 'no message'}",
            expected="state READY",
            fix="wait for the registration to finish, or register the model again",
        )
    return _Version(found.name, str(found.version), found.run_id or None, found.creation_timestamp)


def _read_model(model: Path, folder: Path, uri: str, version: _Version, run: Run) -> Source:
    """Find the ONNX file of a downloaded MLflow model, or export its PyTorch program."""
    description = model / "MLmodel"
    flavors = yaml.safe_load(description.read_text(encoding="utf-8"))["flavors"] if description.exists() else {}
    base = Source(uri, version.name, version.version, "", folder / "model.onnx", "onnx", version.run_id)
    if "onnx" in flavors:
        path = model / flavors["onnx"]["data"]
        parity = _gather(run, path / "model.onnx" if path.is_dir() else path, base.onnx_path)
        shutil.rmtree(model, ignore_errors=True) if model != folder else None
        return replace(base, digest=digest_model(base.onnx_path), parity_max_abs=parity)
    if "pytorch" in flavors:
        program = _find_program(model / flavors["pytorch"].get("model_data", "data"), uri)
        parity = export_program(program, base.onnx_path, lambda inputs: _parity_samples(run, inputs))
        shutil.rmtree(model, ignore_errors=True) if model != folder else None
        return replace(base, flavor="pytorch", digest=digest_model(base.onnx_path), parity_max_abs=parity)
    raise SourceError(
        found=f"{uri} with flavors {sorted(set(flavors) - {'python_function'}) or 'none'}",
        expected="the flavor onnx or pytorch",
        fix="log the model with mlflow.onnx.log_model or mlflow.pytorch.log_model(..., serialization_format='pt2')",
    )


def _gather(run: Run, path: Path, gathered: Path) -> float | None:
    """Write the model in one piece, in operators that the passes read; how far its outputs moved if it had to be upgraded."""
    custom = bool(run.libraries)
    if opset_of(check_source_graph(path, custom_operators=custom)) >= LEAST_OPSET:
        gather_weights(path, gathered, custom_operators=custom)
        return None
    with scratch() as folder:
        gather_weights(path, folder / "model.onnx", custom_operators=custom)
        return upgrade_opset(
            folder / "model.onnx", gathered, lambda inputs: _parity_samples(run, inputs), run.libraries
        )


def _find_program(data: Path, uri: str) -> Path:
    programs = sorted(data.rglob("*.pt2"))
    if programs:
        return programs[0]
    kind: Literal["pickled", "unknown"] = (
        "pickled" if list(data.rglob("*.pth")) or list(data.rglob("*.pkl")) else "unknown"
    )
    raise SourceError(
        found=f"{uri}: a {kind} PyTorch model ({', '.join(sorted(file.name for file in data.rglob('*') if file.is_file()))})",
        expected="an exported program (.pt2): a pickle can run any code when it is loaded",
        fix="log it again with mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=...)",
    )


def _parity_samples(run: Run, inputs: Any) -> Any:
    data = run.job.data
    # Where a calibration set is still to be picked, there is none yet.
    role = "calibration" if data.calibration.exists() else "evaluation"
    return load_samples(getattr(data, role), inputs, label=data.label, role=role, slices=data.slices)
