"""MLflow flavors: those that a run converts, and why the rest are refused, each with the command to take instead."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from validators.errors import SourceError
from validators.plain_text import one_line
from validators.records.run import Flavor
from validators.untrusted.bounded_yaml import read_yaml

SUPPORTED: tuple[Flavor, ...] = ("onnx", "pytorch", "sentence_transformers", "transformers", "sklearn", "keras")
# A run keeps the exported program of these beside their ONNX file.
WITH_PROGRAM: frozenset[str] = frozenset({"pytorch", "sentence_transformers", "transformers"})
# Flavors of a version that an error tells about.
_MOST_NAMED = 10
_TREES = "an ensemble of trees compares and adds, and multiplies nothing: there is nothing to quantize"
_LOG = "mlflow.onnx.log_model(onnx.load('model.onnx'), name='{name}', registered_model_name='{name}')"


# Reasons why flavors are not converted, and commands that make an ONNX file of a model of some of them.
REFUSED = {
    "xgboost": _TREES,
    "lightgbm": _TREES,
    "catboost": _TREES,
    "tensorflow": "its converter needs TensorFlow, which quantgate does not install",
    "spark": "its models run on a Spark cluster",
    "langchain": "it calls models elsewhere, and has no weights of its own",
    "openai": "it calls models elsewhere, and has no weights of its own",
    "prophet": "it has no products of matrices to quantize",
    "statsmodels": "it has no products of matrices to quantize",
}
COMMANDS = {
    "tensorflow": "python -m tf2onnx.convert --saved-model MODEL --output model.onnx",
    "spark": "onnxmltools.convert_sparkml(model, 'model', initial_types)",
}


def flavor_of(flavors: dict[str, dict[str, Any]], uri: str) -> Flavor:
    """Return the flavor to convert.

    Raises:
        SourceError: none is supported; the error has the reason for each.
    """
    found = next((name for name in SUPPORTED if name in flavors), None)
    if found is None:
        raise unsupported_flavor(uri, flavors)
    return found


def unsupported_flavor(uri: str, flavors: dict[str, dict[str, Any]]) -> SourceError:
    """Return the error for a version without a supported flavor: the reason for each flavor, and the command to take."""
    named = [one_line(name) for name in sorted(set(flavors) - {"python_function"})[:_MOST_NAMED]]
    refused = named or ["python_function"]
    reasons = "; ".join(f"{flavor}: {REFUSED.get(flavor, 'quantgate has no converter for it')}" for flavor in refused)
    commands = [COMMANDS[flavor] for flavor in refused if flavor in COMMANDS]
    if commands:
        fix = f"convert the model with {'; or '.join(commands)}, and log it with {_LOG.format(name=_name_of(uri))}"
    else:
        fix = "leave this model as it is; if it has layers, export them to ONNX and log that with mlflow.onnx.log_model"
    return SourceError(
        found=f"{uri} with the MLflow flavors {', '.join(named or sorted(flavors)) or 'none'}, which are not supported: "
        f"{reasons}",
        expected=f"one of the flavors {', '.join(SUPPORTED)}",
        fix=fix,
    )


def need_libraries(libraries: Sequence[str], extra: str, uri: str) -> None:
    """Raise if a library that loads or converts a model is not installed.

    Raises:
        SourceError: it names the missing ones, and the extra of quantgate that has them.
    """
    missing = [name.replace("_", "-") for name in libraries if find_spec(name) is None]
    if missing:
        raise SourceError(
            found=f"{uri} needs {' and '.join(missing)}, which is not installed",
            expected=f"the extra `{extra}` of quantgate, where the run's source is resolved",
            fix=f"pip install 'quantgate[{extra}]'",
        )


def flavors_of(model: Path, uri: str) -> dict[str, dict[str, Any]]:
    """Return the flavors in a model's `MLmodel` file, by name; empty if there is no such file."""
    if not (model / "MLmodel").exists():
        return {}
    try:
        flavors = read_yaml(model / "MLmodel")["flavors"]
        if all(isinstance(name, str) and isinstance(flavor, dict) for name, flavor in flavors.items()):
            return dict(flavors)
        problem = "a flavor is not a mapping, or its name is not text"
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    raise SourceError(
        found=f"MLmodel of {uri}: {problem}", expected="an MLmodel file as MLflow writes it", fix="log the model again"
    )


def pickled_torch(uri: str, files: Sequence[str], data: Path | None = None, inputs: Sequence[str] = ()) -> SourceError:
    """Return the error for a pickled PyTorch model, with a line of Python that logs it again as an exported program.

    `uri` is `models:/name/version`. The example inputs of the line are the first two samples of `inputs` in the file `data`,
    or zeros with a shape to fill in if these are not known.
    """
    name = _name_of(uri)
    is_known = data is not None and data.suffix == ".npz" and bool(inputs)
    arrays = "{name: array[:2] for name, array in numpy.load(FILE).items() if name in NAMES}"
    if is_known:
        arrays = arrays.replace("FILE", repr(str(data))).replace("NAMES", repr(list(inputs)))
    else:
        arrays = "{'x': numpy.zeros((2, 64), 'float32')}"
    # With spaces: "signature=" looks like a part of a presigned address, whose value is redacted.
    line = (
        f"import mlflow, numpy; m = mlflow.pytorch.load_model({uri!r}).eval(); x = {arrays}; "
        f"mlflow.pytorch.log_model(m, name={name!r}, registered_model_name={name!r}, serialization_format='pt2', "
        "input_example=list(x.values()), signature = mlflow.models.infer_signature(x))"
    )
    shapes = "" if is_known else " (with an array for each input, in its dtype and shape, and at least two samples)"
    return SourceError(
        found=f"{uri}: a pickled PyTorch model ({', '.join(files)})",
        expected="an exported program (.pt2): a pickle can run any code when it is loaded",
        fix=f'where its author is trusted: python -c "{line}"{shapes}; or have the operator name the model in '
        "QUANTGATE_ALLOWED_PICKLES",
    )


def _name_of(uri: str) -> str:
    return uri.removeprefix("models:/").rpartition("/")[0] or "model"
