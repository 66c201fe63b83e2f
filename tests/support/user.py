"""What users of the registry do, as they would do it: `python tests/support/user.py FOLDER [--all]` logs and registers models.

It runs in a process of its own, since MLflow's and torch's own warnings are no concern of this project's tests.
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import mlflow
import numpy as np
import onnx
from mlflow.models import infer_signature

from tasks.run.settings import artifact_location, state_folder, tracking_uri


def main(folder: Path, *, every: bool) -> None:
    """Registers `tiny`; if `every`, also `tiny-torch` (pt2), `tiny-pickled`, `tiny-function` and `tiny-pending` (not READY)."""
    state = state_folder()
    mlflow.set_tracking_uri(tracking_uri(state))
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", artifact_location(tracking_uri(state))))
    model = onnx.load(folder / "tiny.onnx")
    signature = infer_signature({"x": np.zeros((2, 64), np.float32)}, {"logits": np.zeros((2, 4), np.float32)})
    with mlflow.start_run():
        # Without requirements MLflow would load each model in a process of its own to find them.
        info = mlflow.onnx.log_model(model, name="tiny", signature=signature, pip_requirements=["onnxruntime"])
        mlflow.register_model(info.model_uri, "tiny")
        if every:
            mlflow.register_model(info.model_uri, "tiny-pending")
            register_others(folder)
    if every:
        with sqlite3.connect(state / "mlflow.db") as database:
            database.execute("UPDATE model_versions SET status = 'FAILED_REGISTRATION' WHERE name = 'tiny-pending'")


def register_others(folder: Path) -> None:
    """Register models of other flavors than ONNX. Imports torch."""
    from torch_tiny import torch_model

    class Doubler(mlflow.pyfunc.PythonModel):
        """A model of the flavor python_function alone."""

        def predict(self, context, model_input, params=None):
            return model_input

    example = np.zeros((2, 64), np.float32)
    for name, form in (("tiny-torch", "pt2"), ("tiny-pickled", "pickle")):
        told = {"serialization_format": form, "pip_requirements": ["torch"]}
        info = mlflow.pytorch.log_model(torch_model(folder), name=name, input_example=example, **told)
        mlflow.register_model(info.model_uri, name)
    info = mlflow.pyfunc.log_model(name="function", python_model=Doubler(), pip_requirements=[])
    mlflow.register_model(info.model_uri, "tiny-function")


if __name__ == "__main__":
    main(Path(sys.argv[1]), every="--all" in sys.argv)
