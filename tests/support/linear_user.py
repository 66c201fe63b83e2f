"""Log and register `linear`, a PyTorch classifier of `torch.nn.Linear`: `python tests/support/linear_user.py FOLDER`.

It has the weights of the tiny classifier, in a process of its own like `user.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mlflow
import numpy as np
import torch
from torch_tiny import torch_model

from tasks.run.settings import artifact_location, state_folder, tracking_uri


def linear_model(folder: Path) -> torch.nn.Module:
    """The tiny classifier of `folder/tiny.onnx` with its products as linear layers."""
    tiny = torch_model(folder)
    features, hidden = tiny.first.shape
    first = torch.nn.Linear(features, hidden)
    second = torch.nn.Linear(hidden, tiny.second.shape[1], bias=False)
    with torch.no_grad():
        first.weight.copy_(tiny.first.T)
        first.bias.copy_(tiny.bias)
        second.weight.copy_(tiny.second.T)

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))

    return Linear().eval()


if __name__ == "__main__":
    state = state_folder()
    mlflow.set_tracking_uri(tracking_uri(state))
    mlflow.set_experiment(experiment_id=mlflow.create_experiment("user", artifact_location(tracking_uri(state))))
    with mlflow.start_run():
        info = mlflow.pytorch.log_model(
            linear_model(Path(sys.argv[1])),
            name="linear",
            input_example=np.zeros((2, 64), np.float32),
            serialization_format="pt2",
            pip_requirements=["torch"],
        )
        mlflow.register_model(info.model_uri, "linear")
