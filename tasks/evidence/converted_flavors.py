"""Models of the flavors `transformers`, `sentence_transformers`, `keras` and `sklearn`, as the conversion takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tasks.evidence.flavors import need_libraries
from tasks.evidence.hugging_face import sentence_folder, transformers_folder
from tasks.evidence.sklearn_file import sklearn_file
from tasks.evidence.torch_export import Original
from validators.errors import SourceError
from validators.records.run import Flavor
from validators.untrusted.paths import inside


def original_of(model: Path, flavor: Flavor, told: dict[str, Any], uri: str, *, allowed: bool) -> Original:
    """Return the model in a downloaded folder, checked without running its code.

    `told` is the flavor's part of `MLmodel`; `allowed` says that the operator trusts the pickle of this version.

    Raises:
        SourceError: the model would run code when it is loaded, cannot be converted, or its library is not installed.
    """
    if flavor == "transformers":
        return Original("transformers", transformers_folder(model, told, uri))
    if flavor == "sentence_transformers":
        return Original("sentence_transformers", sentence_folder(model, uri))
    if flavor == "keras":
        return Original("keras", keras_file(model, told, uri))
    return Original("sklearn", sklearn_file(model, told, uri, allowed=allowed), code=code_of(model, told))


def keras_file(model: Path, told: dict[str, Any], uri: str) -> Path:
    """Return the `.keras` file of a model: its layers as JSON, and their weights.

    Raises:
        SourceError: the version has another format, or Keras is not installed.
    """
    data = inside(model, str(told.get("data", "data")), said_by="MLmodel")
    path = data / "model.keras"
    if not path.is_file():
        files = sorted(file.name for file in data.rglob("*") if file.is_file())
        raise SourceError(
            found=f"{uri}: no model.keras in {data.name} ({', '.join(files) or 'no files'})",
            expected="a file of Keras 3 (.keras), which holds layers and weights and no code",
            fix="log the model itself again: mlflow.keras.log_model(model, name=..., save_exported_model=False)",
        )
    need_libraries(["keras"], "keras", uri)
    return path


def code_of(model: Path, told: dict[str, Any]) -> tuple[Path, ...]:
    """Return the folders of code that was logged with a model."""
    return (inside(model, str(told["code"]), said_by="MLmodel"),) if told.get("code") else ()
