"""Step 1: the source of a run, a registered model version or a file, as one checked ONNX file."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from tasks.evidence.fetch_data import fetch_data
from tasks.evidence.sequences import first_calls
from tasks.evidence.torch_export import PARITY_SAMPLES, Pickled, export_program
from tasks.ptq.graph.declare import declare_outputs
from tasks.ptq.graph.edits import gather_weights, notes_of, scratch
from tasks.ptq.graph.upgrade import upgrade_opset
from tasks.registry.mlflow_registry import MODEL_URI, connect, named_version, registry_call
from tasks.run.context import Run, log
from tasks.run.settings import registry_uri
from tasks.run.step import step
from tasks.storage.product import Product
from validators.digests import digest_file, digest_model, digest_values
from validators.errors import SourceError
from validators.graph.source_graph import LEAST_OPSET, check_source_graph, opset_of
from validators.records.run import Source
from validators.samples.datasets import Arrays, Samples, TensorSpec, load_samples
from validators.samples.feeds import feeds_of
from validators.samples.readers import read_arrays
from validators.untrusted.bounded_yaml import load_yaml
from validators.untrusted.external_data import external_files
from validators.untrusted.operator_allowlist import may_unpickle
from validators.untrusted.paths import inside
from validators.untrusted.s3_uris import S3Uri

# Tools that convert models of other flavors to ONNX.
CONVERTERS = {
    "sklearn": "skl2onnx",
    "xgboost": "onnxmltools",
    "lightgbm": "onnxmltools",
    "catboost": "CatBoost's save_model(..., format='onnx')",
    "keras": "tf2onnx",
    "tensorflow": "tf2onnx",
    "transformers": "`optimum-cli export onnx`",
    "sentence_transformers": "`optimum-cli export onnx`",
    "spark": "onnxmltools",
}


@dataclass(frozen=True)
class _Version:
    name: str
    version: str
    run_id: str | None
    created: int


@step("resolve source")
def resolve_source(run: Run) -> Source:
    """Return the source of the job.

    Raises:
        SourceError: the source is missing, not ready, of an unsupported flavor, pickled, or not a float ONNX graph.
        InfrastructureError: the registry does not answer.
    """
    with run.clock.work("resolve source"):
        source = _from_file(run) if run.job.source_is_file else _from_registry(run)
        check_source_graph(source.onnx_path, custom_operators=bool(run.libraries))
    if run.libraries:
        # Variants and their measurements depend on what the custom operators compute.
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
    inputs = tuple(digest_file(file) for file in files)
    source, _ = run.store.make(Product("source", inputs, Source, gather))
    # The entry may stem from another job, whose file had the same content but another name.
    return replace(source, uri=str(path), name=path.stem)


def _from_registry(run: Run) -> Source:
    version = _find_version(run)
    uri = f"models:/{version.name}/{version.version}"
    inputs = (registry_uri(run.tracking_uri), uri, version.created)

    def fetch(folder: Path) -> Source:
        from mlflow.artifacts import download_artifacts

        with connect(run.tracking_uri):
            model = Path(registry_call(download_artifacts, artifact_uri=uri, dst_path=str(folder)))
        return _read_model(model, folder, uri, version, run)

    source, _ = run.store.make(Product("source", inputs, Source, fetch))
    return replace(source, uri=run.job.source)


def _find_version(run: Run) -> _Version:
    match = MODEL_URI.fullmatch(run.job.source)
    if match is None:
        raise SourceError(
            found=f"source {run.job.source!r}",
            expected="models:/<name>/<version>, models:/<name>@<alias>, or a path to an ONNX file",
            fix="correct `source`",
        )
    with connect(run.tracking_uri) as client:
        found = named_version(client, match)
    if found.status != "READY":
        raise SourceError(
            found=f"{run.job.source} in state {found.status}: {found.status_message or 'no message'}",
            expected="state READY",
            fix="wait for the registration to finish, or register the model again",
        )
    return _Version(found.name, str(found.version), found.run_id or None, found.creation_timestamp)


def _read_model(model: Path, folder: Path, uri: str, version: _Version, run: Run) -> Source:
    """Find the ONNX file of a downloaded MLflow model, or export its PyTorch program."""
    flavors = flavors_of(model, uri)
    base = Source(uri, version.name, version.version, "", folder / "model.onnx", "onnx", version.run_id)
    if "onnx" in flavors:
        path = inside(model, str(flavors["onnx"].get("data")), said_by="MLmodel")
        parity = _gather(run, path / "model.onnx" if path.is_dir() else path, base.onnx_path)
        shutil.rmtree(model, ignore_errors=True) if model != folder else None
        return replace(base, digest=digest_model(base.onnx_path), parity_max_abs=parity)
    if "pytorch" in flavors:
        flavor = flavors["pytorch"]
        data = inside(model, str(flavor.get("model_data", "data")), said_by="MLmodel")
        allowed = may_unpickle(version.name, version.version)
        program = _find_program(data, uri, allowed)
        pickled = _pickled(run, model, flavor) if program.suffix == ".pth" else None
        parity = export_program(
            program, base.onnx_path, lambda inputs: _parity_samples(run, inputs), pickled=pickled, trusted=allowed
        )
        shutil.rmtree(model, ignore_errors=True) if model != folder else None
        return replace(base, flavor="pytorch", digest=digest_model(base.onnx_path), parity_max_abs=parity)
    raise unsupported_flavor(uri, flavors)


def unsupported_flavor(uri: str, flavors: dict[str, dict[str, Any]]) -> SourceError:
    """Return the error for a version without a supported flavor."""
    named = sorted(set(flavors) - {"python_function"})
    converters = [f"{flavor} models are converted by {CONVERTERS[flavor]}" for flavor in named if flavor in CONVERTERS]
    return SourceError(
        found=f"{uri} with the MLflow flavors {', '.join(named or sorted(flavors)) or 'none'}, which are not supported",
        expected="the flavor onnx or pytorch",
        fix="; ".join(
            [
                *converters,
                "log the model with mlflow.onnx.log_model or mlflow.pytorch.log_model(..., serialization_format='pt2')",
            ]
        ),
    )


def flavors_of(model: Path, uri: str) -> dict[str, dict[str, Any]]:
    """Return the flavors in a model's `MLmodel` file, by name; empty if there is no such file."""
    if not (model / "MLmodel").exists():
        return {}
    try:
        flavors = load_yaml((model / "MLmodel").read_text(encoding="utf-8"))["flavors"]
        if all(isinstance(flavor, dict) for flavor in flavors.values()):
            return dict(flavors)
        problem = "a flavor is not a mapping"
    except (yaml.YAMLError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    raise SourceError(
        found=f"MLmodel of {uri}: {problem}", expected="an MLmodel file as MLflow writes it", fix="log the model again"
    )


def _pickled(run: Run, model: Path, flavor: dict[str, Any]) -> Pickled:
    """Return a few samples for tracing the module, and the code that was logged with it."""
    code = (inside(model, str(flavor["code"]), said_by="MLmodel"),) if flavor.get("code") else ()
    data = run.job.data
    arrays = read_arrays(_local(run, "evaluation"), "evaluation")
    skipped = {data.label, *data.slices, *data.group_names, *data.ignore}
    return Pickled({name: array[:PARITY_SAMPLES] for name, array in arrays.items() if name not in skipped}, code)


def _gather(run: Run, path: Path, gathered: Path) -> float | None:
    """Write the model as one file, at an opset that the passes support.

    Returns the largest absolute difference of the outputs if the opset was upgraded, else None.
    """

    def batch(inputs: tuple[TensorSpec, ...]) -> Arrays:
        samples = _parity_samples(run, inputs)
        fixed = (samples.feeds.samples if samples.feeds else inputs)[0].shape[0]
        return next(samples.batches(fixed if isinstance(fixed, int) else PARITY_SAMPLES))

    custom = bool(run.libraries)
    old = opset_of(check_source_graph(path, custom_operators=custom)) < LEAST_OPSET
    with scratch() as folder:
        plain = folder / "model.onnx" if old else gathered
        gather_weights(path, plain, custom_operators=custom)
        declared = declare_outputs(plain, batch, run.libraries)
        if declared:
            log.info("declared missing shapes of outputs: %s", ", ".join(declared))
        return upgrade_opset(plain, gathered, batch, run.libraries) if old else None


def _find_program(data: Path, uri: str, allowed: bool) -> Path:
    """Return the exported program, or the pickle if the operator allowed it."""
    programs = sorted(data.rglob("*.pt2")) + (sorted(data.rglob("*.pth")) if allowed else [])
    if programs:
        return inside(data, str(programs[0].relative_to(data)), said_by=uri)
    kind: Literal["pickled", "unknown"] = (
        "pickled" if list(data.rglob("*.pth")) or list(data.rglob("*.pkl")) else "unknown"
    )
    raise SourceError(
        found=f"{uri}: a {kind} PyTorch model ({', '.join(sorted(file.name for file in data.rglob('*') if file.is_file()))})",
        expected="an exported program (.pt2): a pickle can run any code when it is loaded",
        fix="log it again with mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=...); an operator who "
        "trusts it may name the model in QUANTGATE_ALLOWED_PICKLES",
    )


def _parity_samples(run: Run, inputs: tuple[TensorSpec, ...]) -> Samples:
    data = run.job.data
    # Before a calibration set is picked from a pool, its file does not exist.
    to_pick = isinstance(data.calibration, Path) and not data.calibration.exists()
    role: Literal["calibration", "evaluation"] = "evaluation" if to_pick else "calibration"
    samples = load_samples(
        _local(run, role),
        feeds_of(run.job.inputs, inputs, run.job.source),
        label=data.label,
        role=role,
        slices=data.slices,
        groups=data.groups,
        ignore=data.ignore,
    )
    return first_calls(samples)


def _local(run: Run, role: Literal["calibration", "evaluation"]) -> Path:
    """Return the path of a data file of the job on this machine, downloaded if it is on S3."""
    place: Path | S3Uri = getattr(run.job.data, role)
    return fetch_data(run.state, place, role).path if isinstance(place, S3Uri) else place
