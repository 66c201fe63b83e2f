"""Threads of a run beside other processes: what they use by a process table by hand, and when a job gets fewer threads."""

from __future__ import annotations

import logging
import os
import resource
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from conftest import Tiny

from tasks.measure.latency.patience import processor_use
from tasks.run import spare_threads as module
from tasks.run.spare_threads import count_spare_threads, may_take_priority
from validators.job.job import Job
from validators.job.read_job import parse_job


def job_of(tiny: Tiny, **changes: Any) -> Job:
    document = {"source": str(tiny.model), "data": {"calibration": "c.npz", "evaluation": "e.npz"}}
    return parse_job(document | changes, base=Path())


class Machine:
    """Four cores, on which another process uses these cores in turn, look by look; `looks` are their seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *cores: float, prior: bool = False) -> None:
        self.looks: list[float] = []
        self.cores, self.used = list(cores), 0.0
        monkeypatch.setattr(module, "usable_cores", lambda: 4)
        monkeypatch.setattr(module, "may_take_priority", lambda: prior)
        monkeypatch.setattr(module, "processor_use", lambda: {"7 of 1": ("browser", self.used)})
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.looks.append(seconds)
        self.used += self.cores.pop(0) * seconds


@pytest.mark.parametrize(
    ("cores", "threads"),
    [((0.5,), 0), ((3.0, 0.5), 0), ((1.0, 1.0), 3), ((0.7, 0.7), 3), ((2.2, 2.2), 1), ((4.0, 4.0), 1)],
)
def test_threads_are_the_cores_that_others_leave(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, cores: tuple[float, ...], threads: int
) -> None:
    """0.15 of each of four cores may be taken: 0.6. A second look is made only if the first finds more."""
    machine = Machine(monkeypatch, *cores)
    assert count_spare_threads(job_of(tiny)) == threads and len(machine.looks) == len(cores)


def test_the_log_says_who_computes_and_what_follows(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Machine(monkeypatch, 1.0, 1.0)
    with caplog.at_level(logging.WARNING, logger="quantgate"):
        count_spare_threads(job_of(tiny))
    (said,) = caplog.messages
    assert said.startswith("machine busy: browser 1.0 cores. ") and "with 3 instead of 4 threads" in said


@pytest.mark.parametrize(
    "measurement", [{"threads": 2}, {"threads": [1, 2]}, {"max_other_load": None}], ids=lambda given: str(given)
)
def test_a_job_that_says_what_it_wants_keeps_it(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch, measurement: dict[str, Any]
) -> None:
    machine = Machine(monkeypatch, 4.0, 4.0)
    assert count_spare_threads(job_of(tiny, measurement=measurement)) == 0 and not machine.looks


def test_others_do_not_matter_with_priority_or_on_other_cores(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch, 4.0, 4.0, prior=True)
    assert count_spare_threads(job_of(tiny)) == 0
    machine = Machine(monkeypatch, 4.0, 4.0)
    assert count_spare_threads(job_of(tiny, target="ort-cuda")) == 0
    monkeypatch.setattr(module, "hands_to_workers", lambda: True)
    assert count_spare_threads(job_of(tiny)) == 0 and not machine.looks


def test_priority_is_what_the_kernel_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has it here, and an ordinary user by the limit alone; the thread keeps its own."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    granted = may_take_priority()
    try:
        os.setpriority(os.PRIO_PROCESS, 0, before - 1)
        may = True
    except OSError:
        may = False
    else:
        os.setpriority(os.PRIO_PROCESS, 0, before)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    assert granted == may or 0 < limit < 30

    # From here on as an ordinary user.
    monkeypatch.setattr(module, "highest_priority", nullcontext)
    for soft, may in ((0, False), (29, False), (30, True), (resource.RLIM_INFINITY, True)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert may_take_priority() == may


def test_processes_of_the_run_are_not_others(tmp_path: Path) -> None:
    """This process, its child and the child's child; beside its parent and another child of that."""
    own = os.getpid()

    def process(number: int, parent: int, name: str, ticks: int) -> None:
        folder = tmp_path / str(number)
        folder.mkdir()
        fields = ["S", str(parent), *["0"] * 9, str(ticks), str(ticks), *["0"] * 6, "555", "0"]
        (folder / "stat").write_text(f"{number} ({name}) {' '.join(fields)}\n", encoding="utf-8")

    process(1, 0, "init", 1)
    process(own, 1, "quantgate", 100)
    process(own + 1, own, "server", 100)
    process(own + 2, own + 1, "worker (1)", 100)
    process(own + 3, 1, "browser tab) 7", 50)
    (tmp_path / "self").mkdir()
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert processor_use(tmp_path) == {
        "1 of 555": ("init", 2 * tick),
        f"{own + 3} of 555": ("browser tab) 7", 100 * tick),
    }
