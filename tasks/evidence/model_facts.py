"""Facts of a registered model version, read from its graph and its logged metadata without running any of its code."""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from tasks.evidence.converted_flavors import original_of
from tasks.evidence.flavors import flavor_of, flavors_of
from tasks.evidence.hugging_face import decoder_folder, no_decoder, read_config
from tasks.evidence.torch_export import convert
from tasks.registry.mlflow_registry import MODEL_URI, download, named_version
from tasks.runtimes.decoder_session import decoder_specs
from validators.errors import SourceError
from validators.graph.interfaces import dtype_name, spec_of
from validators.graph.program_interface import read_interface
from validators.graph.source_form import normalize
from validators.graph.source_graph import check_source_graph
from validators.samples.datasets import TensorSpec
from validators.untrusted.bounded_yaml import read_yaml
from validators.untrusted.external_data import external_files, tensors
from validators.untrusted.operator_allowlist import may_unpickle
from validators.untrusted.paths import inside

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Operators that keep probabilities what they are.
_KEEPING = ("Identity", "Cast", "Flatten", "ReduceMean", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# Inputs, outputs, precision, and the outputs of a sigmoid.
_Read = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...], str, frozenset[str]]


@dataclass(frozen=True)
class ModelFacts:
    """Facts of a model version.

    `precision` is the most frequent dtype of the weights, by elements, or empty if unknown. `signature` is MLflow's in one
    line, or empty. `size_bytes` is the size that MLflow recorded, or 0. `probabilities` are the outputs of a sigmoid.
    """

    uri: str
    name: str
    version: str
    flavor: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str
    size_bytes: int
    signature: str
    probabilities: frozenset[str] = frozenset()


def describe_model(client: MlflowClient, uri: str, *, generates: bool = False) -> ModelFacts:
    """Return the facts of `models:/name/version` or `models:/name@alias`; `generates` asks for those of a decoder.

    Raises:
        SourceError: the URI is malformed, the version does not exist, or quantgate does not support its flavor or format.
        ServiceDown: the registry does not answer.
    """
    registered = named_version(client, check_uri(uri))
    name, version = str(registered.name), str(registered.version)
    exact = f"models:/{name}/{version}"
    with tempfile.TemporaryDirectory(prefix="quantgate-") as place:
        folder = Path(place)
        described = _fetch(f"{exact}/MLmodel", folder)
        flavors = flavors_of(described.parent, exact)
        logged: Mapping[str, Any] = read_yaml(described)
        flavor = flavor_of(flavors, exact)
        if generates:
            found = _read_decoder(exact, flavors.get("transformers"), folder)
        elif flavor == "onnx":
            found = _read_onnx(exact, str(flavors["onnx"].get("data")), folder)
        elif flavor == "pytorch":
            found = _read_program(exact, str(flavors["pytorch"].get("model_data", "data")), folder)
        else:
            original = original_of(
                _fetch(exact, folder / "model"), flavor, flavors[flavor], exact, allowed=may_unpickle(name, version)
            )
            convert(original, folder / "model.onnx")
            found = _read_graph(folder / "model.onnx", exact)
    inputs, outputs, precision, probabilities = found
    try:
        signature = _tell_signature(logged.get("signature") or {})
        size = int(logged.get("model_size_bytes") or 0)
    except Exception as error:
        raise SourceError(
            found=f"MLmodel of {exact}: {type(error).__name__}: {str(error)[:200]}",
            expected="an MLmodel file as MLflow writes it",
            fix="log the model again",
        ) from error
    return ModelFacts(uri, name, version, flavor, inputs, outputs, precision, size, signature, probabilities)


def describe_file(path: Path) -> ModelFacts:
    """Return the facts of an ONNX file.

    Raises:
        SourceError: the file does not exist, or is no ONNX model that quantgate supports.
    """
    check_source_graph(path)
    size = sum(file.stat().st_size for file in (path, *external_files(path)))
    inputs, outputs, precision, probabilities = _read_graph(path, str(path))
    return ModelFacts(str(path), path.stem, "", "an ONNX file", inputs, outputs, precision, size, "", probabilities)


def _tell_signature(logged: Mapping[str, Any]) -> str:
    """Return MLflow's signature in one line.

    >>> _tell_signature({"inputs": '[{"name": "x", "type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]'})
    'x float32[-1, 4]'
    >>> _tell_signature({"inputs": '[{"type": "string", "name": "text"}]', "outputs": '[{"type": "double"}]'})
    'text string -> double'
    """

    def told(column: Mapping[str, Any]) -> str:
        tensor = column.get("tensor-spec")
        kind = f"{tensor['dtype']}{tensor['shape']}" if tensor else str(column.get("type", ""))
        return " ".join(part for part in (column.get("name", ""), kind) if part)

    sides = [", ".join(map(told, json.loads(logged[side]))) for side in ("inputs", "outputs") if logged.get(side)]
    return " -> ".join(sides)


def check_uri(uri: str) -> re.Match[str]:
    """Return the name and the version or alias in the URI of a registered version, as a match of `MODEL_URI`.

    Raises:
        SourceError: it is something else.
    """
    match = MODEL_URI.fullmatch(uri)
    if match is None:
        raise SourceError(
            found=f"the model {uri!r} is neither the URI of a registered version nor an ONNX file",
            expected="models:/<name>/<version>, models:/<name>@<alias>, or a file that ends in .onnx",
            fix="log and register the model with MLflow, whose page lists the versions; or export it to ONNX",
        )
    return match


def _fetch(uri: str, folder: Path) -> Path:
    from mlflow.exceptions import MlflowException

    try:
        return download(uri, folder)
    except (MlflowException, OSError) as error:
        raise SourceError(
            found=f"{uri} cannot be downloaded: {str(error).splitlines()[0][:300]}",
            expected="the files that were logged with the model",
            fix="log and register the model again, or restore its artifacts",
        ) from error


def _read_onnx(uri: str, data: str, folder: Path) -> _Read:
    """Return inputs, outputs and precision of the graph, without downloading external weights."""
    inside(folder, data, said_by="MLmodel")
    path = _fetch(f"{uri}/{data}" if data.endswith(".onnx") else f"{uri}/{data}/model.onnx", folder)
    return _read_graph(path / "model.onnx" if path.is_dir() else path, uri)


def _read_decoder(uri: str, told: dict[str, Any] | None, folder: Path) -> _Read:
    """Return inputs and outputs as engines that generate have them; the graph is made by a run."""
    if told is None:
        raise no_decoder(uri)
    checked = decoder_folder(_fetch(uri, folder / "model"), told, uri)
    config = read_config(checked / "config.json", uri)
    size, dtype = config.get("vocab_size"), config.get("dtype") or config.get("torch_dtype")
    tokens, scores = decoder_specs(size)
    return (tokens,), (scores,), dtype if isinstance(dtype, str) else "", frozenset()


def _read_graph(path: Path, uri: str) -> _Read:
    try:
        model = onnx.load(path, load_external_data=False)
        normalize(model)
        graph = model.graph
        weights = {tensor.name for tensor in graph.initializer}
        sizes: Counter[str] = Counter()
        for tensor in tensors(model):
            if tensor.data_type:  # an attribute of another kind has an empty tensor
                sizes[dtype_name(tensor.data_type)] += int(np.prod(tensor.dims, dtype=np.int64))
        inputs = tuple(spec_of(value) for value in graph.input if value.name not in weights)
        outputs = tuple(spec_of(value) for value in graph.output)
        probabilities = _probabilities(graph)
    except Exception as error:  # protobuf raises classes of its own, and a graph may lack what its nodes name
        raise SourceError(
            found=f"{uri}: {type(error).__name__}: {str(error)[:200]}",
            expected="an ONNX file",
            fix="log the model again",
        ) from error
    return inputs, outputs, sizes.most_common(1)[0][0] if sizes else "", probabilities


def _probabilities(graph: onnx.GraphProto, outer: Mapping[str, onnx.NodeProto] | None = None) -> frozenset[str]:
    """Return the outputs of a graph that are values of a sigmoid, in every branch of an If.

    `outer` maps names of the graphs around a branch to their nodes.
    """
    makers = {**(outer or {})} | {name: node for node in graph.node for name in node.output}

    def is_probability(name: str) -> bool:
        passed: set[str] = set()
        # A damaged graph may be a circle.
        while name in makers and makers[name].op_type in _KEEPING and name not in passed:
            passed.add(name)
            name = makers[name].input[0]
        node = makers.get(name)
        if node is None or node.op_type != "If":
            return node is not None and node.op_type == "Sigmoid"
        place = list(node.output).index(name)
        bodies = [attribute.g for attribute in node.attribute]
        return all(body.output[place].name in _probabilities(body, makers) for body in bodies)

    return frozenset(value.name for value in graph.output if is_probability(value.name))


def _read_program(uri: str, data: str, folder: Path) -> _Read:
    """Return inputs, outputs and precision of an exported PyTorch program, read from its archive without loading it."""
    inside(folder, data, said_by="MLmodel")
    place = _fetch(f"{uri}/{data}", folder)
    programs = sorted(place.rglob("*.pt2"))
    if not programs:
        raise SourceError(
            found=f"{uri} has no exported program (.pt2)",
            expected="an exported program: the inputs of a pickled model are unknown until its code runs",
            fix="log it with mlflow.pytorch.log_model(model, serialization_format='pt2', input_example=...)",
        )
    read = read_interface(programs[0])
    return read.inputs, read.outputs, read.precision, frozenset()
