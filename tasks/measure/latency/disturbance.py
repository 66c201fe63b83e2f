"""Disturbances of the machine while a block is measured, from the kernel's counters and from a canary."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.cgroup import CpuLimit, cpu_limits
from tasks.measure.latency.nvml import GpuState, NvmlGpu
from tasks.measure.latency.rapl import read_packages

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# Sorting these takes about a third of a millisecond.
_NUMBERS = np.random.default_rng(0).integers(0, 2**30, 20_000).astype(np.int32)
_CPUS = Path("/sys/devices/system/cpu")
# Largest allowed ratio between the processors' clocks within a pair of blocks.
STEADY_CLOCK = 1.2
# Largest allowed ratio between canaries. Neighbours on the sibling hyperthreads of a virtual machine come and go within a tenth
# of a second and slow the canary, as both sides, by up to 1.5: noise that the interval shows. Beyond it, processors are shared
# in time, and threads wait for one another.
STEADY_CANARY = 1.6
# A single interrupt does not move the median of this many.
CANARY_PIECES = 7
# Both measuring processes hold the GPU. This process does too, from its first GPU session until its end.
OWN_GPU_PROCESSES = 2
_DRIVER = "/libcuda.so"
HIGHEST_PRIORITY = -20  # setpriority(2)


@dataclass(frozen=True)
class BlockConditions:
    """Conditions of the machine during one block.

    `other_cores`: usable cores taken by processes other than the measured one. `stolen_cores`: cores taken by the hypervisor.
    `quota_throttled_cores`: time for which a CPU quota stopped the control group's threads, in cores. `canary_ms`: time of a
    fixed piece of work before and after the block, while the measured processes are stopped. `gpu_memory_mb`: GPU memory of
    the measured process. `growths`: growth of each of `counters_of` that the machine reports. Clock, throttling and GPU memory
    are None where it does not.
    """

    other_cores: float
    stolen_cores: float
    canary_ms: tuple[float, float]
    frequency_mhz: float | None = None
    throttled: int | None = None
    gpu: tuple[GpuState, GpuState] | None = None
    gpu_memory_mb: float | None = None
    quota_throttled_cores: float = 0.0
    growths: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Reading:
    """Values of monotonic counters at one moment."""

    clock: float
    busy: float
    stolen: float
    own: float
    throttled: int | None
    gpu: GpuState | None
    limits: tuple[CpuLimit, ...]
    counters: Mapping[str, Any]


class DisturbanceWatch:
    """Monitor of the processors `cpus` (empty: all that this process may use), for activity beside the process `pid`."""

    def __init__(self, pid: int, gpu: NvmlGpu | None = None, cpus: Collection[int] = ()) -> None:
        self._pid = pid
        self._gpu = gpu
        self._cpus = cpus or os.sched_getaffinity(0)
        self._idle_cores = 0 if cpus else len(self._cpus) - usable_cores()
        self._canary_ms = canary_ms()
        self._start = self._read()

    def conditions(self) -> BlockConditions:
        """Return the conditions since this monitor started."""
        start, end = self._start, self._read()
        elapsed = end.clock - start.clock
        own = end.own - start.own
        limits = list(zip(start.limits, end.limits, strict=False))
        return BlockConditions(
            other_cores=competing_cores(
                (end.busy - start.busy - own) / elapsed,
                [(used - own) / elapsed for used in _growths(limits, "used_seconds")],
                idle_cores=self._idle_cores,
            ),
            stolen_cores=(end.stolen - start.stolen) / elapsed,
            canary_ms=(self._canary_ms, canary_ms()),
            frequency_mhz=clock_mhz(_CPUS),
            throttled=None if end.throttled is None or start.throttled is None else end.throttled - start.throttled,
            gpu=(start.gpu, end.gpu) if start.gpu and end.gpu else None,
            gpu_memory_mb=end.gpu.held_mb.get(self._pid) if end.gpu else None,
            quota_throttled_cores=max(_growths(limits, "throttled_seconds"), default=0.0) / elapsed,
            growths={
                name: end.counters[name] - start.counters[name] for name in end.counters if name in start.counters
            },
        )

    def _read(self) -> _Reading:
        busy, stolen = processor_seconds(self._cpus)
        gpu = self._gpu.read() if self._gpu else None
        return _Reading(
            clock=time.monotonic(),
            busy=busy,
            stolen=stolen,
            own=process_seconds(self._pid),
            throttled=throttle_count(_CPUS),
            gpu=gpu,
            limits=cpu_limits(),
            counters=counters_of(self._pid, gpu),
        )


def counters_of(pid: int, gpu: GpuState | None) -> dict[str, Any]:
    """Return the present values of counters of a measured process, and of the device's energy.

    The growth of each per request, as a ratio to the baseline's, is among `Latency.ratios`, for gates. `energy_j` is that of
    the GPU if one is measured, else that of the processor packages. A counter that the machine does not report is left out.
    """
    counters = {
        "energy_j": gpu.energy_j if gpu else read_packages(),
        "major_faults": int(_stat_fields(pid)[9]),
        "involuntary_switches": involuntary_switches(pid),
    }
    return {name: value for name, value in counters.items() if value is not None}


def competing_cores(others: float, group_others: Sequence[float], idle_cores: int) -> float:
    """Return the number of usable cores that other processes took.

    `others` is their use of all processors in the affinity mask, in cores. A CPU quota leaves `idle_cores` of these to other
    processes; only use beyond them competes. `group_others` is the use by processes under the same quota, per control group;
    all of it competes.

    >>> competing_cores(10.0, [0.5], idle_cores=12), competing_cores(10.0, [], idle_cores=0)
    (0.5, 10.0)
    """
    return max(0.0, others - idle_cores, *group_others)


def _growths(limits: Sequence[tuple[CpuLimit, CpuLimit]], account: str) -> list[float]:
    """Return the growth of a counter of each control group, in seconds."""
    readings = [(getattr(before, account), getattr(after, account)) for before, after in limits]
    return [after - before for before, after in readings if before is not None and after is not None]


def why_disturbed(blocks: tuple[BlockConditions, BlockConditions], max_cores: float) -> str:
    """Return why a pair of blocks is disturbed, or "" if it is not.

    `max_cores` is the number of cores that other processes and the hypervisor may take together.
    """
    for block in blocks:
        if block.other_cores + block.stolen_cores > max_cores:
            together, allowed = _told_apart(block.other_cores + block.stolen_cores, max_cores)
            return (
                f"other processes kept {block.other_cores:.2f} cores busy and the hypervisor took {block.stolen_cores:.2f},"
                f" {together} together; {allowed} are allowed"
            )
        if block.quota_throttled_cores > max_cores:
            lost, allowed = _told_apart(block.quota_throttled_cores, max_cores)
            return (
                f"the CPU quota of the control group took {lost} cores; {allowed} are allowed: use fewer threads "
                "(measurement.threads), or raise the quota"
            )
        if block.throttled:
            return f"the processor was throttled {block.throttled} times"
        if block.gpu and (said := _gpu_disturbance(block.gpu)):
            return said
    canary = canary_ratio(blocks)
    if canary > STEADY_CANARY:
        return f"a fixed piece of work took {canary:.2f} times as long beside one block of the pair as beside the other"
    clocks = [block.frequency_mhz for block in blocks if block.frequency_mhz is not None]
    if clocks and max(clocks) > STEADY_CLOCK * min(clocks):
        return f"the processors' clock changed from {min(clocks):.0f} to {max(clocks):.0f} MHz"
    return ""


def _told_apart(found: float, allowed: float) -> tuple[str, str]:
    """Format both figures with two decimals, or with as many as distinguish them.

    >>> _told_apart(0.3004, 0.3), _told_apart(0.5, 0.3)
    (('0.3004', '0.3000'), ('0.50', '0.30'))
    """
    texts = ((f"{found:.{digits}f}", f"{allowed:.{digits}f}") for digits in range(2, 17))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(found), repr(allowed)))


def canary_ratio(blocks: tuple[BlockConditions, BlockConditions]) -> float:
    """Return the ratio of the slower to the faster canary of two blocks, before or after the block, whichever is larger."""
    first, second = (block.canary_ms for block in blocks)
    return max(max(one, other) / min(one, other) for one, other in zip(first, second, strict=True))


def canary_ms() -> float:
    """Return the time of a fixed piece of work, in milliseconds, which shows slowdowns that no counter reports.

    The measured processes must be stopped: a running session's threads spin for some 40 ms, and on the sibling hyperthread
    slow the canary like a neighbour. Sorting is not affected by the interpreter's lock.
    """
    pieces = []
    with highest_priority():
        for _ in range(CANARY_PIECES):
            start = time.perf_counter_ns()
            np.sort(_NUMBERS)
            pieces.append(time.perf_counter_ns() - start)
    return statistics.median(pieces) / 1e6


@contextmanager
def highest_priority() -> Iterator[None]:
    """Run the block at the priority of the measured processes, where this thread may change its own."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, HIGHEST_PRIORITY)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def least_busy_cpus(count: int, seconds: float = 0.1) -> tuple[int, ...]:
    """Return the `count` usable processors that were idle most of the next `seconds`."""
    cpus = sorted(os.sched_getaffinity(0))
    before = {cpu: sum(processor_seconds([cpu])) for cpu in cpus}
    time.sleep(seconds)
    busy = {cpu: sum(processor_seconds([cpu])) - before[cpu] for cpu in cpus}
    return tuple(sorted(sorted(cpus, key=busy.__getitem__)[:count]))


def _gpu_disturbance(states: tuple[GpuState, GpuState]) -> str:
    slowdowns = sorted({reason for state in states for reason in state.slowdowns})
    if slowdowns:
        return f"the GPU was throttled: {', '.join(slowdowns)}"
    processes = max(state.processes or 0 for state in states)
    return f"{processes} processes compute on the GPU" if processes > own_gpu_processes() else ""


def own_gpu_processes() -> int:
    """Return the number of the run's processes that may hold the GPU. In a container the driver reports other process ids."""
    return OWN_GPU_PROCESSES + (_DRIVER in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))


def processor_seconds(cpus: Collection[int]) -> tuple[float, float]:
    """Return the busy and the stolen time of these processors since boot, in seconds."""
    names = {f"cpu{number}" for number in cpus}
    busy = stolen = 0
    for line in Path("/proc/stat").read_text(encoding="ascii").splitlines():
        name, *fields = line.split()
        if name in names:
            # user nice system idle iowait irq softirq steal; guest time is part of user.
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in fields[:8])
            busy += user + nice + system + irq + softirq
            stolen += steal
    return busy * _TICK_SECONDS, stolen * _TICK_SECONDS


def process_seconds(pid: int) -> float:
    """Return the processor time of a process and its threads so far, in seconds."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


def involuntary_switches(pid: int) -> int:
    """Return the number of involuntary context switches of a process's threads."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        count += sum(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary_ctxt_switches"))
    return count


def clock_mhz(cpus: Path) -> float | None:
    """Return the mean clock of the usable processors in MHz; None if the kernel has none, as in most virtual machines."""
    files = [cpus / f"cpu{number}" / "cpufreq" / "scaling_cur_freq" for number in os.sched_getaffinity(0)]
    clocks = [int(file.read_text(encoding="ascii")) / 1e3 for file in files if file.exists()]
    return sum(clocks) / len(clocks) if clocks else None


def throttle_count(cpus: Path) -> int | None:
    """Return how often the usable processors were throttled for heat since boot; None without such a counter."""
    files = [cpus / f"cpu{number}" / "thermal_throttle" / "core_throttle_count" for number in os.sched_getaffinity(0)]
    counts = [int(file.read_text(encoding="ascii")) for file in files if file.exists()]
    return sum(counts) if counts else None


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the state on: 9 is major faults, 11 and 12 are user and system time."""
    # The process name, in parentheses, may contain spaces.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
