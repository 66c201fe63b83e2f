"""What disturbs a block is noticed: by the kernel's accounts, by the clock, by the canary."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Tiny

from tasks.measure.latency import disturbance, process
from tasks.measure.latency.cgroup import CpuLimit
from tasks.measure.latency.compare import compare_latency
from tasks.measure.latency.disturbance import (
    BlockConditions,
    DisturbanceWatch,
    canary_ratio,
    clock_mhz,
    competing_cores,
    involuntary_switches,
    least_busy_cpus,
    process_seconds,
    processor_seconds,
    throttle_count,
    why_disturbed,
)
from tasks.measure.latency.nvml import GpuState
from tasks.measure.latency.process import Contestant
from validators.job.job_measurement import Measurement
from validators.records.run import SessionSettings

SPINNER = """
import sys, numpy as np, onnxruntime as ort
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
while True:
    session.run(None, {"x": np.ones((256, 64), np.float32)})
"""
CPUS = sorted(os.sched_getaffinity(0))


@contextmanager
def running(count: int, *code: str) -> Iterator[list[int]]:
    """Processes that compute without pause, ended with the block."""
    processes = [subprocess.Popen([sys.executable, "-c", *code]) for _ in range(count)]
    try:
        yield [process.pid for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def burners(count: int) -> Any:
    return running(count, "while True: pass")


def burn(pid: int, seconds: float) -> None:
    """Wait until a process has used this much processor time."""
    end = process_seconds(pid) + seconds
    while process_seconds(pid) < end:
        time.sleep(0.01)


# The kernel's accounts


def test_processor_time_is_the_kernels_own_count() -> None:
    before = process_seconds(os.getpid())
    user = os.times()
    while os.times().user - user.user < 0.1:
        sum(range(1000))
    assert process_seconds(os.getpid()) - before == pytest.approx(0.1, abs=0.05)


def test_a_process_is_no_load_to_itself_but_to_others() -> None:
    with burners(1) as (pid,):
        itself, somebody, started = DisturbanceWatch(pid), DisturbanceWatch(os.getpid()), time.monotonic()
        burn(pid, 0.3)
        seen_by_other, seen_by_itself = somebody.conditions(), itself.conditions()
        share = 0.3 / (time.monotonic() - started)
    # Half of it, since ticks are coarse; on a crowded machine the burner itself gets little.
    assert seen_by_other.other_cores > share / 2
    assert seen_by_itself.other_cores < seen_by_other.other_cores - share / 2


def test_stolen_time_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines of /proc/stat by hand: 100 ticks are a second, the eighth figure is stolen; guest time is not counted twice."""
    lines = "cpu  9 9 9 9 9 9 9 9 0 0\n" + "".join(f"cpu{cpu} 100 200 300 9999 8888 10 20 70 5 5\n" for cpu in CPUS)
    monkeypatch.setattr(Path, "read_text", lambda path, **_: lines)
    ticks = os.sysconf("SC_CLK_TCK")
    assert processor_seconds(CPUS) == pytest.approx((len(CPUS) * 630 / ticks, len(CPUS) * 70 / ticks))


def test_a_thread_that_makes_room_is_counted() -> None:
    """Two burners on one processor take it from each other."""
    with burners(2) as pids:
        for pid in pids:
            os.sched_setaffinity(pid, {CPUS[0]})
        before = involuntary_switches(pids[0])
        burn(pids[0], 0.3)
        assert involuntary_switches(pids[0]) > before


def plant(cpus: Path, part: str, name: str, values: list[int]) -> None:
    """Files as the kernel has them, for the usable processors, and one for another that must not count."""
    for number, value in zip([*CPUS, max(CPUS) + 1], [*values, 10**9], strict=True):
        folder = cpus / f"cpu{number}" / part
        folder.mkdir(parents=True)
        (folder / name).write_text(f"{value}\n")


def test_clock_and_throttling_are_read_where_the_kernel_has_them(tmp_path: Path) -> None:
    """The mean of the usable processors in MHz, from kHz; the sum of the counters; None where there are no files."""
    assert clock_mhz(tmp_path) is None and throttle_count(tmp_path) is None
    plant(tmp_path, "cpufreq", "scaling_cur_freq", [2_000_000 + 500_000 * index for index in range(len(CPUS))])
    plant(tmp_path, "thermal_throttle", "core_throttle_count", [3] * len(CPUS))
    assert clock_mhz(tmp_path) == pytest.approx(2000 + 250 * (len(CPUS) - 1))
    assert throttle_count(tmp_path) == 3 * len(CPUS)


# The judgement

STILL = BlockConditions(other_cores=0.1, stolen_cores=0.1, canary_ms=(1.0, 1.05), frequency_mhz=2500.0, throttled=0)
GPU = GpuState((), 10.0, 2)
DISTURBED: dict[str, tuple[BlockConditions, str]] = {
    "others": (replace(STILL, other_cores=0.25), "other processes kept 0.25 cores busy"),
    "hypervisor": (replace(STILL, stolen_cores=0.25), "the hypervisor took 0.25"),
    "quota": (replace(STILL, quota_throttled_cores=0.4), "the CPU quota of the control group took 0.40 cores"),
    "canary": (replace(STILL, canary_ms=(1.0, 1.8)), "took 1.71 times as long"),
    "slower from the second block on": (replace(STILL, canary_ms=(1.7, 1.7)), "took 1.70 times as long"),
    "clock": (replace(STILL, frequency_mhz=2000.0), "from 2000 to 2500 MHz"),
    "throttled": (replace(STILL, throttled=2), "throttled 2 times"),
    "gpu throttled": (replace(STILL, gpu=(GPU, replace(GPU, slowdowns=("power brake",)))), "throttled: power brake"),
    "gpu shared": (replace(STILL, gpu=(GPU, replace(GPU, processes=3))), "3 processes compute on the GPU"),
}


@pytest.mark.parametrize("what", DISTURBED)
def test_each_disturbance_is_named_on_either_side(what: str) -> None:
    block, said = DISTURBED[what]
    assert said in why_disturbed((STILL, block), 0.3)
    assert said in why_disturbed((block, STILL), 0.3)


def test_a_load_just_above_the_bound_reads_differently() -> None:
    """The least that goes beyond the bound must not read as 0.30 where 0.30 are allowed."""
    block = replace(STILL, other_cores=0.2004)
    assert "0.3004 together; 0.3000 are allowed" in why_disturbed((STILL, block), 0.3)
    throttled = replace(STILL, quota_throttled_cores=0.301)
    assert "took 0.301 cores; 0.300 are allowed" in why_disturbed((STILL, throttled), 0.3)


def test_work_beyond_the_quota_is_no_load_unless_cores_run_out() -> None:
    """A quota of 4 cores on 16: others may use 12; processes of the same group share the 4."""
    assert competing_cores(11.0, [0.0], idle_cores=12) == 0
    assert competing_cores(13.5, [0.0], idle_cores=12) == 1.5
    assert competing_cores(11.0, [0.7, 0.2], idle_cores=12) == 0.7


def test_a_block_has_the_throttling_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """The growth of the worst group's account, in cores; a group that has gone meanwhile says nothing."""
    readings = [
        (CpuLimit(1.0, 100.0, 5.0), CpuLimit(4.0, 200.0, 7.0)),
        (CpuLimit(1.0, 105.0, 5.0), CpuLimit(4.0, 200.0, 8.0)),
    ]
    monkeypatch.setattr(disturbance, "cpu_limits", lambda: readings.pop(0))
    monkeypatch.setattr(time, "monotonic", iter([10.0, 12.0]).__next__)
    found = DisturbanceWatch(os.getpid()).conditions()
    assert found.quota_throttled_cores == pytest.approx(0.5)
    # 5 s in 2 s, less the few ticks of this process.
    assert 2.0 < found.other_cores <= 2.5


def test_the_run_itself_may_hold_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does once it has opened a session there, which leaves the driver's library in its memory."""
    three = replace(STILL, gpu=(GPU, replace(GPU, processes=3)))
    assert disturbance.own_gpu_processes() == 2
    # Any library that is there stands in for the driver's.
    monkeypatch.setattr(disturbance, "_DRIVER", "/libc.so")
    assert disturbance.own_gpu_processes() == 3
    assert why_disturbed((three, three), 0.3) == ""
    four = replace(STILL, gpu=(GPU, replace(GPU, processes=4)))
    assert "4 processes compute on the GPU" in why_disturbed((four, STILL), 0.3)


def test_memory_is_that_of_the_process_that_is_watched() -> None:
    class Stand:
        def read(self) -> GpuState:
            return replace(GPU, held_mb={os.getpid(): 700.0, 1: 900.0})

    assert DisturbanceWatch(os.getpid(), Stand()).conditions().gpu_memory_mb == 700.0  # type: ignore[arg-type]  # a stand-in
    assert DisturbanceWatch(os.getpid()).conditions().gpu_memory_mb is None


def test_a_still_machine_is_not_accused() -> None:
    """Nor one that is slow throughout: a ratio does not mind."""
    assert why_disturbed((STILL, STILL), 0.3) == ""
    slow = replace(STILL, canary_ms=(1.5, 1.6), frequency_mhz=1700.0, gpu=(GPU, GPU))
    assert why_disturbed((slow, slow), 0.3) == ""
    assert canary_ratio((slow, replace(slow, canary_ms=(1.5, 1.92)))) == pytest.approx(1.2)
    neighbour = replace(STILL, canary_ms=(1.0, 1.5))
    assert why_disturbed((STILL, neighbour), 0.3) == ""


# A second process beside the measurement


def compare(tiny: Tiny, folder: Path, measurement: Measurement) -> Any:
    """The tiny model with itself."""
    cpu = Contestant(tiny.model, SessionSettings("CPUExecutionProvider", 1))
    batch = {"x": np.load(tiny.evaluation)["x"][:1]}
    return compare_latency(cpu, cpu, [batch], measurement, confidence=0.95, samples_path=folder / "samples.npz")


STRICT = Measurement(
    launches=2, blocks=3, block_seconds=0.1, block_count=5, warmup_seconds=0.0, warmup_limit_seconds=0.0
)


@pytest.fixture
def ordinary_priority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured processes that may not raise their priority: others would get next to nothing."""
    source = process.WORKER.read_text(encoding="utf-8")
    assert source.count("nice = _raise_priority()") == 1
    worker = tmp_path / "worker.py"
    worker.write_text(source.replace("nice = _raise_priority()", "nice = 0"), encoding="utf-8")
    monkeypatch.setattr(process, "WORKER", worker)


@pytest.mark.parametrize("other", ["burner", "session"])
@pytest.mark.usefixtures("ordinary_priority")
def test_busy_machine_gives_no_interval_unless_the_job_allows_it(other: str, tiny: Tiny, tmp_path: Path) -> None:
    """A burner on each core, or a session with as many threads, which spin: what was measured, the reason, and no bounds."""
    beside = burners(len(CPUS)) if other == "burner" else running(1, SPINNER, str(tiny.model), str(len(CPUS)))
    with beside as pids:
        burn(pids[0], 0.5)
        measured = compare(tiny, tmp_path, STRICT)
        lenient = compare(tiny, tmp_path, STRICT.model_copy(update={"max_other_load": None}))
    assert measured.disturbance.endswith("in 3 tries")
    assert (measured.pairs, measured.launches) == (1, 1) and measured.p50_ms > 0
    assert measured.speedup.value > 0 and measured.speedup.low is None and measured.speedup.high is None
    assert measured.conditions.repeated == 2
    # The mean over two blocks, of which at least one had more than the 0.3 cores that are allowed.
    assert measured.conditions.other_cores + measured.conditions.stolen_cores > 0.15
    assert lenient.disturbance == "" and lenient.pairs == 6 and lenient.speedup.low is not None
    assert lenient.conditions.other_cores > 0.15


def test_a_model_beside_itself_is_itself(tiny: Tiny, tmp_path: Path) -> None:
    """Whatever the machine does meanwhile: it is disturbed, or its interval at 99.9 % on either side holds the truth."""
    measured = compare(tiny, tmp_path, STRICT.model_copy(update={"launches": 3}))
    with np.load(tmp_path / "samples.npz") as archive:
        assert archive["baseline_canary_ms"].shape == (measured.pairs, 2)
        assert (archive["variant_canary_ms"] > 0).all()
    if not measured.disturbance:
        center = np.log(measured.speedup.value)
        half = np.log(measured.speedup.high) - center
        # Student's quantiles of 2 degrees of freedom at 95 % and 99.9 %.
        assert abs(center) <= half * 22.327 / 2.920


# Priority and processors of the measured processes

NICE_OF_WORKER = """
import sys
from pathlib import Path
import numpy as np
from tasks.measure.latency.process import Contestant, Worker, save_requests
from validators.records.run import SessionSettings
model, folder = Path(sys.argv[1]), Path(sys.argv[2])
inputs = save_requests(folder / "requests.npz", [{"x": np.ones((4, 64), np.float32)}])
with Worker(Contestant(model, SessionSettings("CPUExecutionProvider", 2)), inputs, cpus=[int(sys.argv[3])]) as worker:
    worker.block(0.01, 3)
    threads = [f"/proc/{worker.pid}/task/{thread.name}" for thread in Path(f"/proc/{worker.pid}/task").iterdir()]
    # Field 19 of proc_pid_stat(5) is the nice value.
    nices = {int(Path(thread, "stat").read_text().rpartition(")")[2].split()[16]) for thread in threads}
    lines = [line for thread in threads for line in Path(thread, "status").read_text().splitlines()]
    print(worker.nice, *nices, len(threads) > 1, *{line for line in lines if "Cpus_allowed_list" in line})
"""


def nice_of_worker(tiny: Tiny, folder: Path, *before: str) -> str:
    command = [*before, sys.executable, "-c", NICE_OF_WORKER, str(tiny.model), str(folder), str(CPUS[-1])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def may_raise_priority() -> bool:
    code = "import os; os.setpriority(os.PRIO_PROCESS, 0, -20)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_all_threads_of_a_measured_process_have_its_priority(tiny: Tiny, tmp_path: Path) -> None:
    """The highest one where it is permitted, and only the processors that it was given."""
    nice = -20 if may_raise_priority() else os.getpriority(os.PRIO_PROCESS, 0)
    assert nice_of_worker(tiny, tmp_path) == f"{nice} {nice} True Cpus_allowed_list:\t{CPUS[-1]}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up CAP_SYS_NICE")
def test_without_permission_the_priority_stays(tiny: Tiny, tmp_path: Path) -> None:
    said = nice_of_worker(tiny, tmp_path, "setpriv", "--bounding-set=-sys_nice")
    assert said.startswith("0 0 True")


def test_the_least_busy_processors_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processors, of which the first and the last are used meanwhile."""
    readings = {cpu: iter([(1.0, 0.5), (1.0 + used, 0.5)]) for cpu, used in enumerate((0.3, 0.0, 0.1, 0.2))}
    monkeypatch.setattr(disturbance, "processor_seconds", lambda cpus: next(readings[cpus[0]]))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert least_busy_cpus(2, seconds=0.0) == (1, 2)
