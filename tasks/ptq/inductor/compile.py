"""Passes of the targets `torch-inductor` and `torch-cuda`: the source's exported program, quantized and compiled.

The compilation runs in a process of its own.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from tasks.ptq.build_variant import Materials
from tasks.ptq.inductor.compile_process import ANSWER
from tasks.runtimes.confined import PATIENCE_SECONDS, WRITTEN_BYTES, WRITTEN_SIZES, confined_environment
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
        batches = (
            materials.batches() if candidate.precision == "int8" and not candidate.dynamic else materials.batches()[:1]
        )
        for index, batch in enumerate(batches):
            np.savez(folder / f"{index}.npz", **batch)  # type: ignore[arg-type]  # its stub: keywords for allow_pickle
        order = {
            "folder": str(folder),
            "program": str(materials.program),
            "package": str(path),
            "recipe": asdict(candidate),
            "device": device,
            "for_gpu": for_gpu,
            "weight_bits": 7 if materials.reduced_range else 8,
            "threads": materials.threads,
            "batches": [str(folder / f"{index}.npz") for index in range(len(batches))],
            "inputs": [value.name for value in graph.input],
            "outputs": [value.name for value in graph.output],
            "written_bytes": materials.program.stat().st_size * WRITTEN_SIZES + WRITTEN_BYTES,
        }
        told = _run(order, folder)
    path.with_name(SECONDS).write_text(json.dumps(told["seconds"]), encoding="utf-8")
    return dict(told["changes"])


def compile_seconds(package: Path) -> float | None:
    """Return the seconds that the compilation of an artifact took; None if it was not compiled."""
    path = package.with_name(SECONDS)
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _run(order: dict[str, Any], folder: Path) -> dict[str, Any]:
    # Its own cache, so that a compilation takes as long as the first one did; one compiler, beside other candidates.
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tasks.ptq.inductor.compile_process"],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            errors="replace",
            cwd=folder,
            env=confined_environment(folder) | own,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        ended = f"ended with exit status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"
    except subprocess.TimeoutExpired:
        ended = f"was not finished after {PATIENCE_SECONDS:.0f} s"
    if not (folder / ANSWER).exists():
        raise CandidateRefused(
            kind="infrastructure",
            found=f"the process that compiles {order['program']} {ended}",
            expected="a process that finishes the package",
            fix="check free memory and disk, and run again",
        )
    told: dict[str, Any] = json.loads((folder / ANSWER).read_text(encoding="utf-8"))
    if "error" in told:
        raise CandidateRefused(
            kind="invalid",
            found=f"TorchInductor does not compile the program: {told['error'].splitlines()[0][:300]}",
            expected="a program whose operators TorchInductor compiles for this device",
            fix="take candidates of another engine",
        )
    return told
