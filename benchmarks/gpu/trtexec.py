"""NVIDIA's own benchmark on the same engine, where it is installed.

`trtexec` is in no wheel and was not at hand when this was written: the form of its summary is that of its documentation
(NVIDIA TensorRT, command-line programs, "trtexec", and samples/trtexec/README.md), and an output that is not so is a refusal.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from validators.errors import CandidateRefused

PROGRAM = "trtexec"
WARM_UP_MS, ITERATIONS, DURATION_SECONDS, TIMEOUT_SECONDS = 200, 100, 1, 120
_LINE = re.compile(r"\[I\] (?P<name>GPU Compute Time|Latency): (?P<values>min = .*)$", re.MULTILINE)
_VALUE = re.compile(r"(?P<key>min|max|mean|median|percentile\(\d+%\)) = (?P<ms>[0-9.]+(?:e[+-]?\d+)?) ms")


def measure_trtexec(engine: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
    """Milliseconds of a request on the engine at these shapes: `gpu_compute_ms` and `latency_ms`, medians.

    Raises:
        CandidateRefused: `unsupported`: it is not installed; `invalid`: it fails, or its output is not as documented.
    """
    program = shutil.which(PROGRAM)
    if program is None:
        raise CandidateRefused(
            kind="unsupported",
            found=f"no {PROGRAM} on the PATH",
            expected=f"{PROGRAM}, which is part of TensorRT's packages and in no wheel",
            fix="install TensorRT from its packages beside the wheels",
        )
    run = subprocess.run(
        command(program, engine, shapes), capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
    )
    if run.returncode:
        said = (run.stderr or run.stdout).strip().splitlines()
        raise CandidateRefused(
            kind="invalid",
            found=f"{PROGRAM} ends with {run.returncode}: {said[-1][:300] if said else 'no output'}",
            expected="exit code 0",
            fix=f"take the {PROGRAM} of the TensorRT that built the engine",
        )
    return parse(run.stdout)


def command(program: str, engine: Path, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The command line.

    >>> command("trtexec", Path("e.plan"), {"x": (8, 64), "mask": (8, 1)})[2]
    '--shapes=x:8x64,mask:8x1'
    """
    told = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    return [
        program,
        f"--loadEngine={engine}",
        f"--shapes={told}",
        f"--warmUp={WARM_UP_MS}",
        f"--iterations={ITERATIONS}",
        f"--duration={DURATION_SECONDS}",
        "--useCudaGraph",
    ]


def parse(output: str) -> dict[str, float]:
    """The medians of its performance summary, in milliseconds; the last of each, should it print several.

    Raises:
        CandidateRefused: `invalid`: there is no such summary.
    """
    found = {}
    for line in _LINE.finditer(output):
        values = {value["key"]: float(value["ms"]) for value in _VALUE.finditer(line["values"])}
        if "median" in values:
            found["gpu_compute_ms" if line["name"].startswith("GPU") else "latency_ms"] = values["median"]
    if "gpu_compute_ms" not in found:
        raise CandidateRefused(
            kind="invalid",
            found=f"an output of {PROGRAM} without a median of `GPU Compute Time`",
            expected="its performance summary as documented",
            fix=f"run {PROGRAM} by hand and mend the parser",
        )
    return found
