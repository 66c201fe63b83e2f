"""A machine that others keep busy is noticed, and no latency is made of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import Tiny

from tasks.measure.disturbance import OtherLoad, process_seconds
from tasks.measure.latency import Contestant, compare_latency
from validators.errors import InfrastructureError
from validators.job_measurement import Measurement
from validators.records import SessionSettings


@contextmanager
def burners(count: int) -> Iterator[list[int]]:
    """Processes that compute without pause, ended with the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def burn(pid: int, seconds: float) -> None:
    """Wait until a process has used this much processor time."""
    end = process_seconds(pid) + seconds
    while process_seconds(pid) < end:
        time.sleep(0.01)


def test_processor_time_is_the_kernels_own_count() -> None:
    before = process_seconds(os.getpid())
    user = os.times()
    while os.times().user - user.user < 0.1:
        sum(range(1000))
    assert process_seconds(os.getpid()) - before == pytest.approx(0.1, abs=0.05)


def test_a_process_is_no_load_to_itself_but_to_others() -> None:
    with burners(1) as (pid,):
        itself, somebody = OtherLoad(pid), OtherLoad(os.getpid())
        burn(pid, 0.3)
        seen_by_other, seen_by_itself = somebody.cores(), itself.cores()
    assert seen_by_other > 0.3
    assert seen_by_itself < seen_by_other - 0.3


def test_a_busy_machine_gives_no_latency_unless_the_job_allows_it(tiny: Tiny, tmp_path: Path) -> None:
    cpu = Contestant(tiny.model, SessionSettings("CPUExecutionProvider", 1))
    batch = {"x": np.load(tiny.evaluation)["x"][:1]}
    strict = Measurement(launches=1, blocks=3, block_seconds=0.1, block_count=5, warmup_seconds=0.0)
    with burners(len(os.sched_getaffinity(0))):
        with pytest.raises(InfrastructureError, match="in 3 tries"):
            compare_latency(cpu, cpu, batch, strict, confidence=0.95, samples_path=tmp_path / "strict.npz")
        lenient = strict.model_copy(update={"max_other_load": None})
        measured = compare_latency(cpu, cpu, batch, lenient, confidence=0.95, samples_path=tmp_path / "lenient.npz")
    assert measured.pairs == 3
    assert not (tmp_path / "strict.npz").exists()
