"""The tiny classifier as a torch module, which pickles by reference to this file."""

from __future__ import annotations

from pathlib import Path

import onnx
import torch


class Classifier(torch.nn.Module):
    """The tiny classifier with its input named as in the data."""

    def __init__(self, first: torch.Tensor, bias: torch.Tensor, second: torch.Tensor) -> None:
        super().__init__()
        self.first, self.bias, self.second = (torch.nn.Parameter(tensor) for tensor in (first, bias, second))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.first + self.bias) @ self.second


def torch_model(folder: Path) -> torch.nn.Module:
    """Return the model of `folder/tiny.onnx`."""
    weights = {
        tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(folder / "tiny.onnx").graph.initializer
    }
    return Classifier(*(torch.tensor(weights[name]) for name in ("first", "bias", "second"))).eval()
