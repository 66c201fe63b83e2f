"""Whether the machine kept still while a block was measured, from the kernel's own accounts and from a canary."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tasks.measure.inventory import usable_cores
from tasks.measure.latency.cgroup import CpuLimit, cpu_limits
from tasks.measure.latency.nvml import GpuState, NvmlGpu

_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
# To be sorted in about a third of a millisecond.
_NUMBERS = np.random.default_rng(0).integers(0, 2**30, 20_000).astype(np.int32)
_CPUS = Path("/sys/devices/system/cpu")
# By how much the processors' clock may change within a pair of blocks.
STEADY_CLOCK = 1.2
# By how much the canary may. Neighbours on the other halves of the cores of a virtual machine come and go within a tenth of a
# second and slow it by up to 1.5, as they do both sides: that is noise, which the interval shows. Beyond it a processor is
# shared in time, and threads wait for one another.
STEADY_CANARY = 1.6
# The median of so many does not see a single interrupt.
CANARY_PIECES = 7
# Both measuring processes hold the GPU; this one does as well from the first session that it opened there until its end.
OWN_GPU_PROCESSES = 2
_DRIVER = "/libcuda.so"


@dataclass(frozen=True)
class BlockConditions:
    """What the machine did during one block.

    `other_cores` is what processes other than the measured one took of the usable cores, `stolen_cores` what the hypervisor
    took, `quota_throttled_cores` the time for which a CPU quota stopped the threads of the control group, all in cores;
    `canary_ms` is the time of a fixed piece of work before and after, while the measured processes are stopped. Clock and
    throttling are None where nothing tells them, and so is `gpu_memory_mb`, what the measured process holds of a GPU's memory.
    """

    other_cores: float
    stolen_cores: float
    canary_ms: tuple[float, float]
    frequency_mhz: float | None = None
    throttled: int | None = None
    major_faults: int = 0
    involuntary_switches: int = 0
    gpu: tuple[GpuState, GpuState] | None = None
    gpu_memory_mb: float | None = None
    quota_throttled_cores: float = 0.0


@dataclass(frozen=True)
class _Reading:
    """Counters since some past moment."""

    clock: float
    busy: float
    stolen: float
    own: float
    throttled: int | None
    major_faults: int
    involuntary_switches: int
    gpu: GpuState | None
    limits: tuple[CpuLimit, ...]


class DisturbanceWatch:
    """What happens on the processors that this process may use, beside the process `pid`, from now on."""

    def __init__(self, pid: int, gpu: NvmlGpu | None = None) -> None:
        self._pid = pid
        self._gpu = gpu
        self._canary_ms = canary_ms()
        self._start = self._read()

    def conditions(self) -> BlockConditions:
        """The means and counts of the time since then."""
        start, end = self._start, self._read()
        elapsed = end.clock - start.clock
        own = end.own - start.own
        limits = list(zip(start.limits, end.limits, strict=False))
        return BlockConditions(
            other_cores=competing_cores(
                (end.busy - start.busy - own) / elapsed,
                [(used - own) / elapsed for used in _growths(limits, "used_seconds")],
                idle_cores=len(os.sched_getaffinity(0)) - usable_cores(),
            ),
            stolen_cores=(end.stolen - start.stolen) / elapsed,
            canary_ms=(self._canary_ms, canary_ms()),
            frequency_mhz=clock_mhz(_CPUS),
            throttled=None if end.throttled is None or start.throttled is None else end.throttled - start.throttled,
            major_faults=end.major_faults - start.major_faults,
            involuntary_switches=end.involuntary_switches - start.involuntary_switches,
            gpu=(start.gpu, end.gpu) if start.gpu and end.gpu else None,
            gpu_memory_mb=end.gpu.held_mb.get(self._pid) if end.gpu else None,
            quota_throttled_cores=max(_growths(limits, "throttled_seconds"), default=0.0) / elapsed,
        )

    def _read(self) -> _Reading:
        busy, stolen = processor_seconds()
        return _Reading(
            clock=time.monotonic(),
            busy=busy,
            stolen=stolen,
            own=process_seconds(self._pid),
            throttled=throttle_count(_CPUS),
            major_faults=int(_stat_fields(self._pid)[9]),
            involuntary_switches=involuntary_switches(self._pid),
            gpu=self._gpu.read() if self._gpu else None,
            limits=cpu_limits(),
        )


def competing_cores(others: float, group_others: Sequence[float], idle_cores: int) -> float:
    """Return how many of the usable cores other processes took.

    `others` is what they used of all processors in the affinity mask. A CPU quota leaves `idle_cores` of these processors to
    others: only what goes beyond them competes. `group_others` is what processes under the same quota used, by control
    group: all of that competes.

    >>> competing_cores(10.0, [0.5], idle_cores=12), competing_cores(10.0, [], idle_cores=0)
    (0.5, 10.0)
    """
    return max(0.0, others - idle_cores, *group_others)


def _growths(limits: Sequence[tuple[CpuLimit, CpuLimit]], account: str) -> list[float]:
    """Return by how many seconds an account of each control group grew."""
    readings = [(getattr(before, account), getattr(after, account)) for before, after in limits]
    return [after - before for before, after in readings if before is not None and after is not None]


def why_disturbed(blocks: tuple[BlockConditions, BlockConditions], max_cores: float) -> str:
    """What disturbed a pair of blocks, in words; empty for one that may be counted.

    `max_cores` is how many cores others and the hypervisor may take together.
    """
    for block in blocks:
        if block.other_cores + block.stolen_cores > max_cores:
            together, allowed = _told_apart(block.other_cores + block.stolen_cores, max_cores)
            return (
                f"other processes kept {block.other_cores:.2f} cores busy and the hypervisor took {block.stolen_cores:.2f},"
                f" {together} together, where {allowed} are allowed"
            )
        if block.quota_throttled_cores > max_cores:
            lost, allowed = _told_apart(block.quota_throttled_cores, max_cores)
            return (
                f"the CPU quota of the control group took {lost} cores, where {allowed} are allowed: use fewer threads "
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
        return f"the processors' clock went from {min(clocks):.0f} to {max(clocks):.0f} MHz"
    return ""


def _told_apart(found: float, allowed: float) -> tuple[str, str]:
    """Return both figures with two decimals, or as many as show which one is larger.

    >>> _told_apart(0.3004, 0.3), _told_apart(0.5, 0.3)
    (('0.3004', '0.3000'), ('0.50', '0.30'))
    """
    texts = ((f"{found:.{digits}f}", f"{allowed:.{digits}f}") for digits in range(2, 17))
    return next((pair for pair in texts if pair[0] != pair[1]), (repr(found), repr(allowed)))


def canary_ratio(blocks: tuple[BlockConditions, BlockConditions]) -> float:
    """How much slower the canary of one block was than the other's: before the block or after it, where it is more."""
    first, second = (block.canary_ms for block in blocks)
    return max(max(one, other) / min(one, other) for one, other in zip(first, second, strict=True))


def canary_ms() -> float:
    """How long a fixed piece of work takes now: it tells that the machine became slower though nobody says so.

    While the measured processes are stopped: the threads of a session that is not go on spinning for some 40 ms, and on the
    other half of a core slow it by as much as a neighbour does. Sorting keeps the interpreter's lock from mattering.
    """
    pieces = []
    for _ in range(CANARY_PIECES):
        start = time.perf_counter_ns()
        np.sort(_NUMBERS)
        pieces.append(time.perf_counter_ns() - start)
    return statistics.median(pieces) / 1e6


def _gpu_disturbance(states: tuple[GpuState, GpuState]) -> str:
    slowdowns = sorted({reason for state in states for reason in state.slowdowns})
    if slowdowns:
        return f"the GPU was throttled: {', '.join(slowdowns)}"
    processes = max(state.processes or 0 for state in states)
    return f"{processes} processes compute on the GPU" if processes > own_gpu_processes() else ""


def own_gpu_processes() -> int:
    """How many processes of the run may hold the GPU: counted, since in a container their ids are not those of the driver."""
    return OWN_GPU_PROCESSES + (_DRIVER in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace"))


def processor_seconds() -> tuple[float, float]:
    """Time since boot that the usable processors computed, for whomever, and that the hypervisor took from them, in seconds."""
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
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
    """Processor time of a process and its threads so far, in seconds."""
    fields = _stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) * _TICK_SECONDS


def involuntary_switches(pid: int) -> int:
    """How often a thread of the process had to make room for something else."""
    count = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text(encoding="ascii", errors="replace").splitlines()
        count += sum(int(line.split()[1]) for line in lines if line.startswith("nonvoluntary_ctxt_switches"))
    return count


def clock_mhz(cpus: Path) -> float | None:
    """The mean clock of the usable processors; None where the kernel does not tell, as in most virtual machines."""
    files = [cpus / f"cpu{number}" / "cpufreq" / "scaling_cur_freq" for number in os.sched_getaffinity(0)]
    clocks = [int(file.read_text(encoding="ascii")) / 1e3 for file in files if file.exists()]
    return sum(clocks) / len(clocks) if clocks else None


def throttle_count(cpus: Path) -> int | None:
    """How often the usable processors were throttled for heat since boot; None where there is no counter."""
    files = [cpus / f"cpu{number}" / "thermal_throttle" / "core_throttle_count" for number in os.sched_getaffinity(0)]
    counts = [int(file.read_text(encoding="ascii")) for file in files if file.exists()]
    return sum(counts) if counts else None


def _stat_fields(pid: int) -> list[str]:
    """/proc/<pid>/stat from the state on: index 9 is major faults, 11 and 12 user and system time."""
    # The name, in parentheses, may hold spaces.
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
