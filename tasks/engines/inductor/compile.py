"""Passes of the targets `torch-inductor` and `torch-cuda`: the source's exported program, quantized and compiled.

The compilation runs in a process of its own.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx

from tasks.engines.inductor.compiler import run_compiler
from tasks.ptq.build_variant import Materials, weight_bits
from tasks.runtimes.confined import WRITTEN_BYTES, WRITTEN_SIZES
from validators.errors import CandidateRefused
from validators.job.candidate_name import Candidate

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
    with tempfile.TemporaryDirectory(prefix="quantgate-") as name:
        folder = Path(name)
        is_calibrated = candidate.range_method is not None or candidate.weight_method == "gptq"
        batches = materials.batches() if is_calibrated else materials.batches()[:1]
        for index, batch in enumerate(batches):
            np.savez(folder / f"{index}.npz", **batch)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
        order = {
            "folder": str(folder),
            "program": str(materials.program),
            "package": str(path),
            "recipe": asdict(candidate),
            "device": device,
            "for_gpu": for_gpu,
            "weight_bits": weight_bits(candidate, materials.processor),
            "threads": materials.threads,
            "batches": [str(folder / f"{index}.npz") for index in range(len(batches))],
            "inputs": [value.name for value in graph.input],
            "outputs": [value.name for value in graph.output],
            "written_bytes": materials.program.stat().st_size * WRITTEN_SIZES + WRITTEN_BYTES,
        }
        told = run_compiler(order, folder)
    path.with_name(SECONDS).write_text(json.dumps(told["seconds"]), encoding="utf-8")
    return dict(told["changes"])


def compile_seconds(package: Path) -> float | None:
    """Return the seconds that the compilation of an artifact took; None if it was not compiled."""
    path = package.with_name(SECONDS)
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
