"""Parent side of the child process that builds an engine: its input, its exit, its log."""

from __future__ import annotations

import json
import re
import shutil
import signal
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

from tasks.engines.tensorrt.build_process_child import LOG
from tasks.runtimes.confined import module_environment, run_module
from validators.child_environment import HOOKS
from validators.errors import CandidateRefused
from validators.records.run import Gpu

# Timeout: timing kernels for a large model takes minutes, but a hanging builder must not hold a GPU for ever.
PATIENCE_SECONDS = 7200.0
_MESSAGE = re.compile(r"^\[(VERBOSE|INFO|WARNING|ERROR|INTERNAL_ERROR)\] ", re.MULTILINE)


def run_builder(orders: dict[str, Any], gpu: Gpu | None) -> None:
    """Run `build_process_child.main` with these orders in a child process, and wait for its end.

    Raises:
        CandidateRefused: `infrastructure`: it crashed, was killed, or timed out; `unsupported`: it cannot import TensorRT.
    """
    # The inventory's GPU by UUID, independent of CUDA's device order.
    visible = {"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu else {}
    module, env = "tasks.engines.tensorrt.build_process_child", module_environment(*HOOKS) | visible
    try:
        done = run_module(module, env=env, timeout=PATIENCE_SECONDS, input=json.dumps(orders))
    except TimeoutExpired as error:
        raise _ended(f"no engine after {PATIENCE_SECONDS:.0f} s", Path(orders["folder"])) from error
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        killed = ", possibly because the machine ran out of memory" if name == "SIGKILL" else ""
        raise _ended(f"{name} ended the builder{killed}", Path(orders["folder"]))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if last.startswith("ImportError: no TensorRT"):
            extra = "tensorrt-aot" if orders["compute_capabilities"] else "tensorrt"
            raise CandidateRefused(
                kind="unsupported",
                found=last,
                expected="a complete installation of TensorRT",
                fix=f"reinstall the extra `{extra}`",
            )
        raise _ended(f"the builder failed with {last[:300]}", Path(orders["folder"]))


def _ended(found: str, folder: Path) -> CandidateRefused:
    messages = read_log(folder / LOG) if (folder / LOG).exists() else ()
    said = f"; its last message: {messages[-1][1][:200]}" if messages else ""
    return CandidateRefused(
        kind="infrastructure",
        found=found + said,
        expected="a builder that finishes",
        fix=f"read {folder / LOG}; check the free memory of machine and GPU, and build again",
    )


def copy_log(log: Path, folder: Path) -> Path:
    """Copy a builder's log into a folder; return the copy."""
    return Path(shutil.copy(log, folder))


def read_log(log: Path) -> tuple[tuple[str, str], ...]:
    """Return (severity, text) of each message in a build log."""
    parts = _MESSAGE.split(log.read_text(encoding="utf-8", errors="replace"))
    return tuple((severity, text.rstrip("\n")) for severity, text in zip(parts[1::2], parts[2::2], strict=True))
