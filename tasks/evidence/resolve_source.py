"""Step 1: the source of a run, a registered model version or a file, as one checked ONNX file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tasks.evidence.converted_flavors import code_of, original_of
from tasks.evidence.fetch_data import load_place, local_data
from tasks.evidence.flavors import flavor_of, flavors_of, pickled_torch
from tasks.evidence.hugging_face import DECODER, check_context, decoder_folder, no_decoder
from tasks.evidence.sequences import first_calls
from tasks.evidence.sklearn_file import check_worth
from tasks.evidence.torch_export import PARITY_SAMPLES, PROGRAM, Original, convert, first_batch
from tasks.ptq.graph.declare import declare_outputs
from tasks.ptq.graph.edits import gather_weights, notes_of, scratch
from tasks.ptq.graph.upgrade import upgrade_opset
from tasks.registry.mlflow_registry import MODEL_URI, connect, download, named_version
from tasks.run.context import Run, log
from tasks.run.settings import registry_uri
from tasks.run.step import step
from tasks.runtimes.decoder_bytes import decoder_bytes
from tasks.storage.product import Product
from validators.digests import digest_file, digest_model, digest_values
from validators.errors import SourceError
from validators.graph.source_graph import LEAST_OPSET, check_source_graph, opset_of
from validators.records.run import Flavor, Source
from validators.samples.datasets import Arrays, Samples, TensorSpec
from validators.samples.feeds import feeds_of
from validators.samples.readers import holds_text_alone, read_arrays
from validators.samples.tables import take_columns
from validators.targets import facts_of
from validators.untrusted.external_data import external_files
from validators.untrusted.operator_allowlist import may_unpickle
from validators.untrusted.paths import inside
from validators.untrusted.s3_uris import S3Uri
from validators.untrusted.torch_program import check_program

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion


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
    if _generates(run):
        raise no_decoder(str(path))
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
    # A decoder becomes another graph for an engine that generates.
    inputs = (registry_uri(run.tracking_uri), uri, version.creation_timestamp, *([DECODER] if _generates(run) else []))

    def fetch(folder: Path) -> Source:
        with connect(run.tracking_uri):
            model = download(uri, folder)
        return _read_model(model, folder, uri, version, run)

    source, _ = run.store.make(Product("source", inputs, Source, fetch))
    return replace(source, uri=run.job.source)


def _find_version(run: Run) -> ModelVersion:
    match = MODEL_URI.fullmatch(run.job.source)
    if match is None:
        raise SourceError(
            found=f"source {run.job.source!r}",
            expected="models:/<name>/<version>, models:/<name>@<alias>, or a path to an ONNX file",
            fix="correct `source`",
        )
    with connect(run.tracking_uri) as client:
        found: ModelVersion = named_version(client, match)
    if found.status != "READY":
        raise SourceError(
            found=f"{run.job.source} in state {found.status}: {found.status_message or 'no message'}",
            expected="state READY",
            fix="wait for the registration to finish, or register the model again",
        )
    return found


def _read_model(model: Path, folder: Path, uri: str, version: ModelVersion, run: Run) -> Source:
    """Find the ONNX file of a downloaded MLflow model, or convert the model."""
    flavors = flavors_of(model, uri)
    base = Source(uri, version.name, str(version.version), "", folder / "model.onnx", "onnx", version.run_id or None)
    if "onnx" in flavors and not _generates(run):
        path = inside(model, str(flavors["onnx"].get("data")), said_by="MLmodel")
        parity = _gather(run, path / "model.onnx" if path.is_dir() else path, base.onnx_path)
        shutil.rmtree(model, ignore_errors=True) if model != folder else None
        return replace(base, digest=digest_model(base.onnx_path), parity_max_abs=parity)
    flavor = flavor_of(flavors, uri)
    if _generates(run):
        return _read_decoder(model, folder, flavors[flavor] if flavor == "transformers" else None, base, run)
    allowed = may_unpickle(version.name, str(version.version))
    original = _original(run, model, flavor, flavors[flavor], uri, allowed)
    parity = convert(original, base.onnx_path, lambda inputs: _parity_samples(run, inputs))
    if flavor == "sklearn":
        check_worth(base.onnx_path, uri)
    shutil.rmtree(model, ignore_errors=True) if model != folder else None
    program = folder / PROGRAM if (folder / PROGRAM).exists() else None
    digest = digest_model(base.onnx_path)
    return replace(base, flavor=flavor, digest=digest, parity_max_abs=parity, program=program)


def _generates(run: Run) -> bool:
    return facts_of(run.job.target).generates


def _read_decoder(model: Path, folder: Path, told: dict[str, Any] | None, base: Source, run: Run) -> Source:
    """Convert a decoder; `told` is its part of `MLmodel`, None for another flavor."""
    if told is None:
        raise no_decoder(base.uri)
    place = folder / DECODER
    place.mkdir()

    def samples(inputs: tuple[TensorSpec, ...]) -> Samples:
        found = _parity_samples(run, inputs)
        check_context(run.job, place, found, base.uri)
        return found

    weights = decoder_folder(model, told, base.uri)
    parity = convert(Original("decoder", weights), place / "model.onnx", samples)
    # As large as the graph that was made of them.
    shutil.rmtree(weights, ignore_errors=True)
    shutil.rmtree(model, ignore_errors=True) if model != folder else None
    companions = tuple(sorted(path for path in place.iterdir() if not path.name.startswith("model.onnx")))
    digest = digest_values(digest_model(place / "model.onnx"), [(path.name, digest_file(path)) for path in companions])
    return replace(
        base,
        onnx_path=place / "model.onnx",
        flavor="transformers",
        digest=digest,
        parity_max_abs=parity,
        companions=companions,
        decoder=decoder_bytes(place / "model.onnx"),
    )


def _original(run: Run, model: Path, flavor: Flavor, told: dict[str, Any], uri: str, allowed: bool) -> Original:
    """Return what to convert of a downloaded model, checked as far as it can be without running its code."""
    if flavor != "pytorch":
        return original_of(model, flavor, told, uri, allowed=allowed)
    data = inside(model, str(told.get("model_data", "data")), said_by="MLmodel")
    program = _find_program(data, uri, allowed, lambda: (run.job.data.evaluation, list(_samples(run))))
    if program.suffix == ".pth":
        return Original("pickle", program, _samples(run), code_of(model, told))
    if not allowed:
        check_program(program)
    return Original("program", program)


def _samples(run: Run) -> Arrays:
    """Return a few samples of the model inputs, in the arrays of the evaluation data."""
    data = run.job.data
    path = local_data(run, data.evaluation, "evaluation").path
    skipped = {data.label, *data.slices, *data.group_names, *data.ignore}
    arrays = {name: array for name, array in read_arrays(path, "evaluation").items() if name not in skipped}
    if data.columns is not None:
        take_columns(arrays, data.columns, (TensorSpec(data.columns, "float32", (None, None)),), path, "evaluation")
    # The numbers of a text file have no dtype; torch's own is float32.
    made = set(arrays) if holds_text_alone(path) else {data.columns}
    return {
        name: array[:PARITY_SAMPLES].astype(np.float32 if name in made and array.dtype.kind == "f" else array.dtype)
        for name, array in arrays.items()
    }


def _gather(run: Run, path: Path, gathered: Path) -> float | None:
    """Write the model as one file, at an opset that the passes support.

    Returns the largest absolute difference of the outputs if the opset was upgraded, else None.
    """

    def batch(inputs: tuple[TensorSpec, ...]) -> Arrays:
        return first_batch(_parity_samples(run, inputs), inputs)

    custom = bool(run.libraries)
    old = opset_of(check_source_graph(path, custom_operators=custom)) < LEAST_OPSET
    with scratch() as folder:
        plain = folder / "model.onnx" if old else gathered
        gather_weights(path, plain, custom_operators=custom)
        declared = declare_outputs(plain, batch, run.libraries)
        if declared:
            log.info("declared missing shapes of outputs: %s", ", ".join(declared))
        return upgrade_opset(plain, gathered, batch, run.libraries) if old else None


def _find_program(data: Path, uri: str, allowed: bool, example: Callable[[], tuple[Path | S3Uri, list[str]]]) -> Path:
    """Return the exported program, or the pickle if the operator allowed it.

    `example` returns the file of the evaluation data and the names of the inputs in it, for the advice of an error.
    """
    programs = sorted(data.rglob("*.pt2")) + (sorted(data.rglob("*.pth")) if allowed else [])
    if programs:
        return inside(data, str(programs[0].relative_to(data)), said_by=uri)
    files = sorted(file.name for file in data.rglob("*") if file.is_file())
    if any(file.endswith((".pth", ".pkl")) for file in files):
        place, inputs = example()
        raise pickled_torch(uri, files, place if isinstance(place, Path) else None, inputs)
    raise SourceError(
        found=f"{uri}: an unknown PyTorch model ({', '.join(files)})",
        expected="an exported program (.pt2)",
        fix="log it again with mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=...)",
    )


def _parity_samples(run: Run, inputs: tuple[TensorSpec, ...]) -> Samples:
    data = run.job.data
    # Before a calibration set is picked from a pool, its file does not exist.
    to_pick = data.calibration is None or (isinstance(data.calibration, Path) and not data.calibration.exists())
    role: Literal["calibration", "evaluation"] = "evaluation" if to_pick else "calibration"
    feeds = feeds_of(run.job.inputs, inputs, run.job.source)
    return first_calls(load_place(run, getattr(data, role), feeds, role))
