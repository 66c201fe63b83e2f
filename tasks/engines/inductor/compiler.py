"""Run of the compiling process; `compile_process` describes its order. Without onnx, so that PyTorch alone can ask for it."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from tasks.engines.inductor.compile_process import ANSWER
from tasks.runtimes.confined import PATIENCE_SECONDS, confined_environment, run_module
from validators.errors import CandidateRefused


def run_compiler(
    order: dict[str, Any], folder: Path, *, module: str = "tasks.engines.inductor.compile_process"
) -> dict[str, Any]:
    """Run the compiling process for an order, with its files in `folder`; return its answer: `seconds` and `changes`.

    `module` is the process's main module; another one prepares torch and then calls this one's.

    Raises:
        CandidateRefused: `invalid`: torch does not quantize or compile the program; `infrastructure`: the process is killed.
    """
    # Its own cache, so that a compilation takes as long as the first one did; one compiler, beside other candidates.
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
    }
    try:
        env = confined_environment(folder) | own
        done = run_module(module, env=env, timeout=PATIENCE_SECONDS, input=json.dumps(order), cwd=folder)
        ended = f"ended with exit status {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1][:200]}"
    except TimeoutExpired:
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
            found=f"TorchInductor does not compile the program: {told['error']}",
            expected="a program whose operators TorchInductor compiles for this device",
            fix="take candidates of another engine",
        )
    return told
