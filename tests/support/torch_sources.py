"""PyTorch programs as sources of a run, for forms that TorchInductor compiles."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from processors import HERE

from tasks.evidence.torch_export import Original, convert
from tasks.ptq.build_variant import Materials
from tasks.runtimes.confined import confined_environment


def write_source(folder: Path, program: str) -> Path:
    """Run a program that writes `original.pt2` and `batch.npz`, and convert the first as a run does."""
    run_program(program, folder)
    convert(Original("program", folder / "original.pt2"), folder / "model.onnx")
    return folder


def run_program(program: str, folder: Path) -> None:
    """Run a program of Python on a folder, in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder)]
    done = subprocess.run(command, env=confined_environment(folder), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def input_of(source: Path) -> str:
    """The name of the source's only input."""
    return str(onnx.load(source / "model.onnx").graph.input[0].name)


def materials_of(source: Path, x: NDArray[np.float32]) -> Materials:
    """Materials with batches of one sample, which an export without care would take for the only size, and no others."""
    name = input_of(source)
    samples = [{name: x[index : index + 1]} for index in range(len(x))]
    absent = [lambda *_: pytest.fail("made another material")] * 4
    return Materials(
        lambda: source / "model.onnx",
        *absent,
        lambda: samples,
        absent[0],
        HERE,
        program=source / "program.pt2",
        threads=2,
    )  # type: ignore[arg-type]  # one function stands for several materials
