"""Exported programs as sources: their sizes, batches of a fixed size, and samples that a program does not take."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from exported_models import export_program
from torch import nn

from tasks.evidence.original_models import in_float32, write_program
from tasks.evidence.torch_export import first_batch
from tasks.runtimes.confined import first_cause
from validators.errors import DataError, SourceError
from validators.graph.interfaces import spec_of
from validators.samples.datasets import Samples, TensorSpec, load_samples


class Mean(nn.Module):
    """A layer over steps, and their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).mean(1)


def test_exported_source_keeps_fixed_sizes(tmp_path: Path) -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 22 * 22, 5)).eval()
    batch = ({0: torch.export.Dim.AUTO},)
    write_program(
        torch.export.export(layers, (torch.zeros(2, 3, 24, 24),), dynamic_shapes=batch), str(tmp_path / "model.onnx")
    )
    graph = onnx.load(tmp_path / "model.onnx").graph
    assert [spec_of(value).shape for value in (*graph.input, *graph.output)] == [("batch", 3, 24, 24), ("batch", 5)]


def samples_of(folder: Path, *shape: int) -> Callable[[tuple[TensorSpec, ...]], Samples]:
    """The reader of a file with one array `x` of this shape."""
    np.savez(folder / "data.npz", x=np.random.default_rng(0).normal(size=shape).astype(np.float32))
    return lambda inputs: load_samples(folder / "data.npz", inputs, label="label", role="calibration")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of one sample, as MLflow writes it of an example of one row, and at most 16 steps."""
    path = tmp_path_factory.mktemp("program") / "mean.pt2"
    steps: Any = {"x": {1: torch.export.Dim("steps", max=16)}}
    torch.export.save(torch.export.export(Mean().eval(), (torch.zeros(1, 8, 4),), dynamic_shapes=steps), path)
    return path


def test_fixed_batch_of_one_is_compared_with_one_sample(program: Path, tmp_path: Path) -> None:
    assert export_program(program, tmp_path / "model.onnx", samples_of(tmp_path, 20, 9, 4)) < 1e-5
    (value,) = onnx.load(tmp_path / "model.onnx").graph.input
    assert spec_of(value).shape == (1, "sequence", 4)


@pytest.mark.slow
def test_samples_beyond_a_program_are_named(program: Path, tmp_path: Path) -> None:
    """The program's own limit of an axis, which ONNX cannot state."""
    with pytest.raises(DataError) as seen:
        export_program(program, tmp_path / "model.onnx", samples_of(tmp_path, 20, 32, 4))
    assert "data.npz (x: float32[1, 32, 4])" in seen.value.found and "shape[1] to be <= 16" in seen.value.found
    assert "check the axes" in seen.value.fix


class Bessel(nn.Module):
    """A function that ONNX lacks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x)


@pytest.mark.slow
def test_refused_export_names_the_operator(tmp_path: Path) -> None:
    """The exporter's own message is in color, and says how to report an error to PyTorch."""
    torch.export.save(torch.export.export(Bessel(), (torch.zeros(2, 4),)), tmp_path / "bessel.pt2")
    with pytest.raises(SourceError) as seen:
        export_program(tmp_path / "bessel.pt2", tmp_path / "model.onnx", lambda _: pytest.fail("exported"))
    assert "prims.bessel_j0" in seen.value.found and "x1b" not in seen.value.found


def test_first_cause_names_the_line_of_a_model() -> None:
    with pytest.raises(KeyError) as seen:
        raise KeyError("axis 3") from ValueError("\x1b[96mstep\x1b[0m\nmore")
    assert first_cause(seen.value).endswith("\\nmore\")`: ValueError: step; raised as KeyError: 'axis 3'")


def test_first_batch_has_the_fixed_size(tmp_path: Path) -> None:
    inputs = tuple(TensorSpec("x", "float32", (size, 4)) for size in (1, 8, "batch", 32))
    samples = samples_of(tmp_path, 20, 4)(inputs[2:3])
    assert [first_batch(samples, (spec,)).rows for spec in inputs[:3]] == [1, 8, 16]
    with pytest.raises(DataError, match="20 samples, and the model a fixed batch size of 32"):
        first_batch(samples, inputs[3:])


class Tied(nn.Module):
    """A head that shares the table of the embedding, and a gain of the module's own."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(20, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.table.weight
        self.gain = nn.Parameter(torch.randn(16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.head(torch.tanh(self.inner(self.table(tokens))) * self.gain)
        return answer


def test_weights_are_cast_while_a_module_runs() -> None:
    """The answers are those of a model in float32, and the weights stay in the type of the file."""
    torch.manual_seed(0)
    model, tokens = Tied().to(torch.bfloat16).eval(), torch.arange(20)[None]
    expected = copy.deepcopy(model).float()(tokens)
    in_float32(model)
    for _ in range(2):
        found = model(tokens)
        assert found.dtype == torch.float32 and torch.equal(found, expected)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
