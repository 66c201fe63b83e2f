"""Files of the flavor `sklearn`: which are loaded, and which converted models are worth a run."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import onnx

from tasks.evidence.flavors import need_libraries
from tasks.ptq.graph.edits import operator_of, weighted_nodes
from validators.errors import SourceError
from validators.untrusted.bounded_json import read_member
from validators.untrusted.paths import inside

# Classes of scikit-learn that skops does not trust by default; they hold numbers alone.
TRUSTED = [f"sklearn.neural_network._stochastic_optimizers.{name}Optimizer" for name in ("Adam", "SGD")]

# Modules of trees in the description of a skops file.
_TREES = re.compile(rb'"(sklearn\.(?:tree|ensemble)\.[\w.]+)"')


def sklearn_file(model: Path, flavor: dict[str, Any], uri: str, *, allowed: bool) -> Path:
    """Return the file of a fitted model; `allowed` says that the operator trusts its pickle.

    Raises:
        SourceError: it is a pickle that the operator does not allow, or the converter is not installed.
    """
    path = inside(model, str(flavor.get("pickled_model", "model.skops")), said_by="MLmodel")
    if path.suffix != ".skops" and not allowed:
        name = uri.removeprefix("models:/").rpartition("/")[0]
        line = (
            f"import mlflow; m = mlflow.sklearn.load_model({uri!r}); mlflow.sklearn.log_model(m, name={name!r}, "
            f"registered_model_name={name!r}, serialization_format='skops', skops_trusted_types={TRUSTED!r})"
        )
        raise SourceError(
            found=f"{uri}: a pickled scikit-learn model ({path.name})",
            expected="the format skops: a pickle can run any code when it is loaded",
            fix=f'where its author is trusted: python -c "{line}"; or have the operator name the model in '
            "QUANTGATE_ALLOWED_PICKLES",
        )
    if path.suffix == ".skops":
        _refuse_trees(path, uri)
    need_libraries(["skl2onnx", "skops"], "sklearn", uri)
    return path


def _refuse_trees(path: Path, uri: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            modules = {found.decode() for found in _TREES.findall(read_member(archive, "schema.json"))}
    except Exception as error:  # zipfile raises several classes for damaged archives
        raise SourceError(
            found=f"{uri}: {path.name} cannot be read: {error}", expected="a file of skops", fix="log the model again"
        ) from error
    if modules:
        raise SourceError(
            found=f"{uri} has an ensemble of trees ({', '.join(sorted(modules))})",
            expected="a model with layers, such as MLPClassifier: trees compare and add, and multiply nothing",
            fix="leave this model as it is: there is nothing to quantize",
        )


def check_worth(converted: Path, uri: str) -> None:
    """Check that a converted model multiplies matrices: only those get faster in low precision.

    Raises:
        SourceError: it has no MatMul or Gemm with weights; the error lists its operators.
    """
    graph = onnx.load(converted).graph
    if weighted_nodes(graph):
        return
    kinds = sorted({operator_of(node).removeprefix("ai.onnx.ml:") for node in graph.node})
    raise SourceError(
        found=f"{uri} consists of {', '.join(kinds)}: no product of matrices, so that there is nothing to quantize",
        expected="a model with layers, such as MLPClassifier or MLPRegressor",
        fix="leave this model as it is: a linear model is one product of a row and a column",
    )
