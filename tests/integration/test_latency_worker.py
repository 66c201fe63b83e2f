"""Measuring processes do not outlive the run that started them, however it ends."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from conftest import Tiny
from driving import environment

from tasks.measure.latency.process import save_requests

SCRIPT = """
import os, signal, sys
from pathlib import Path
from tasks.measure.latency.process import Contestant, Worker
from validators.records.run import SessionSettings
worker = Worker(Contestant(Path(sys.argv[1]), SessionSettings("CPUExecutionProvider", 1)), Path(sys.argv[2]))
worker.block(0.01, 3)
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stopped_worker_ends_when_its_run_is_killed(tiny: Tiny, tmp_path: Path) -> None:
    save_requests(tmp_path / "batch.npz", [{"x": np.load(tiny.evaluation)["x"][:1]}])
    command = [sys.executable, "-c", SCRIPT, str(tiny.model), str(tmp_path / "batch.npz")]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    process = Path("/proc") / done.stdout.strip()
    deadline = time.monotonic() + 30
    while process.exists() and "Z" not in (process / "stat").read_text().rpartition(")")[2].split()[0]:
        assert time.monotonic() < deadline, "the worker is still there, stopped"
        time.sleep(0.05)
