"""Passes of the targets `torch-inductor` and `torch-cuda`: the source's program, quantized and compiled, or a given one.

The compilation runs in a process of its own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tasks.engines.given import compare_with_source
from tasks.engines.inductor.compiler import run_compiler
from tasks.ptq.build_variant import Materials, weight_bits
from tasks.runtimes.confined import WRITTEN_BYTES, WRITTEN_SIZES
from validators.errors import CandidateRefused
from validators.graph.program_interface import read_interface
from validators.job.candidate_name import Candidate
from validators.job.given_file import GivenFile
from validators.samples.datasets import Arrays

SECONDS = "compile_seconds.json"


def inductor_form(
    candidate: Candidate, materials: Materials, path: Path, *, device: str = "cpu", for_gpu: bool = False
) -> dict[str, int]:
    """Write the compiled package, and beside it the seconds of its compilation; return the counts of changes.

    `for_gpu` rewrites products for a GPU's kernels, which run on the torch device `device`.

    Raises:
        CandidateRefused: `unsupported`: the source is no PyTorch model; `invalid`: torch does not quantize or compile it;
            `infrastructure`: the process is killed.
    """
    if materials.program is None:
        raise CandidateRefused(
            kind="unsupported",
            found="a source without an exported PyTorch program",
            expected="a model of the flavor pytorch, transformers or sentence_transformers: TorchInductor compiles no ONNX",
            fix="take candidates of another engine",
        )
    graph = onnx.load(materials.prepared(), load_external_data=False).graph
    is_calibrated = candidate.range_method is not None or candidate.rounding.needs_grams
    order = {
        "program": str(materials.program),
        "recipe": asdict(candidate),
        "device": device,
        "for_gpu": for_gpu,
        "weight_bits": weight_bits(candidate, materials.processor),
        "inputs": [value.name for value in graph.input],
        "outputs": [value.name for value in graph.output],
    }
    return _compile(order, materials, path, materials.batches() if is_calibrated else materials.batches()[:1])


def take_program(
    given: GivenFile, path: Path, materials: Materials, *, device: str = "cpu", for_gpu: bool = False
) -> str:
    """Compile a given program as it is; see `tasks.engines.given.TakeUp`.

    Raises:
        CandidateRefused: `invalid`: it does not fit the source, or torch does not compile it.
    """
    read = read_interface(given.file)
    names = given.outputs
    source = onnx.load(materials.source, load_external_data=False).graph.output
    if not read.names_outputs and not names and len(read.outputs) == len(source):
        # Nodes that a quantizer or an exporter named: outputs are known by their order.
        names = {spec.name: value.name for spec, value in zip(read.outputs, source, strict=True)}
    inputs = [replace(spec, name=given.inputs.get(spec.name, spec.name)) for spec in read.inputs]
    outputs = [replace(spec, name=names.get(spec.name, spec.name)) for spec in read.outputs]
    compare_with_source(given, inputs, outputs, materials.source)
    order = {
        "program": str(given.file.resolve()),
        "recipe": {"precision": given.precision, "is_given": True},
        "device": device,
        "for_gpu": for_gpu,
        "inputs": [spec.name for spec in inputs],
        "outputs": [spec.name for spec in outputs],
    }
    _compile(order, materials, path, materials.batches()[:1])
    return f"torch.export of torch {read.torch}"


def _compile(order: dict[str, Any], materials: Materials, path: Path, batches: Sequence[Arrays]) -> dict[str, int]:
    """Run the compiler on an order, to which this adds files and limits; return the counts of changes."""
    with tempfile.TemporaryDirectory(prefix="quantgate-") as name:
        folder = Path(name)
        for index, batch in enumerate(batches):
            np.savez(folder / f"{index}.npz", **batch)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
        order |= {
            "folder": str(folder),
            "package": str(path),
            "threads": materials.threads,
            "batches": [str(folder / f"{index}.npz") for index in range(len(batches))],
            "written_bytes": Path(order["program"]).stat().st_size * WRITTEN_SIZES + WRITTEN_BYTES,
        }
        told = run_compiler(order, folder)
    path.with_name(SECONDS).write_text(json.dumps(told["seconds"]), encoding="utf-8")
    return dict(told["changes"])


def compile_seconds(package: Path) -> float | None:
    """Return the seconds that the compilation of an artifact took; None if it was not compiled."""
    path = package.with_name(SECONDS)
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
