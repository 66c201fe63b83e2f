"""State of an NVIDIA GPU from its management library: throttling, energy, and the processes that hold it.

The library is optional (`nvidia-ml-py`, module `pynvml`). Without it, or without a GPU, `open_gpu` returns None.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from validators.errors import InfrastructureError
from validators.records import run as records

# nvml.h, "Clocks event reasons": the GPU runs slower than it was asked to.
SLOWDOWNS = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
# CUDA C++ Programming Guide, "CUDA Environment Variables": which GPUs a process sees, and in what order.
VISIBLE, ORDER, BY_BUS = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID"


@dataclass(frozen=True)
class GpuState:
    """One reading; a value that the GPU does not report is None.

    `slowdowns` are the present reasons for throttling. `processes` is the number of compute processes, ours included.
    `energy_j` counts from the loading of the driver. `held_mb` is memory by the driver's process ids, which may differ from
    ours in a container.
    """

    slowdowns: tuple[str, ...]
    energy_j: float | None
    processes: int | None
    held_mb: dict[int, float] = field(default_factory=dict)


class NvmlGpu:
    """One GPU, read through the management library."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def read(self) -> GpuState:
        """Return the present state."""
        nvml, handle = self._library, self._handle
        reasons = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
        energy_mj = self._ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
        running = self._ask(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle))
        return GpuState(
            slowdowns=tuple(name for bit, name in SLOWDOWNS.items() if reasons & bit),
            energy_j=None if energy_mj is None else energy_mj / 1e3,
            processes=None if running is None else len(running),
            held_mb={one.pid: one.usedGpuMemory / 1e6 for one in running or () if one.usedGpuMemory is not None},
        )

    def describe(self) -> records.Gpu:
        """Return the GPU's entry in the inventory."""
        nvml, handle = self._library, self._handle
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
        return records.Gpu(
            name=nvml.nvmlDeviceGetName(handle),
            uuid=nvml.nvmlDeviceGetUUID(handle),
            compute_capability=f"{major}.{minor}",
            driver=nvml.nvmlSystemGetDriverVersion(),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._library.NVMLError:  # older GPUs and MIG slices do not support every query
            return None


def open_gpu(index: int = 0) -> NvmlGpu | None:
    """Return the GPU with this CUDA index in this process; None without the library, a driver, or that GPU.

    Raises:
        InfrastructureError: there are GPUs of several kinds, and the environment does not fix their order.
    """
    try:
        library = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        library.nvmlInit()
        in_bus_order = [library.nvmlDeviceGetHandleByIndex(number) for number in range(library.nvmlDeviceGetCount())]
        handles = _visible(library, in_bus_order)
    except library.NVMLError:
        return None
    return NvmlGpu(library, handles[index]) if index < len(handles) else None


def _visible(library: Any, handles: list[Any]) -> list[Any]:
    """Return the GPUs visible to this process in CUDA's order; the list ends at the first entry that matches no GPU."""
    given = os.environ.get(VISIBLE)
    entries = [str(index) for index in range(len(handles))] if given is None else given.split(",")
    if any(entry.strip().isdigit() for entry in entries):
        _refuse_unordered(library, handles)
    found: list[Any] = []
    for entry in entries:
        named = _named(library, handles, entry.strip())
        if named is None:
            break
        found.append(named)
    return found


def _named(library: Any, handles: list[Any], entry: str) -> Any | None:
    """Return the GPU with this index or unique UUID prefix, or the MIG slice with this UUID; None if there is none."""
    if entry.isdigit():
        return handles[int(entry)] if int(entry) < len(handles) else None
    if entry.startswith("MIG-"):
        return library.nvmlDeviceGetHandleByUUID(entry)
    of_uuid = [handle for handle in handles if entry and library.nvmlDeviceGetUUID(handle).startswith(entry)]
    return of_uuid[0] if len(of_uuid) == 1 else None


def _refuse_unordered(library: Any, handles: list[Any]) -> None:
    """Raise if CUDA's order is unknown: by default it puts the fastest GPU first, and only equal GPUs are in bus order."""
    names = [library.nvmlDeviceGetName(handle) for handle in handles]
    if len(set(names)) > 1 and os.environ.get(ORDER) != BY_BUS:
        raise InfrastructureError(
            found=f"GPUs of several kinds: {', '.join(names)}, and {VISIBLE}={os.environ.get(VISIBLE)}",
            expected="an unambiguous GPU for the job",
            fix=f"set {VISIBLE} to its UUID (`nvidia-smi -L`), or {ORDER}={BY_BUS}",
        )
